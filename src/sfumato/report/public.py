"""The public page: a release's card, its guarantee in probabilities, samples of every class; nothing else is read."""

from __future__ import annotations

import numpy as np

from sfumato.release import Release
from sfumato.release.card_page import render_card
from sfumato.release.image_grid import data_address, grid
from sfumato.report.probabilities import attack_bounds
from sfumato.report.watermark import TEMPLATES

EACH = 10
CLASSES_AT_MOST = 50


def public_page(release: Release) -> str:
    """The whole page. The same release always gives the same page: the samples come from a fixed seed."""
    card = release.card
    return render_card(
        "public.html.jinja", card, folders=(TEMPLATES,), attack=attack_bounds(card), strips=_strips(release)
    )


def sample_rows(release: Release, *, each: int) -> str:
    """One picture with a row of ``each`` samples for every class, as a ``data:`` address."""
    images = _samples(release, each)
    return data_address(grid(images, columns=each, scale=max(1, 32 // images.shape[-1])))


def _strips(release: Release) -> list[tuple[str, str]]:
    images = _samples(release, EACH)
    scale = max(1, 56 // images.shape[-1])
    parts = images.reshape(-1, EACH, *images.shape[1:])
    pictures = (data_address(grid(part, columns=EACH, scale=scale)) for part in parts)
    return list(zip(release.classes, pictures, strict=False))


def _samples(release: Release, each: int) -> np.ndarray:
    labels = np.repeat(np.arange(len(release.classes[:CLASSES_AT_MOST])), each)
    return release.sample(len(labels), labels=labels, seed=1, device="cpu").images
