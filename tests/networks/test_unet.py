"""The U-Net: shapes, rows that do not see each other, and gradients that the engine counts without a fallback."""

from __future__ import annotations

import torch

from sfumato.networks.edm import Denoiser, UNet
from sfumato.privacy import Randomness
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.gradients.engine import _known


def test_the_output_has_the_shape_of_the_images() -> None:
    for patch in [1, 2]:
        for shape in [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 30, 45), (3, 128, 128)]:
            net = UNet(shape, 3, width=4, patch=patch)
            output = net(torch.rand(2, *shape), torch.zeros(2), torch.tensor([0, 2]))
            assert output.shape == (2, *shape)


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    net = UNet((1, 28, 28), 2, width=4, blocks=2).double()
    images, levels, labels = torch.rand(3, 1, 28, 28).double(), torch.randn(3).double(), torch.tensor([0, 1, 1])
    together = net(images, levels, labels)
    images[1:] = 1e6
    assert torch.allclose(net(images, levels, labels)[0], together[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(net(images, levels, 1 - labels)[0], together[0])
    assert not torch.allclose(net(images, levels + 1.0, labels)[0], together[0])


def test_the_engine_counts_every_layer() -> None:
    torch.manual_seed(0)
    model = Denoiser(UNet((1, 12, 12), 2, width=4, patch=2))
    ids = torch.arange(12) // 2
    random = Randomness(1).draws(ids, torch.arange(12) % 2, "test")
    batch = Batch(torch.rand(12, 1, 12, 12), ids % 2, random, torch.full((6, 2), 0.5))

    def loss(model: Denoiser, images: torch.Tensor, labels: torch.Tensor, random: object) -> torch.Tensor:
        return model.loss(images, 0.1 * images.flip(2), images.mean((1, 2, 3)), labels)

    clipped_sum(model, loss, batch, 1.0)
    assert [known.untraced for known in _known[model].values()] == [None]
