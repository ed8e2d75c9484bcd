"""DP-Mixture: what it learns, its shapes, and that noise and small collections do not break it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.data import PrivateImages
from sfumato.data.digits import draw_digits
from sfumato.methods import find
from sfumato.methods.parts.deform import deformed
from sfumato.methods.parts.finishing import FinishedGenerator, finish
from sfumato.methods.parts.tone import Tone, background_of, fit_tone
from sfumato.networks.mixture import ClassMixtures, LowFrequencies, Pose
from sfumato.privacy import Budget
from sfumato.release.release import Release

KIND = find("dp-mixture")


@pytest.fixture(scope="module")
def release() -> Release:
    drawn = draw_digits(1500, seed=1)
    method = KIND(centres=3, directions=30, rounds=2, teacher_directions=40, samples=300)
    return method.fit(PrivateImages.from_images(drawn), Budget(100.0, 1e-5), seed=1, device="cpu")


def test_drawn_digits_are_learnt_with_their_density_and_teacher(release: Release) -> None:
    test = draw_digits(300, seed=2)
    images, labels = torch.as_tensor(test.pixels).float() / 255, torch.as_tensor(test.labels)
    model = release.model
    assert model.generator.pose.present  # a dark background
    spanned = model.generator.spanned()
    told = (model.teacher(model.generator.project(images, spanned)).argmax(1) == labels).float().mean()
    density = release.density(test.pixels)
    assert told > 0.8 and float(model.agreement) > 0.8
    assert (density.argmax(1) == test.labels).mean() > 0.6
    noise = np.random.default_rng(0).integers(0, 256, (50, 1, 28, 28), dtype=np.uint8)
    assert np.median(release.density(noise).max(1)) < np.median(density.max(1))


def test_more_noise_leaves_fewer_directions_and_centres(release: Release) -> None:
    drawn = draw_digits(300, seed=1)
    noisy = KIND(centres=3, rounds=2, teacher_share=0).fit(
        PrivateImages.from_images(drawn), Budget(0.5, 1e-5), seed=1, device="cpu"
    )

    def used(one: Release) -> tuple[int, int]:
        mixture = one.model.generator
        return int((mixture.basis.square().sum(0) > 0).sum()), int((mixture.weights > 0).sum())

    directions, centres = used(noisy)
    assert 1 <= directions < used(release)[0]
    assert centres == 10 < used(release)[1]
    assert np.isfinite(noisy.density(drawn.pixels[:5])).all()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 20, 44), (1, 128, 128)])
def test_low_frequencies_are_orthonormal_and_any_shape_is_drawn(shape: tuple[int, int, int]) -> None:
    low = LowFrequencies(shape, highest=6)
    rows = torch.randn(3, low.size)
    torch.testing.assert_close(low.analyse(low.synthesise(rows)), rows, atol=1e-4, rtol=1e-4)
    mixture = ClassMixtures(shape, 2, highest=6, directions=4, centres=2)
    assert mixture.draw(torch.tensor([0, 1, 1])).shape == (3, *shape)


@pytest.mark.parametrize("background", [0.0, 1.0])
def test_a_pose_is_measured_taken_out_and_restored(background: float) -> None:
    axis = torch.linspace(-1, 1, 41)
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    pose = Pose()
    pose.background.fill_(background)

    def blob(x: float, y: float, width: float, height: float, shear: float) -> torch.Tensor:
        across, along = right - x - shear * (down - y), down - y
        mass = torch.exp(-(across / width).square() / 2 - (along / height).square() / 2)
        return (1 - mass if background else mass)[None, None]

    images = torch.cat([blob(0.1, -0.1, 0.26, 0.3, 0.2), blob(-0.1, 0.05, 0.3, 0.24, -0.2)])
    found = pose.measure(images)
    aligned = pose.align(images, found)
    torch.testing.assert_close(pose.measure(aligned), torch.zeros_like(found), atol=0.05, rtol=0)
    restored = pose.restore(aligned, found)
    inner = (..., slice(13, -13), slice(13, -13))  # an enlarged object may leave the frame
    torch.testing.assert_close(restored[inner], images[inner], atol=0.05, rtol=0)
    assert float((aligned[0] - aligned[1]).abs().mean()) < 0.2 * float((images[0] - images[1]).abs().mean())


def test_tone_maps_the_levels_of_samples_to_the_histogram() -> None:
    torch.manual_seed(0)
    samples = torch.rand(50, 1, 8, 8) * 0.5 + 0.2
    histogram = torch.zeros(1, 32)
    histogram[0, 0], histogram[0, 16:] = 8.0, 1.0  # a third is black
    tone = Tone(1)
    fit_tone(tone, histogram, samples)
    toned = tone(samples)
    assert abs(float((toned == 0).float().mean()) - 1 / 3) < 0.02
    assert float(((toned > 0) & (toned < 0.45)).float().mean()) < 0.02
    order = samples.flatten().argsort()
    assert bool((toned.flatten()[order].diff() >= 0).all())
    histogram[0, 0] = 40.0
    assert background_of(histogram) == 0.0 and background_of(torch.ones(3, 32)) == 0.5


def test_labels_are_checked_by_exchange_or_by_new_draws() -> None:
    class BrightIsOne(torch.nn.Module):
        bias = torch.zeros(2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            level = images.flatten(1).mean(1)
            return torch.stack([0.5 - level, level - 0.5], dim=1)

    def draw(labels: torch.Tensor) -> torch.Tensor:
        wrong = torch.rand(len(labels)) < 0.4
        return torch.where(wrong, 1 - labels, labels).float()[:, None, None, None].expand(-1, 1, 4, 4).clone()

    torch.manual_seed(0)
    model = FinishedGenerator(torch.nn.Identity(), None, BrightIsOne())  # type: ignore[arg-type]
    labels = torch.arange(400) % 2
    share = {}
    for kind, rounds in (("off", 0), ("relabel", 0), ("reject", 2), ("relabel", 2)):
        images = finish(model, draw, labels, relabelling=kind, max_rejections=rounds)
        share[kind, rounds] = float((images[:, 0, 0, 0] == labels).float().mean())
    assert share["off", 0] < 0.7 < 0.85 < share["relabel", 0] and share["reject", 2] > 0.88
    assert share["relabel", 2] == 1.0


def test_deformations_are_small_and_can_be_left_out() -> None:
    torch.manual_seed(0)
    images = torch.zeros(40, 1, 28, 28)
    images[:, :, 8:20, 10:16] = 1.0
    assert torch.equal(deformed(images, size=0.0), images)
    for options in ({"size": 1.0}, {"size": 0.0, "elastic": 1.0}):
        moved = deformed(images, **options)  # type: ignore[arg-type]
        assert 0.01 < float((moved - images).abs().mean()) < 0.1
        assert abs(float(moved.mean() / images.mean()) - 1) < 0.1
    images[:, :, :, :14] = 0.0
    mirrored = deformed(images, size=0.0, mirror=True)[:, 0, :, :14].sum((1, 2)) > 1
    assert 5 < int(mirrored.sum()) < 35
