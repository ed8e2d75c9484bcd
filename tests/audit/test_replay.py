"""Replay bites: each broken method is caught, the sound one is not, and an idle pair does not count as a proof."""

from __future__ import annotations

import pytest

from broken_methods import BROKEN_METHODS, ControlMethod, GroupControlMethod
from sfumato.audit.replay import participants, replay
from sfumato.privacy import Budget
from worst_case import worst_case_images

BUDGET = Budget(3.0, 1e-5)
RULES = {
    "two clips for one entry": {"movement"},
    "the real batch size as divisor": {"same release"},
    "skipped empty batches": {"same queries"},
    "centring by the private mean": {"movement"},
    "early stopping on a private loss": {"same queries"},
    "an unlisted query": {"refused"},
    "no clip": {"movement"},
    "an N-dependent rate": {"same ledger"},
    "a step charged after its noise": {"charge first"},
    "shuffled batches": {"movement"},
    "an encoder fitted on the shard": {"movement"},
    "an un-noised aggregate": {"movement"},
    "randomised response on projections": {"same release"},
    "halved noise": {"noise"},
    "batch normalisation": {"refused"},
    "un-noised momentum": {"same release"},
    "one clip for a group's vector": {"movement"},
    "groups cut in order": {"movement"},
}
# These move no sum and no release; listening to the noise is what finds them.
SILENT = {"seeded noise", "answers left in floating point"}
# A function sees one row, so that there is nothing to find.
KEPT_APART = {"a loss that mixes the batch", "private state read across records"}


def mistake(method: type[ControlMethod]) -> str:
    return (method.__doc__ or "").strip()


@pytest.mark.parametrize("rule", sorted(set().union(*RULES.values())))
def test_every_broken_method_is_caught_by_the_rule_it_breaks(rule: str) -> None:
    broken = [method for method in BROKEN_METHODS if rule in RULES.get(mistake(method), ())]
    for method in broken:
        result = replay(method.small(), worst_case_images(12, size=8), budget=BUDGET, pairs=8)
        assert rule in {finding.rule for finding in result.findings}, mistake(method)


def test_every_mistake_has_a_rule_or_is_silent_or_is_kept_apart() -> None:
    assert {mistake(method) for method in BROKEN_METHODS} == RULES.keys() | SILENT | KEPT_APART


def test_rows_that_would_mix_are_kept_apart() -> None:
    for method in [method for method in BROKEN_METHODS if mistake(method) in KEPT_APART]:
        result = replay(method.small(), worst_case_images(12, size=8), budget=BUDGET, pairs=8)
        assert result.findings == [] and max(result.movement.values()) <= 1.0, mistake(method)


@pytest.mark.parametrize("sound", [ControlMethod, GroupControlMethod])
def test_the_control_methods_are_not(sound: type[ControlMethod]) -> None:
    result = replay(sound.small(), worst_case_images(size=8), budget=BUDGET, pairs=24)
    assert result.findings == [] and result.pairs == 24
    assert result.vacuous() == []


def test_idle_pairs_are_vacuous() -> None:
    """Without a unit that reaches the clip nothing was shown, and that is said."""
    method = ControlMethod(clip_norm=1e6, steps=1, sampling_rate=1.0)
    result = replay(method, worst_case_images(12, size=8), budget=BUDGET, units=[0, 8, 9, 11])
    assert result.findings == [] and result.vacuous() == ["train / gradient"]


def test_the_removed_units_coin_comes_up_in_every_pair() -> None:
    private = worst_case_images(size=8)
    chosen = participants(ControlMethod(sampling_rate=0.1, steps=3), private, BUDGET, seed=0)
    assert 0 < len(chosen) < 40


def test_a_release_that_cannot_be_sampled_in_a_fresh_process_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*given: object) -> list[str]:
        raise RuntimeError("the release cannot be loaded")

    monkeypatch.setattr("sfumato.audit.replay.fresh_samples", failing)
    found = replay(ControlMethod(), worst_case_images(), budget=BUDGET, pairs=1, fresh_process=True)
    assert [str(one) for one in found.findings if "fresh process" in str(one) and "RuntimeError" in str(one)]
