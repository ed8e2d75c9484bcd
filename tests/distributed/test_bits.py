"""Any number of processes gives the bits of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conformance.test_methods import CERTIFIED, budget_for
from distributed.processes import run_task
from sfumato.methods import find
from sfumato.privacy import PrivateRecords
from sfumato.privacy.distributed import World


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "size"),
    [("small-cases", 4), ("every-method", 3)],
)
def test_the_release_does_not_depend_on_the_number_of_processes(task: str, size: int, tmp_path: Path) -> None:
    (alone,) = run_task(task, 1, tmp_path / "1")
    assert len(set(alone.values())) == len(alone)  # other methods and other records, other bits
    for found in run_task(task, size, tmp_path / str(size)):
        assert {name for name in alone if found[name] != alone[name]} == set()


@pytest.mark.long
def test_processes_wait_for_one_that_reads_for_long(tmp_path: Path) -> None:
    assert [found["made"] for found in run_task("in-turn", 2, tmp_path / "two")] == ["made by 0", "made by 1"]


@pytest.mark.long
def test_replay_and_exactness_of_two_processes_find_nothing(tmp_path: Path) -> None:
    first, second = run_task("audit", 2, tmp_path / "two")
    for found in (first["dp-vae"], first["dp2-vae"]):
        assert found["pairs"] == 3 and found["findings"] == []
        assert 0.9 < max(found["movement"].values()) <= 1 + 1e-6
    assert first["wrong movements"] == second["wrong movements"] == []


@pytest.mark.long
def test_private_state_goes_on_in_another_number_of_processes(tmp_path: Path) -> None:
    (alone,) = run_task("whole", 1, tmp_path / "uninterrupted" / "1")
    ended = run_task("interrupted", 3, tmp_path / "resumed" / "3")
    assert [found["ended"] for found in ended] == ["Killed", "RankLost", "RankLost"]
    assert run_task("whole", 2, tmp_path / "resumed" / "2") == [alone, alone]


@pytest.mark.parametrize(
    ("name", "variant"),
    [pytest.param(*case, marks=[] if case[0] == "dp-vae" else pytest.mark.long) for case in CERTIFIED],
)
def test_a_step_has_as_many_exchanges_whoever_is_in_it(
    name: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process more or less in an exchange is a hang: neither the coins nor the records may decide about it."""
    exchanges: list[tuple[torch.dtype, torch.Size]] = []
    all_reduce = World.all_reduce

    def counted(self: World, numbers: torch.Tensor) -> torch.Tensor:
        exchanges.append((numbers.dtype, numbers.shape))
        return all_reduce(self, numbers)

    monkeypatch.setattr(World, "all_reduce", counted)
    method, found = find(name).small(variant), []
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 28, 28), dtype=np.uint8)
    for count, seed in ((40, 0), (40, 1), (1, 0), (0, 0)):
        records = PrivateRecords(pixels[:count], np.arange(count) % 2, classes=("a", "b"))
        method.fit(records, budget_for(method), seed=seed, device="cpu")
        found.append(exchanges.copy())
        exchanges.clear()
    assert found[0] and found == [found[0]] * 4
