"""Compact residual classifiers for images of 28 to 64 pixels: ResNet, Wide ResNet, ResNeXt.

Three stages that halve the resolution and double the width, after the papers' CIFAR networks. Depth and width are this
project's choice, not DPImageBench's.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.classifiers import Shape


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, normalised after each (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, values: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(values)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(values))


class WideBlock(nn.Module):
    """Normalised before each convolution (Zagoruyko and Komodakis, 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = _shortcut(inputs, outputs, stride, norm=False)

    def forward(self, values: Tensor) -> Tensor:
        inner = self.first(F.relu(self.first_norm(values)))
        return self.second(F.relu(self.second_norm(inner))) + self.shortcut(values)


class GroupedBlock(nn.Module):
    """1×1, grouped 3×3, 1×1 (Xie et al., 2017); eight groups."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        width = outputs // 2
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=8, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, values: Tensor) -> Tensor:
        return F.relu(self.body(values) + self.shortcut(values))


def _shortcut(inputs: int, outputs: int, stride: int, *, norm: bool = True) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(outputs)) if norm else projection


def _residual(
    block: type[BasicBlock] | type[WideBlock] | type[GroupedBlock], shape: Shape, classes: int, width: int, depth: int
) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for stage in range(3):
        outputs = width << stage
        for place in range(depth):
            layers.append(block(inputs, outputs, stride=2 if stage and not place else 1))
            inputs = outputs
    layers += [nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers)


def resnet(shape: Shape, classes: int) -> nn.Module:
    """ResNet-20: three blocks a stage, widths 16, 32, 64."""
    return _residual(BasicBlock, shape, classes, width=16, depth=3)


def wide_resnet(shape: Shape, classes: int) -> nn.Module:
    """WRN-16-4: two blocks a stage, widths 64, 128, 256."""
    return _residual(WideBlock, shape, classes, width=64, depth=2)


def resnext(shape: Shape, classes: int) -> nn.Module:
    """ResNeXt-20, eight groups: two blocks a stage, widths 64, 128, 256."""
    return _residual(GroupedBlock, shape, classes, width=64, depth=2)
