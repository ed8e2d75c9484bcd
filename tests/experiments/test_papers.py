"""The papers' entries are complete, name what exists, and state the ε that hold."""

from __future__ import annotations

import pytest

from sfumato.evaluation.protocols import PROTOCOLS
from sfumato.experiments.datasets import datasets
from sfumato.experiments.entries import SCALES, Entry, Scale, papers, small
from sfumato.experiments.entries import find as find_entry
from sfumato.experiments.measures import MEASURES, PROTOCOL
from sfumato.experiments.reproduction import COMPUTATIONS
from sfumato.experiments.spec import from_table
from sfumato.methods import METHODS, DPLFlow, find
from sfumato.privacy import Budget, BudgetExceeded

ENTRIES = [(paper, entry) for paper in papers().values() for entry in paper.entries.values()]


def test_every_table_and_figure_with_numbers_is_there() -> None:
    wanted = {
        "dp2-vae": {"table-1", "table-2", "figure-4", "figure-5", "figure-7", "figure-8", "figure-9"},
        "privae": {"table-1", "figure-1", "figure-2"},
        "dp-lflow": {*(f"table-{number}" for number in range(1, 5)), "figure-1", "figure-5", "figure-6"},
        "dpaf": {f"table-{number}" for number in range(1, 18)},
        "dppm": {*(f"table-{number}" for number in range(1, 5)), "figure-3"},
    }
    assert {key: set(paper.entries) for key, paper in papers().items()} == wanted
    assert len(ENTRIES) == 39


def test_an_entry_names_what_exists() -> None:
    for _, entry in ENTRIES:
        assert entry.protocol in PROTOCOLS
        assert set(entry.datasets) <= set(datasets())
        assert set(entry.measures) <= {PROTOCOL, *MEASURES}
        assert entry.computation in {"", *COMPUTATIONS}
        assert len({setting.name for setting in entry.settings}) == len(entry.settings)
        for setting in entry.settings:
            for key in (*setting.parameters_on, *setting.sampling_on):
                assert key in datasets(), key
            assert not setting.public or setting.public in datasets()
            claimed = {f"{case.epsilon:g}" for case in entry.cases}
            assert set(setting.budgets) <= claimed and set(setting.parameters_at) <= claimed
            assert not (setting.missing and setting.method)


def test_an_entry_configures_its_methods() -> None:
    """A parameter that a method does not have, or does not allow, is found here and not after an hour of training."""
    for scale in SCALES:
        for _, entry in ENTRIES:
            for case, _, setting in entry.rows():
                if setting.method in METHODS and not entry.computation:
                    method = Scale.of(scale, entry).method(setting, case)
                    drawn = {**method.parameters(), **setting.sampled_on(case)}
                    assert type(method).configured(drawn).variant == method.variant


def test_every_substitute_and_short_parameter_exists() -> None:
    for found in datasets().values():
        assert not found.substitute or not datasets()[found.substitute].substitute
    for kind in (small().most, small().instead):
        for name, parameters in kind.items():
            if name in METHODS:
                assert set(parameters) <= set(find(name)().parameters())


def test_the_epsilon_that_holds_follows_from_the_published_noise() -> None:
    """A paper without an ε that holds needs the raw records; the others' ε are those of their published variants."""
    for key in papers():
        paper = papers()[key]
        if key not in METHODS:
            continue
        assert (f"{key}-published" in METHODS) == (not paper.holds)
        for claimed, holds in paper.holds.items():
            method = find(key).as_in_the_paper(claimed_epsilon=float(claimed))
            assert method.plan(Budget(1.01 * holds, 1e-5)).epsilon == pytest.approx(holds, abs=0.0051)
            with pytest.raises(BudgetExceeded):
                method.plan(Budget(0.97 * holds, 1e-5))
        assert paper.epsilon_that_holds(0.123) is None


def test_the_authors_settings_are_the_method_s_own() -> None:
    start = papers()["dp-lflow"].presets["authors"]
    assert DPLFlow.configured({"variant": "published", **start}) == DPLFlow.as_in_the_paper()


def test_a_near_miss_is_named() -> None:
    with pytest.raises(LookupError, match="did you mean 'table-1'"):
        find_entry("dp-lflow", "tabel-1")
    with pytest.raises(LookupError, match="did you mean 'dp-lflow'"):
        find_entry("dp-flow", "table-1")
    with pytest.raises(ValueError, match=r"no 'protocoll'; did you mean 'protocol'"):
        from_table(Entry, {"protocoll": "sinkhorn"}, "here")
