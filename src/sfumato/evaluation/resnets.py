"""Residual classifiers for images of 28 to 64 pixels: ResNet, Wide ResNet and ResNeXt as DPImageBench configures them.

Each has three stages; the second and third halve the resolution and double the width. Depths, widths and
initialisation are those of DPImageBench's evaluator (Gong et al., 2025), so that parameter counts agree with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.classifiers import Shape


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
