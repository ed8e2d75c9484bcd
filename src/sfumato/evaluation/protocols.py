"""The four published ways to judge synthetic images. Numbers of different protocols never share a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from sfumato.evaluation.classifiers import CNN, LOGISTIC_REGRESSION, MLP, Recipe, Shape
from sfumato.evaluation.resnets import resnet, resnext, wide_resnet


def pooled_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three convolutions, two poolings, two linear layers: DPPM's classifier in our reading of a garbled figure."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
    )
    return nn.Sequential(body, nn.Linear(_width(body, shape), 128), nn.ReLU(), nn.Linear(128, classes))


def small_pooled_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two padded convolutions, each pooled, two linear layers."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return nn.Sequential(body, nn.Linear(_width(body, shape), 128), nn.ReLU(), nn.Linear(128, classes))


def _width(body: nn.Module, shape: Shape) -> int:
    with torch.inference_mode():
        return body(torch.zeros(1, *shape)).shape[1]


@dataclass(frozen=True)
class Protocol:
    """Classifiers, the real set that FID is measured against, and how many synthetic images its papers use.

    ``mean_of_classifiers`` asks for one more row: the mean over the classifiers of each seed. ``judge`` names the
    classifier that, trained on real data, says whether a synthetic image shows its label.
    """

    name: str
    papers: str
    synthetic_count: int
    reference: Literal["train", "test"]
    recipes: tuple[Recipe, ...]
    judge: str
    selection: str
    mean_of_classifiers: bool = False


_LAST = "last epoch"
_HELD_OUT = "best epoch on 10 % held out of the images trained on"

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "sinkhorn",
            "DP-Sinkhorn, DP²-VAE, DP-LFlow",
            60_000,
            "test",
            (LOGISTIC_REGRESSION, MLP, CNN),
            "CNN",
            _LAST,
        ),
        Protocol(
            "dppm",
            "DPPM, DataLens, DPAF",
            10_000,
            "train",
            (Recipe("CNN", pooled_cnn, epochs=20),),
            "CNN",
            _LAST,
        ),
        Protocol(
            "dpdm",
            "DPDM",
            60_000,
            "train",
            (Recipe("CNN", small_pooled_cnn, epochs=50, held_out=0.1),),
            "CNN",
            _HELD_OUT,
        ),
        Protocol(
            "bench",
            "DPImageBench (it selects on sensitive validation data; here only on synthetic data)",
            60_000,
            "train",
            (
                Recipe("ResNet", resnet, epochs=30, held_out=0.1),
                Recipe("WRN", wide_resnet, epochs=30, held_out=0.1),
                Recipe("ResNeXt", resnext, epochs=30, held_out=0.1),
            ),
            "ResNet",
            _HELD_OUT,
            mean_of_classifiers=True,
        ),
    )
}


def protocol_named(name: str) -> Protocol:
    """The protocol of that name; the error lists them all."""
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
