"""What catches which mistake: the committed matrix is what the checks do, and the page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import detection_matrix
from broken_methods import MISTAKES, ControlMethod
from detection_matrix import (
    CONTROL,
    KEPT_APART,
    NOT_CAUGHT,
    REFUSED_BY_TORCH,
    Detection,
    audited_methods,
    detect,
    markdown_table,
)
from sfumato.audit.worst_case import worst_case_images
from sfumato.experiments.results import current_commit
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


def refused_by(kind: type[ControlMethod]) -> str:
    try:
        kind.small().fit(worst_case_images(72, size=8), BUDGET, seed=0, device="cpu")
    except UnsupportedModel as refusal:
        return "torch.func.vmap" if any(text in str(refusal) for text in REFUSED_BY_TORCH) else "isolation"
    return "nothing"


def of(check: str) -> list[Detection]:
    found = [one for one in MATRIX if one.caught_by == check]
    assert found
    return found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a refusal ends a loss's thread
@pytest.mark.parametrize("form", [pytest.param("direct", marks=pytest.mark.long), "in a helper"])
@pytest.mark.parametrize("check", ["torch.func.vmap", "isolation"])
def test_functions_that_let_values_out_are_refused(check: str, form: str) -> None:
    found = {one.mistake: refused_by(METHODS[one.mistake, form]) for one in of(check) if one.form == form}
    assert {mistake: by for mistake, by in found.items() if by != check} == {}


@pytest.mark.long
def test_rows_that_would_mix_are_kept_apart() -> None:
    for one in of(KEPT_APART)[::11]:
        found = detect(one.mistake, one.form, METHODS[one.mistake, one.form], budget=BUDGET, pairs=3)
        assert found.caught_by == KEPT_APART, (one.mistake, one.form)


@pytest.mark.long
def test_replay_finds_what_it_should() -> None:
    """Every fourth one; ``test_replay.py`` has one for every rule."""
    for one in of("replay")[::4]:
        found = detect(one.mistake, one.form, METHODS[one.mistake, one.form], budget=BUDGET, pairs=8)
        assert found.caught_by == "replay", (one.mistake, one.form)


@pytest.mark.long
def test_control_methods_pass() -> None:
    for kind in [kind for (_, form), kind in METHODS.items() if form == CONTROL][:4]:
        assert detect("none", CONTROL, kind, budget=BUDGET, pairs=3).caught_by == NOT_CAUGHT, kind


def test_the_written_matrix_names_its_command_and_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Detection("no mistake", CONTROL, NOT_CAUGHT, ())
    monkeypatch.setattr(detection_matrix, "detection_matrix", lambda **_: iter([one]))
    assert detection_matrix.main(["--pairs", "2", "--out", str(tmp_path / "matrix.json")]) == 0
    written = json.loads((tmp_path / "matrix.json").read_text())
    assert [one.from_json(row) for row in written["methods"]] == [one]
    assert written["command"] == "python tests/detection_matrix.py --pairs 2 --epsilon 3 --delta 1e-05"
    assert written["commit"] == current_commit()
