"""The feature network is the published one, and nothing else is ever loaded in its place."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torchmetrics.image.kid import KernelInceptionDistance

from sfumato.evaluation import features as room
from sfumato.evaluation.features import checked_bytes, inception


@pytest.mark.long
def test_kid_of_torchmetrics_documented_example() -> None:
    """Uniform noise on 0..199 against 100..254 at 299×299, subsets of 50, 2048 features: documented as 0.0312, 0.0025.

    The documented images come from seed 42 after torchmetrics has built its own Inception, whose initial weights, drawn
    before the published ones replace them, move the generator on. The same draws in that order give the same images.
    """
    network = inception()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(42)
        for name, parameter in network.module.named_parameters():
            if name.endswith("weight"):
                nn.init.kaiming_uniform_(torch.empty(parameter.shape), a=math.sqrt(5))
        nn.Linear(2048, 1008)
        dark = torch.randint(0, 200, (100, 3, 299, 299), dtype=torch.uint8)
        bright = torch.randint(100, 255, (100, 3, 299, 299), dtype=torch.uint8)
        metric = KernelInceptionDistance(feature=network.module, subset_size=50)
        with torch.inference_mode():
            for images, real in ((dark, True), (bright, False)):
                for part in images.split(20):
                    metric.update(part, real=real)
        mean, deviation = metric.compute()
    assert float(mean) == pytest.approx(0.0312, abs=1e-4)
    assert float(deviation) == pytest.approx(0.0025, abs=1e-4)


def test_grey_is_repeated_and_small_images_are_resized_between_pixel_centres() -> None:
    seen: list[torch.Tensor] = []

    class Spy(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            seen.append(values)
            return values.mean(dim=(2, 3))

    grey = torch.tensor([0, 255], dtype=torch.uint8).repeat_interleave(14).expand(1, 1, 28, 28)
    room.InceptionFeatures(Spy())(grey)
    (values,) = seen
    assert values.shape == (1, 3, 299, 299)
    assert torch.equal(values[:, 0], values[:, 2])
    assert float(values.min()) == -1.0
    assert float(values.max()) == 127 / 128
    # The edge between columns 13 and 14 lies at 14/28 of the width: the middle pixel is half way.
    assert float(values[0, 0, 150, 149]) == pytest.approx((127.5 - 128) / 128, abs=1e-5)


def test_floating_images_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        room.InceptionFeatures(torch.nn.Identity())(torch.zeros(1, 3, 8, 8))


def test_another_file_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "default_1.pt"
    path.write_bytes(b"anything else")
    with pytest.raises(ValueError, match="was not loaded"):
        checked_bytes(path)
