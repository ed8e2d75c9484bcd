"""Every kind of awkward unit is planted, and the search finds units that move more than ordinary ones."""

from __future__ import annotations

import numpy as np
import pytest

from broken_methods import ControlMethod, TwoClips
from sfumato.audit.replay import replay
from sfumato.audit.worst_case import KINDS, planted, rows_of, search, sweep, worst_case_images
from sfumato.methods import DPMERF
from sfumato.privacy import Budget, PrivateRecords

BUDGET = Budget(3.0, 1e-5)


@pytest.mark.parametrize("unit", ["image", pytest.param("person", marks=pytest.mark.long)])
def test_nothing_is_found_in_a_certified_method(unit: str) -> None:
    private = worst_case_images(24, persons=unit == "person")
    found = sweep(DPMERF.small(), private, budget=Budget(3.0, 1e-5, unit=unit), pairs=3, tries=3)  # type: ignore[arg-type]
    assert not found.total.flagged and found.total.vacuous() == []
    assert {name: result.pairs for name, result in found.kinds.items()} == dict.fromkeys((*KINDS, "search"), 3)


@pytest.mark.long
def test_two_clips_are_found_by_almost_any_unit() -> None:
    found = sweep(TwoClips.small(), worst_case_images(24, size=8), budget=BUDGET, pairs=2, tries=2)
    assert found.total.flagged and found.total.movement["train / gradient"] == pytest.approx(2**0.5, rel=1e-3)
    assert "movement" not in {finding.rule for finding in found.kinds["not a number"].findings}


def test_the_search_climbs_where_ordinary_units_stay_low() -> None:
    pixels = 0.5 + 0.01 * np.random.default_rng(0).random((12, 1, 4, 4), dtype=np.float32)
    private = PrivateRecords(pixels)
    method = ControlMethod(clip_norm=1e4, sampling_rate=1.0, steps=1)
    ordinary = replay(method, private, budget=BUDGET, pairs=3).movement["train / gradient"]
    best = search(method, private, budget=BUDGET, unit=0, tries=12).movement["train / gradient"]
    assert 100 * ordinary < best <= 1 + 1e-6


def test_planting_turns_whole_persons_and_nobody_else() -> None:
    private = worst_case_images(24, size=8, persons=True)
    turned = planted(private, "white", [13], unit="person")
    rows = rows_of(private, 13, "person")
    assert len(rows) == 3 and (turned._pixels[rows] == 1).all()
    kept = np.setdiff1d(np.arange(len(private._labels)), rows)
    assert np.array_equal(turned._pixels[kept], private._pixels[kept], equal_nan=True)


def test_a_rare_class_has_one_member() -> None:
    turned = planted(worst_case_images(24, size=8), "rare class", [20])
    assert np.flatnonzero(turned._labels == 3).tolist() == [20]


def test_a_duplicate_copies_an_ordinary_image() -> None:
    private = worst_case_images(size=8)
    copy = planted(private, "duplicate", list(range(5)))  # the next one is NaN
    assert np.isfinite(copy._pixels[:5]).all() and np.abs(copy._pixels[:5]).max() <= 1
