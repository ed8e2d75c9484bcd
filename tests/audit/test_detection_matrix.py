"""What catches which mistake: the committed matrix is what the checks do, and the page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfumato.audit.broken_methods import MISTAKES, ControlMethod
from sfumato.audit.detection_matrix import (
    CONTROL,
    GUARDED,
    NOT_CAUGHT,
    Detection,
    audited_methods,
    detect,
    markdown_table,
)
from sfumato.audit.worst_case import worst_case_images
from sfumato.privacy import Budget
from sfumato.privacy.gradients import UnsupportedModel

BUDGET = Budget(3.0, 1e-5)
DOCS = Path(__file__).parents[2] / "docs"
MATRIX = [
    Detection.from_json(one) for one in json.loads((DOCS / "results" / "detection-matrix.json").read_text())["methods"]
]
METHODS = {(mistake, form): kind for mistake, form, kind in audited_methods()}
STEP_FUNCTIONS = {
    ("a number of steps from the size of the data", "direct"),
    ("a number of steps from the size of the data", "in a helper"),
    ("steps skipped when the batch has bad values", "in a helper"),
    ("statistics of the batch from 100 rows on", "in a helper"),
}
"""Not caught: a step function of a private number, which one removed record seldom moves across a step."""


def test_there_are_forty_mistakes_in_two_forms() -> None:
    assert len(MISTAKES) >= 40 and all(one.direct is not one.in_helper for one in MISTAKES)


def test_every_method_is_in_the_matrix() -> None:
    assert {(one.mistake, one.form) for one in MATRIX} == set(METHODS)


def test_what_is_not_caught_is_named() -> None:
    unexpected = {(one.mistake, one.form) for one in MATRIX if not one.expected}
    assert unexpected == STEP_FUNCTIONS


def test_the_page_shows_the_matrix() -> None:
    page = (DOCS / "results" / "audits.md").read_text()
    assert markdown_table([one for one in MATRIX if one.form != CONTROL]) in page


REFUSED = [(one, METHODS[one.mistake, one.form]) for one in MATRIX if one.caught_by in ("guard", "probe")]


@pytest.mark.parametrize(("expected", "kind"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_guard_and_probe_refuse_what_they_should(expected: Detection, kind: type[ControlMethod]) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        kind.small().fit(worst_case_images(72, size=8), BUDGET, seed=0, device="cpu")
    assert (GUARDED in str(refusal.value)) == (expected.caught_by == "guard")


REPLAYED = [one for one in MATRIX if one.caught_by == "replay"][::4]


@pytest.mark.parametrize("expected", REPLAYED, ids=lambda one: f"{one.mistake}, {one.form}")
def test_replay_finds_what_it_should(expected: Detection) -> None:
    kind = METHODS[expected.mistake, expected.form]
    found = detect(expected.mistake, expected.form, kind, budget=BUDGET, pairs=8)
    assert found.caught_by == "replay"


@pytest.mark.parametrize("kind", [kind for (_, form), kind in METHODS.items() if form == CONTROL][:4])
def test_control_methods_pass(kind: type[ControlMethod]) -> None:
    assert detect("none", CONTROL, kind, budget=BUDGET, pairs=3).caught_by == NOT_CAUGHT
