"""What a result file with a format of its own sums up follows from the rows in the same file.

Pages print the summaries; a summary that was changed together with its page is found by the rows behind it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from finding import ROOT, Finding, failed_claim
from pages import script

RESULTS = ROOT / "docs" / "results"


def equal(found: float, expected: float) -> bool:
    """Whether a stored number is the computed one."""
    return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-12)


def load(name: str) -> Any:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def engine(name: str) -> None:
    """A ratio is that to the plain step of the same case."""
    rows = [row for row in load(name)["rows"] if "milliseconds" in row]
    plain = {(row["case"], row["units"], row["draws"]): row for row in rows if row["contender"] == "plain"}
    jax = {(row["case"], row["units"], row["draws"]): row for row in rows if row["contender"] == "jax plain"}
    assert plain
    for row in rows:
        key = row["case"], row["units"], row["draws"]
        assert equal(row["ratio"], row["milliseconds"] / plain[key]["milliseconds"]), row["contender"]
        assert equal(row["rows_per_second"], 1e3 * row["units"] * row["draws"] / row["milliseconds"])
        if "peak_ratio" in row:
            assert equal(row["peak_ratio"], row["peak_mb"] / plain[key]["peak_mb"]), row["contender"]
        if "jax_ratio" in row:
            assert equal(row["jax_ratio"], row["milliseconds"] / jax[key]["milliseconds"])


def kills() -> None:
    """The outcomes are those of the trials."""
    found = load("kills")
    trials = found["trials"]
    assert found["kills"] == len(trials)
    assert found["killed after noise was drawn"] == sum(one["drawn"] > 0 for one in trials)
    assert found["variants"] == len({(one["method"], one["variant"]) for one in trials})
    assert found["unsound"] == sum(bool(one["unsound"]) for one in trials)
    assert all(one["charged"] >= one["drawn"] for one in trials if not one["unsound"])
    for which, outcomes in found["outcomes"].items():
        assert Counter(one["outcomes"][which] for one in trials) == outcomes


def killed_ranks() -> None:
    """A group of processes passed if every check did."""
    found = load("killed-ranks")
    assert found["kills"] == len(found["runs"]) and found["passed"] == sum(run["passed"] for run in found["runs"])
    assert all(run["passed"] == all(run["checks"].values()) for run in found["runs"])


def scale() -> None:
    """The speed of processes follows from the seconds."""
    training = load("scale")["training"]
    seconds = {name: statistics.median(rounds) for name, rounds in training["rounds"].items()}
    assert all(equal(training["seconds_per_step"][name], value) for name, value in seconds.items())
    assert equal(training["speed_up"], seconds["one"] / seconds["two"])
    assert equal(training["speed_up_of_the_machine"], 2 * seconds["one"] / seconds["apart"])


def mutants() -> None:
    """The number of caught defects is counted."""
    chosen, random = load("mutants-chosen"), load("mutants-random")
    assert chosen["chosen"] == len(chosen["mutants"])
    assert chosen["caught"] == sum(one["result"] == "caught" for one in chosen["mutants"])
    assert random["drawn"] == random["run"] == len(random["mutants"])
    assert random["caught"] == sum(one["caught"] for one in random["mutants"])


def reruns() -> None:
    """A rerun agrees if no more values are outside than chance explains."""
    for one in load("reruns")["drawn"]:
        assert one["agrees"] == (len(one["outside"]) <= one["allowed_outside"]), one["result"]
        assert all(len(value["again"]) == one["runs"] for value in one["outside"])


def web() -> None:
    """The slowdown beside the local page is the median of the rounds."""
    load_ = load("web")["load"]
    rounds = zip(load_["steps_per_second_quiet"], load_["steps_per_second_busy"], strict=True)
    assert all(equal(ratio, quiet / busy) for ratio, (quiet, busy) in zip(load_["ratios"], rounds, strict=True))
    assert equal(load_["ratio"], statistics.median(load_["ratios"]))


def expected_use() -> None:
    """The stored predictions are those of now, and mostly right."""
    module = script("docs/results/expected_use.py")
    rows = module.measured()
    assert load("expected-use")["rows"] == rows, "run python docs/results/expected_use.py"
    for kind in (module.OTHER_SETTINGS, module.OTHER_DATA):
        of_kind = [row for row in rows if row["kind"] == kind]
        assert sum(row["predicted_use"] == row["measured_use"] for row in of_kind) >= 0.75 * len(of_kind), kind


CLAIMS: dict[str, Callable[[], None]] = {
    "expected-use": expected_use,
    "killed-ranks": killed_ranks,
    "kills": kills,
    "mutants-chosen": mutants,
    "reruns": reruns,
    "scale": scale,
    "web": web,
}


def summaries() -> Iterator[Finding]:
    """Result files whose summary does not follow from their rows."""
    engines = {path.stem: lambda name=path.stem: engine(name) for path in RESULTS.glob("engine-cpu*.json")}
    for name, claim in {**CLAIMS, **engines}.items():
        yield from failed_claim(RESULTS / f"{name}.json", claim)
