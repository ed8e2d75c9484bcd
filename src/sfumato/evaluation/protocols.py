"""The four published protocols for synthetic images. Values of different protocols never share a column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from sfumato.evaluation.classifiers import (
    CNN,
    LOGISTIC_REGRESSION,
    MLP,
    ClassifierSpec,
    OptimizerSpec,
    pooled_cnn,
    small_pooled_cnn,
)
from sfumato.evaluation.resnets import resnet, resnext, wide_resnet
from sfumato.evaluation.results import ProtocolSummary


@dataclass(frozen=True)
class Protocol:
    """Classifiers, the real set of the distances, and how many synthetic images its papers use.

    Attributes:
        reference: The real split that FID is computed against.
        agreement_classifier: The classifier that, trained on real data, measures label agreement.
        selection: How the epoch is picked.
        feature_images: How many synthetic images FID uses, where that is not all of them.
        several_networks: Whether results are also given as the mean over the networks, and, with validation images,
            as the best of the networks at their validated epochs.
    """

    name: str
    papers: str
    synthetic_count: int
    reference: Literal["train", "test"]
    classifiers: tuple[ClassifierSpec, ...]
    agreement_classifier: str
    selection: str
    feature_images: int | None = None
    several_networks: bool = False

    def summary(self) -> ProtocolSummary:
        """What a result says about its protocol."""
        trained = [spec for spec in self.classifiers if spec.network is not None]
        return ProtocolSummary(
            name=self.name,
            papers=self.papers,
            synthetic_count_in_the_papers=self.synthetic_count,
            fid_against=f"real {self.reference}",
            classifiers=tuple(spec.name for spec in self.classifiers),
            selection=self.selection,
            input="pixels from −1 to 1" if any(spec.centred for spec in trained) else "pixels / 255",
            optimiser=str(trained[0].optimizer) if trained else "scikit-learn defaults",
        )


_LAST = "last epoch"

_BENCH = partial(
    ClassifierSpec,
    epochs=50,
    held_out=1 / 12,
    held_out_last=True,
    ties="last",
    optimizer=OptimizerSpec(0.01, step_size=20, gamma=0.2),
    centred=True,
    ema_decay=0.9999,
)
_BENCH_CIFAR = partial(
    ClassifierSpec,
    epochs=200,
    batch=126,
    held_out=1 / 12,
    held_out_last=True,
    ties="last",
    optimizer=OptimizerSpec(0.1, momentum=0.9, weight_decay=5e-4, step_size=60, gamma=0.2),
    centred=True,
    ema_decay=0.9999,
)
_BENCH_SELECTION = "best epoch on the last twelfth of the synthetic images, held out (DPImageBench: sensitive images)"

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
            (ClassifierSpec("CNN", pooled_cnn, epochs=20),),
            "CNN",
            _LAST,
        ),
        Protocol(
            "dpdm",
            "DPDM",
            60_000,
            "train",
            (ClassifierSpec("CNN", small_pooled_cnn, epochs=50, held_out=0.1),),
            "CNN",
            "best epoch on 10 % held out of the images trained on",
        ),
        Protocol(
            "bench",
            "DPImageBench",
            60_000,
            "train",
            (_BENCH("ResNet", resnet), _BENCH("WRN", wide_resnet), _BENCH("ResNeXt", resnext)),
            "ResNet",
            _BENCH_SELECTION,
            feature_images=50_000,
            several_networks=True,
        ),
        Protocol(
            "bench-cifar",
            "DPImageBench, its settings for CIFAR-10",
            60_000,
            "train",
            (
                _BENCH_CIFAR("ResNet", partial(resnet, depth=164)),
                _BENCH_CIFAR("WRN", partial(wide_resnet, depth=28, widen=10)),
                _BENCH_CIFAR("ResNeXt", partial(resnext, depth=28, widen=10)),
            ),
            "ResNet",
            _BENCH_SELECTION,
            feature_images=50_000,
            several_networks=True,
        ),
    )
}


def protocol_named(name: str) -> Protocol:
    """The protocol of that name; the error lists them all."""
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
