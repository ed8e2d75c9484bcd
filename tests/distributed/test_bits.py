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
