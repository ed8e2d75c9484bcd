"""The four published protocols for synthetic images. Values of different protocols never share a column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.classifiers import (
    CNN,
    LOGISTIC_REGRESSION,
    MLP,
    ClassifierSpec,
    OptimizerSpec,
    Shape,
    pooled_cnn,
    small_pooled_cnn,
)
from sfumato.evaluation.results import ProtocolSummary


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, each followed by batch normalisation (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _conv3(inputs, outputs, stride), _conv3(outputs, outputs)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = _projection(inputs, outputs, stride) if inputs != outputs or stride > 1 else nn.Identity()

    def forward(self, values: Tensor) -> Tensor:
        """The block's output, after the ReLU."""
        inner = F.relu(self.first_norm(self.first(values)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(values))


class WideBlock(nn.Module):
    """Batch normalisation before each convolution, dropout between them (Zagoruyko and Komodakis, 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, dropout: float) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.first, self.second = _conv3(inputs, outputs, stride), _conv3(outputs, outputs)
        self.dropout = nn.Dropout(dropout)
        same = inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """The block's output; where the width changes, the shortcut starts from the normalised input."""
        active = F.relu(self.first_norm(values))
        inner = self.dropout(F.relu(self.second_norm(self.first(active))))
        found: Tensor = self.second(inner) + (values if self.shortcut is None else self.shortcut(active))
        return found


class GroupedBottleneck(nn.Module):
    """A 1×1, a grouped 3×3 and a 1×1 convolution (Xie et al., 2017)."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, cardinality: int, widen: int) -> None:
        super().__init__()
        width = cardinality * outputs // widen
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=cardinality, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = _projection(inputs, outputs, stride) if inputs != outputs else nn.Identity()

    def forward(self, values: Tensor) -> Tensor:
        """The block's output, after the ReLU."""
        return F.relu(self.body(values) + self.shortcut(values))


def resnet(shape: Shape, classes: int, *, depth: int = 110) -> nn.Module:
    """ResNet of 6n + 2 layers with basic blocks, widths 16, 32 and 64."""
    stem = [_conv3(shape[0], 16), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = _stages(BasicBlock, 16, (16, 32, 64), (depth - 2) // 6)
    return _initialised(*stem, *blocks, *_pooled(), nn.Linear(64, classes))


def wide_resnet(shape: Shape, classes: int, *, depth: int = 40, widen: int = 4, dropout: float = 0.3) -> nn.Module:
    """Wide ResNet of 6n + 4 layers, widths 16, 32 and 64 times ``widen``."""
    widths = (16 * widen, 32 * widen, 64 * widen)
    blocks = _stages(partial(WideBlock, dropout=dropout), 16, widths, (depth - 4) // 6)
    tail = [nn.BatchNorm2d(widths[-1]), nn.ReLU(), *_pooled()]
    head = nn.Linear(widths[-1], classes)
    model = _initialised(_conv3(shape[0], 16), *blocks, *tail, head)
    nn.init.zeros_(head.bias)
    return model


def resnext(shape: Shape, classes: int, *, depth: int = 29, cardinality: int = 8, widen: int = 4) -> nn.Module:
    """ResNeXt of 9n + 2 layers, widths 64, 128 and 256 times ``widen``.

    DPImageBench passes it a dropout rate of 0.3, which its network ignores; so there is no dropout here either.
    """
    widths = (64 * widen, 128 * widen, 256 * widen)
    block = partial(GroupedBottleneck, cardinality=cardinality, widen=widen)
    blocks = _stages(block, 64, widths, (depth - 2) // 9)
    stem = [_conv3(shape[0], 64), nn.BatchNorm2d(64), nn.ReLU()]
    head = nn.Linear(widths[-1], classes)
    model = _initialised(*stem, *blocks, *_pooled(), head)
    nn.init.kaiming_normal_(head.weight)
    nn.init.zeros_(head.bias)
    return model


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _pooled() -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten()]


def _stages(
    block: Callable[[int, int, int], nn.Module], inputs: int, widths: tuple[int, ...], blocks: int
) -> list[nn.Module]:
    found = []
    for stage, outputs in enumerate(widths):
        for place in range(blocks):
            found.append(block(inputs, outputs, 2 if stage and not place else 1))
            inputs = outputs
    return found


def _initialised(*layers: nn.Module) -> nn.Module:
    """The layers in a row, with He initialisation by fan-out of all convolutions."""
    model = nn.Sequential(*layers)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


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
