"""The networks of DPAF: the normalisation at its corners, the splits, and a vector that never leaves the ball."""

from __future__ import annotations

import pytest
import torch

from sfumato.networks.generators import Back, Front, Generator, simplified_instance_norm, split_of


def test_a_constant_map_becomes_zeros_and_any_other_has_norm_p() -> None:
    maps = torch.randn(3, 2, 5, 5)
    maps[0, 0], maps[1, 1] = 7.0, -1e6
    normal = simplified_instance_norm(maps)
    assert torch.equal(normal[0, 0], torch.zeros(5, 5)) and torch.equal(normal[1, 1], torch.zeros(5, 5))
    lengths = normal.flatten(2).norm(dim=2)
    assert float(lengths.max()) <= 5.0
    torch.testing.assert_close(lengths[2], torch.full((2,), 5.0), rtol=2e-2, atol=0)


def test_the_normalisation_has_a_slope_everywhere() -> None:
    maps = torch.zeros(1, 1, 4, 4, requires_grad=True)
    (simplified_instance_norm(maps) * torch.arange(16.0).view(4, 4)).sum().backward()
    assert maps.grad is not None and torch.isfinite(maps.grad).all() and bool(maps.grad.any())


def test_splits_are_read() -> None:
    for text, found in [("C2-C2-C1", (2, 2, 1)), ("C3-C1-×", (3, 1, 0)), ("x-C2-C1", (0, 2, 1))]:
        assert split_of(text) == found


def test_other_splits_are_refused() -> None:
    for text in ["C2-C2", "2-2-1", "C0-C1-C1", "x-x-C1", "C2-C2-C1-C1"]:
        with pytest.raises(ValueError, match="split"):
            split_of(text)


def test_every_split_goes_through_at_every_size() -> None:
    for side, channels, split in [
        (28, 1, "C2-C1-C1"),
        (28, 1, "C1-C2-x"),
        (64, 3, "C2-C2-C1"),
        (64, 3, "C1-C3-C1"),
        (128, 3, "C3-C1-x"),
    ]:
        first, second, third = split_of(split)
        shape, labels = (channels, side, side), torch.tensor([0, 2, 1])
        front = Front(
            shape,
            3,
            layers=(first, second),
            width=2,
            feature_maps=3,
            feature_layers=2,
            thumbnail_size=4,
            second_moment_size=2,
        )
        assert (len(front.first), len(front.second)) == (first, second)
        back = Back(front.sizes[-1], 3, layers=third, width=2)
        assert len(back.convolutions) == third
        images = Generator(shape, 3, latent_dim=5, width=2)(labels)
        assert images.shape == (3, *shape) and bool((images > 0).all() & (images < 1).all())
        vectors = front(images, labels)
        assert vectors.shape == (3, front.length)
        torch.testing.assert_close(front.last_maps(vectors), front.layers(images, labels)[-1])
        assert back(front.last_maps(vectors), torch.eye(3)[labels]).shape == (3, 1)


def test_the_vector_stays_in_the_ball_whatever_the_image() -> None:
    front = Front(
        (1, 16, 16),
        2,
        layers=(1, 1),
        width=3,
        feature_maps=2,
        feature_layers=2,
        thumbnail_size=3,
        second_moment_size=2,
        count_share=0.1,
    )
    rows = [torch.full((1, 16, 16), value) for value in (0.0, 1.0, 1e30, float("nan"), float("inf"), -1e5)]
    images = torch.stack([*rows, torch.rand(1, 16, 16), torch.eye(16)[None]])
    with torch.no_grad():
        vectors = front(images, torch.arange(len(images)) % 2)
    assert torch.isfinite(vectors).all() and float(vectors.norm(dim=1).max()) <= 1.0 + 1e-5
    torch.testing.assert_close(vectors[:, -1], torch.full((len(images),), 0.1**0.5))


def test_labels_enter_at_the_second_layer() -> None:
    front = Front((1, 16, 16), 2, layers=(1, 1), width=2, feature_maps=2)
    images = torch.rand(1, 1, 16, 16).expand(2, 1, 16, 16)
    first, second = front.layers(images, torch.tensor([0, 1]))
    torch.testing.assert_close(first[0], first[1])
    assert not torch.allclose(second[0], second[1])
    plain = Front((1, 16, 16), 2, layers=(1, 1), width=2, feature_maps=2, label_plane=False)
    _, second = plain.layers(images, torch.tensor([0, 1]))
    torch.testing.assert_close(second[0], second[1])


def test_pairs_know_how_pixels_vary_together() -> None:
    """Two sets with equal means: pixels alike and pixels opposed. Only the products tell them apart."""
    same, opposed = torch.tensor([[0.9, 0.9], [0.1, 0.1]]), torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    alike, unlike = (
        (rows.view(2, 1, 1, 2).repeat_interleave(8, 2).repeat_interleave(4, 3)) for rows in (same, opposed)
    )
    labels = torch.zeros(2, dtype=torch.int64)
    front = Front((1, 8, 8), 1, layers=(1, 0), width=2, feature_maps=2, thumbnail_size=2, second_moment_size=2)
    difference = (front(alike, labels) - front(unlike, labels)).mean(0).detach()
    coarse = slice(front.length - 1 - 16 - 4, front.length - 1 - 16)
    assert float(difference[coarse].abs().max()) < 1e-6
    assert float(difference[coarse.stop : -1].abs().max()) > 0.1


def test_too_many_layers_and_tiny_images_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer"):
        Front((1, 28, 28), 2, layers=(3, 2), width=2, feature_maps=2)
    with pytest.raises(ValueError, match="feature_layers"):
        Front((1, 28, 28), 2, layers=(1, 1), width=2, feature_maps=2, feature_layers=3)
    with pytest.raises(ValueError, match="5×5"):
        Generator((1, 4, 4), 2)
