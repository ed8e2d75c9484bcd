"""The score networks: shapes, label and level, and whether the engine can count their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import plain_loop
from sfumato.networks.pixels import per_row
from sfumato.networks.score import RefineNet, ScoreNetwork
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.gradients import engine as engine_module
from sfumato.privacy.randomness import Randomness

KINDS: list[Callable[..., Any]] = [ScoreNetwork, RefineNet]


def inputs(shape: tuple[int, int, int], rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, *shape), torch.rand(rows) + 0.1, torch.arange(rows) % 2


def test_a_picture_in_a_picture_out() -> None:
    for kind in KINDS:
        for shape in [(1, 28, 28), (3, 32, 32), (1, 13, 30)]:
            noisy, level, labels = inputs(shape)
            model = kind(shape, 2, width=4)
            for answer in (
                model.score(noisy, level, labels),
                model.denoise(noisy, level, labels),
                model.start(labels, 1.0),
            ):
                assert answer.shape == noisy.shape and torch.isfinite(answer).all()


def test_score_and_clean_image_say_the_same() -> None:
    for kind in KINDS:
        noisy, level, labels = inputs((1, 12, 12))
        model = kind((1, 12, 12), 2, width=4)
        expected = noisy + per_row(level.square()) * model.score(noisy, level, labels)
        torch.testing.assert_close(model.denoise(noisy, level, labels), expected)


def test_label_and_level_matter() -> None:
    for kind in KINDS:
        noisy, level, labels = inputs((1, 12, 12))
        model = kind((1, 12, 12), 2, width=4)
        first = model.score(noisy, level, labels)
        assert not torch.allclose(first, model.score(noisy, level, 1 - labels))
        assert not torch.allclose(first * per_row(level), model.score(noisy, 2 * level, labels) * 2 * per_row(level))


def test_patches_cover_a_picture_that_they_do_not_divide() -> None:
    noisy, level, labels = inputs((3, 14, 13))
    model = ScoreNetwork((3, 14, 13), 2, width=4, patch_size=4)
    assert model.denoise(noisy, level, labels).shape == noisy.shape


def test_a_residual_that_is_met_gives_the_clean_image() -> None:
    noisy, level, labels = inputs((1, 12, 12))
    clean = torch.rand_like(noisy)
    model = ScoreNetwork((1, 12, 12), 2, width=4)
    model.gaussians.means.uniform_(-1, 1)
    _, linear, size = model.residual(noisy, level, labels)
    model.net.forward = lambda *given: (clean - linear) / size  # type: ignore[method-assign]
    torch.testing.assert_close(model.denoise(noisy, level, labels), clean)


def test_under_much_noise_an_untrained_network_draws_the_mean_of_the_class() -> None:
    torch.manual_seed(1)
    model = ScoreNetwork((1, 12, 12), 2, width=4)
    model.net.leave.weight.data.zero_()
    model.net.leave.bias.data.zero_()
    model.gaussians.means.uniform_(-1, 1)
    labels = torch.tensor([0, 1])
    clean = model.denoise(1000.0 * torch.randn(2, 1, 12, 12), torch.full((2,), 1000.0), labels)
    assert float((clean - model.gaussians.means[labels]).detach().abs().max()) < 0.01


def test_the_default_size_is_compact() -> None:
    for shape, classes in [((1, 28, 28), 10), ((3, 32, 32), 10), ((3, 64, 64), 2)]:
        size = sum(p.numel() for p in ScoreNetwork(shape, classes).parameters())
        assert 300_000 <= size <= 1_500_000


def test_the_papers_network_has_the_papers_widths() -> None:
    model = RefineNet((1, 28, 28), 10, width=8)
    assert [stage.second.first.out_channels for stage in model.stages] == [8, 16, 16, 16]
    assert [stage.second.first.dilation[0] for stage in model.stages] == [1, 1, 2, 4]
    assert [block.output.first.out_channels for block in model.refine] == [16, 16, 8, 8]
    assert len(RefineNet((1, 256, 256), 2, width=2).stages) == 5


def squared_error(model: ScoreNetwork, images: Tensor, labels: Tensor, random: Any) -> Tensor:
    level = random.uniform("level", 1)[:, 0] + 0.1
    noisy = images + per_row(level) * random.normal("noise", *images.shape[1:])
    return (model.residual(noisy, level, labels)[0] - images).square().flatten(1).sum(1)


def test_the_engine_traces_every_layer() -> None:
    """By the books and not by torch.func, which is many times slower; and they agree with a plain loop."""
    for patch in [1, 2]:
        torch.manual_seed(2)
        model = ScoreNetwork((1, 12, 12), 3, width=8, patch_size=patch).double()
        ids = torch.arange(10) // 2
        images = torch.rand(10, 1, 12, 12, dtype=torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            draws = Randomness(0).draws(ids, torch.arange(10) % 2, "test")
            batch = Batch(images, ids % 3, draws, torch.full((5, 2), 0.5, dtype=torch.float64))
            fast = clipped_sum(model, squared_error, batch, 0.5)
            plain = plain_loop.clipped_sum(model, squared_error, batch, 0.5)
        finally:
            torch.set_default_dtype(torch.float32)
        assert [known.untraced for known in engine_module._known[model].values()] == [None]
        for name, value in plain.items():
            torch.testing.assert_close(fast[name], value, rtol=1e-5, atol=1e-9)
