"""The critic's convolution as a product of patches, which is how a GPU computes it."""

from __future__ import annotations

import torch
from torch import nn

from sfumato.networks.generators import by_patches


def test_patches_are_the_convolution_and_have_its_second_derivatives() -> None:
    for channels, side in [(1, 28), (3, 9)]:
        layer = nn.Conv2d(channels, 4, 5, stride=2, padding=2).double()
        images = torch.randn(3, channels, side, side, dtype=torch.float64, requires_grad=True)
        found = []
        for convolve in (nn.Conv2d.__call__, by_patches):
            output = convolve(layer, images)
            (slopes,) = torch.autograd.grad(output.pow(3).sum(), images, create_graph=True)
            found.append((output, slopes, *torch.autograd.grad(slopes.square().sum(), list(layer.parameters()))))
        for plain, patched in zip(*found, strict=True):
            torch.testing.assert_close(patched, plain)
