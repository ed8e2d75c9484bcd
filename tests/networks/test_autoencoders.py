"""Autoencoders follow from the image size and give back what they were given."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sfumato.networks.vae import Autoencoder, halvings


def test_depth_and_channels_follow_from_the_size() -> None:
    for size, channels, seed in [
        (28, [32, 64], 7),
        (32, [64, 128, 256], 4),
        (64, [32, 64, 128, 256], 4),
        (256, [16, 32, 64, 128, 256, 512], 4),
    ]:
        model = Autoencoder((3, size, size), latent_dim=8)
        assert [layer.out_channels for layer in model.down] == channels
        assert model.seed == (channels[-1], seed, seed)


def test_the_image_comes_back_in_its_own_size() -> None:
    for size in [(8, 8), (28, 28), (30, 30), (33, 45), (64, 32), (256, 256)]:
        for colours in [1, 3]:
            model = Autoencoder((colours, *size), latent_dim=5, width=2)
            images = torch.rand(2, colours, *size)
            assert model.encode(images).shape == (2, 5)
            assert model(images).shape == images.shape


def test_it_learns_to_give_back_an_image() -> None:
    torch.manual_seed(0)
    model = Autoencoder((1, 28, 28), latent_dim=4, width=4)
    images = torch.zeros(2, 1, 28, 28)
    images[0, :, 4:12, 4:12], images[1, :, 16:24, 16:24] = 1.0, 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(100):
        loss = F.binary_cross_entropy_with_logits(model(images), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_sizes_out_of_reach_are_refused() -> None:
    for size in [(4, 28), (28, 300)]:
        with pytest.raises(ValueError, match="between 8 and 256"):
            halvings((1, *size))
