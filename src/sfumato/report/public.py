"""The public page: a release's card, its guarantee as odds, samples of every class. Made from the release alone."""

from __future__ import annotations

from html import escape

import numpy as np

from sfumato.release import Release
from sfumato.release.card_page import card_page
from sfumato.release.image_grid import data_address, grid
from sfumato.report import chart
from sfumato.report.odds import meaning

EACH = 10
CLASSES_AT_MOST = 50

_STYLE = """
.strip { display: grid; grid-template-columns: auto 1fr; gap: .25rem .75rem; align-items: center;
  font: .88rem/1.3 system-ui, sans-serif; break-inside: avoid; }
.strip b { font-weight: normal; overflow-wrap: anywhere; text-align: right; max-width: 7rem; min-width: 1.25rem; }
.strip img { display: block; width: 100%; max-width: 40rem; border: 0; }
table.odds { max-width: 32rem; }
table.odds td { font-variant-numeric: tabular-nums; }
"""


def public_page(release: Release) -> str:
    """The whole page. The same release always gives the same page: the samples come from a fixed seed."""
    style = f"{chart.STYLE}{_STYLE}"
    return card_page(release.card, _strips(release), meaning=meaning(release.card), style=style)


def sample_rows(release: Release, *, each: int) -> str:
    """One picture with a row of ``each`` samples for every class, as a ``data:`` address."""
    labels = np.repeat(np.arange(len(release.classes[:CLASSES_AT_MOST])), each)
    images = release.sample(len(labels), labels=labels, seed=1, device="cpu").images
    return data_address(grid(images, columns=each, scale=max(1, 32 // images.shape[-1])))


def _strips(release: Release) -> str:
    shown = release.classes[:CLASSES_AT_MOST]
    labels = np.repeat(np.arange(len(shown)), EACH)
    images = release.sample(len(labels), labels=labels, seed=1, device="cpu").images
    rows = []
    for number, name in enumerate(shown):
        part = images[number * EACH : (number + 1) * EACH]
        picture = data_address(grid(part, columns=EACH, scale=max(1, 56 // part.shape[-1])))
        rows.append(f'<b>{escape(name)}</b><img src="{picture}" alt="Synthetic samples of class {escape(name)}">')
    left_out = "" if len(shown) == len(release.classes) else " The first classes are shown."
    return (
        f'<div class="strip">{"".join(rows)}</div><p class="note">A row for each class, drawn from the release and not '
        f"from the collection.{left_out}</p>"
    )
