"""What a result file with a format of its own sums up follows from the rows in the same file.

Pages print the summaries; a summary that was changed together with its page is found by the rows behind it.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("engine-cpu*.json")))
def test_a_ratio_is_that_to_the_plain_step_of_the_same_case(name: str) -> None:
    rows = [row for row in load(name)["rows"] if "milliseconds" in row]
    plain = {(row["case"], row["units"], row["draws"]): row for row in rows if row["contender"] == "plain"}
    jax = {(row["case"], row["units"], row["draws"]): row for row in rows if row["contender"] == "jax plain"}
    assert plain
    for row in rows:
        key = row["case"], row["units"], row["draws"]
        assert row["ratio"] == pytest.approx(row["milliseconds"] / plain[key]["milliseconds"]), row["contender"]
        assert row["rows_per_second"] == pytest.approx(1e3 * row["units"] * row["draws"] / row["milliseconds"])
        if "peak_ratio" in row:
            assert row["peak_ratio"] == pytest.approx(row["peak_mb"] / plain[key]["peak_mb"]), row["contender"]
        if "jax_ratio" in row:
            assert row["jax_ratio"] == pytest.approx(row["milliseconds"] / jax[key]["milliseconds"])


def test_the_outcomes_of_kills_are_those_of_the_trials() -> None:
    found = load("kills")
    trials = found["trials"]
    assert found["kills"] == len(trials)
    assert found["killed after noise was drawn"] == sum(one["drawn"] > 0 for one in trials)
    assert found["variants"] == len({(one["method"], one["variant"]) for one in trials})
    assert found["unsound"] == sum(bool(one["unsound"]) for one in trials)
    assert all(one["charged"] >= one["drawn"] for one in trials if not one["unsound"])
    for which, outcomes in found["outcomes"].items():
        assert Counter(one["outcomes"][which] for one in trials) == outcomes


def test_a_killed_group_of_processes_passed_if_every_check_did() -> None:
    found = load("killed-ranks")
    assert found["kills"] == len(found["runs"]) and found["passed"] == sum(run["passed"] for run in found["runs"])
    assert all(run["passed"] == all(run["checks"].values()) for run in found["runs"])


def test_the_speed_of_processes_and_of_reading_follows_from_the_seconds() -> None:
    training = load("scale")["training"]
    seconds = {name: statistics.median(rounds) for name, rounds in training["rounds"].items()}
    assert training["seconds_per_step"] == pytest.approx(seconds)
    assert training["speed_up"] == pytest.approx(seconds["one"] / seconds["two"])
    assert training["speed_up_of_the_machine"] == pytest.approx(2 * seconds["one"] / seconds["apart"])
    for name in ("reading-1m", "reading-10m"):
        found = load(name)
        for kind in ("png", "raw"):
            assert found[kind]["images_per_second"] == pytest.approx(found[kind]["images"] / found[kind]["seconds"])
            parts = found[kind]["parts_kept_after_the_kill"] + found[kind]["parts_decoded_after_the_kill"]
            assert parts == found[kind]["parts"]
        batches = found["batches"]
        assert batches["ratio"] == pytest.approx(batches["seconds_many"] / batches["seconds_few"])


def test_the_number_of_caught_defects_is_counted() -> None:
    chosen, random = load("mutants-chosen"), load("mutants-random")
    assert chosen["chosen"] == len(chosen["mutants"])
    assert chosen["caught"] == sum(one["result"] == "caught" for one in chosen["mutants"])
    assert random["drawn"] == random["run"] == len(random["mutants"])
    assert random["caught"] == sum(one["caught"] for one in random["mutants"])


def test_a_rerun_agrees_if_no_more_values_are_outside_than_chance_explains() -> None:
    for one in load("reruns")["drawn"]:
        assert one["agrees"] == (len(one["outside"]) <= one["allowed_outside"]), one["result"]
        assert all(len(value["again"]) == one["runs"] for value in one["outside"])


def test_the_slowdown_beside_the_local_page_is_the_median_of_the_rounds() -> None:
    load_ = load("web")["load"]
    rounds = zip(load_["steps_per_second_quiet"], load_["steps_per_second_busy"], strict=True)
    assert load_["ratios"] == pytest.approx([quiet / busy for quiet, busy in rounds])
    assert load_["ratio"] == pytest.approx(statistics.median(load_["ratios"]))
