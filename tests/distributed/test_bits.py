"""Any number of processes gives the bits of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributed.processes import run_task


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("one-method", (2,)),
        pytest.param("small-cases", (4,), marks=pytest.mark.long),
        pytest.param("features", (3,), marks=pytest.mark.long),
        pytest.param("every-method", (2, 3, 4), marks=pytest.mark.long),
    ],
)
def test_the_release_does_not_depend_on_the_number_of_processes(
    task: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    (alone,) = run_task(task, 1, tmp_path / "1")
    assert len(set(alone.values())) == len(alone)  # other methods and other records, other bits
    for size in sizes:
        for found in run_task(task, size, tmp_path / str(size)):
            assert {name for name in alone if found[name] != alone[name]} == set()


def test_processes_wait_for_one_that_reads_for_long(tmp_path: Path) -> None:
    assert [found["made"] for found in run_task("in-turn", 2, tmp_path / "two")] == ["made by 0", "made by 1"]


@pytest.mark.long
def test_replay_and_exactness_of_two_processes_find_nothing(tmp_path: Path) -> None:
    first, second = run_task("audit", 2, tmp_path / "two")
    assert first["pairs"] == 3 and first["findings"] == []
    assert 0.9 < max(first["movement"].values()) <= 1 + 1e-6
    assert first["wrong movements"] == second["wrong movements"] == []


@pytest.mark.long
def test_two_processes_write_two_files_and_one_card(tmp_path: Path) -> None:
    for found in run_task("sampling", 2, tmp_path / "two"):
        names = ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
        assert found["files"] == ["card.json", *names] and found["card"]
        assert found["labels"] == [0] * 6 + [1] * 5
        assert found["different images"] == 11  # equal seeds would draw the same images twice
