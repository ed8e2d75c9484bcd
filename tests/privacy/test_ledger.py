"""A ledger refuses before it is overspent, notices edits and cuts, and has one writer."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.privacy import (
    Block,
    Budget,
    BudgetExceeded,
    Ledger,
    LedgerBusy,
    LedgerDamaged,
    NoGuarantee,
    SubsampledGaussian,
)
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.events import RawAccess

BUDGET = Budget(2.0, 1e-5)
EVENT = SubsampledGaussian("train", (Block("gradient", 4.0),), sampling_rate=0.1, steps=20)


def spend(ledger: Ledger, event: SubsampledGaussian = EVENT) -> str:
    run = ledger.start_run(method="m", variant="v", seeded=False)
    ledger.reserve(run, [event])
    for _ in range(event.steps):
        ledger.charge(run, event.times(1))
    return run


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l", BUDGET) as ledger:
        run = spend(ledger)
        spent, head = ledger.spent(), ledger.head
    again = Ledger.read(tmp_path / "l")
    assert again.events(run) == (EVENT,)
    assert again.spent() == spent > 0
    assert again.head == head
    assert again.charged_steps(run, "train") == 20
    assert len(list(tmp_path.iterdir())) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_what_costs_exactly_the_limit_is_accepted() -> None:
    ledger = Ledger(None, Budget(epsilon([EVENT], 1e-5), 1e-5))
    spend(ledger)
    assert ledger.spent() == ledger.limit.epsilon
    with pytest.raises(BudgetExceeded):
        ledger.reserve("run", [EVENT.times(1)])


def test_refuses_before_the_spend_and_keeps_going(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l", BUDGET) as ledger:
        spend(ledger)
        before = ledger.head
        with pytest.raises(BudgetExceeded, match="refused"):
            ledger.reserve("run", [EVENT.times(5000)])
        with pytest.raises(BudgetExceeded, match="no reservation"):
            ledger.charge("run", EVENT.times(1))
        assert ledger.head == before
        spend(ledger)


def test_a_reservation_counts_until_the_ledger_is_closed(tmp_path: Path) -> None:
    half = SubsampledGaussian("half", (Block("sum", 2.5),))
    with Ledger(tmp_path / "l", BUDGET) as ledger:
        ledger.reserve("run", [half])
        with pytest.raises(BudgetExceeded):
            ledger.reserve("run", [half])
    with Ledger(tmp_path / "l", BUDGET) as ledger:
        ledger.reserve("run", [half])


def test_raw_access_only_where_nothing_is_promised(tmp_path: Path) -> None:
    raw = RawAccess("records", "as published")
    with Ledger(tmp_path / "l", BUDGET) as ledger, pytest.raises(BudgetExceeded, match="∞"):
        ledger.note_raw_access("run", raw)
    with Ledger(tmp_path / "open", NoGuarantee()) as ledger:
        ledger.note_raw_access("run", raw)
        assert ledger.spent() == float("inf")
    assert Ledger.read(tmp_path / "open").spent() == float("inf")


def test_an_edited_line_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path, BUDGET) as ledger:
        spend(ledger)
    whole = path.read_text().splitlines()
    for line in (0, 1, 5, 21):
        lines = whole.copy()
        lines[line] = lines[line].replace("4.0", "9.0").replace('"method": "m"', '"method": "n"').replace("2.0", "3.0")
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(LedgerDamaged, match="edited"):
            Ledger.read(path)


def test_a_cut_tail_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path, BUDGET) as ledger:
        spend(ledger)
    lines = path.read_text().splitlines()
    for keep in (0, 1, 3, 21):
        path.write_text("".join(line + "\n" for line in lines[:keep]))
        for opening in (lambda: Ledger.read(path), lambda: Ledger(path, BUDGET)):
            with pytest.raises(LedgerDamaged):
                opening()


def test_a_removed_head_is_seen_and_a_release_remembers_one(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path, BUDGET) as ledger:
        spend(ledger)
        head = ledger.head
    assert Ledger.read(path).holds(*head)
    assert not Ledger.read(path).holds(head[0], "0" * 64)
    (tmp_path / "l.head").unlink()
    with pytest.raises(LedgerDamaged, match="head"):
        Ledger.read(path)


def test_a_line_cut_short_by_a_crash_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path, BUDGET) as ledger:
        spend(ledger)
        spent = ledger.spent()
    with open(path, "a") as file:
        file.write('{"kind": "charge", "run"')
    with Ledger(path, BUDGET) as ledger:
        assert ledger.spent() == spent
        spend(ledger)
    assert Ledger.read(path).spent() > spent


def test_a_crash_between_entry_and_head_keeps_the_charge(tmp_path: Path) -> None:
    path = tmp_path / "l"
    with Ledger(path, BUDGET) as ledger:
        run = spend(ledger, EVENT.times(2))
        head = (tmp_path / "l.head").read_text()
        ledger.reserve(run, [EVENT.times(1)])
        ledger.charge(run, EVENT.times(1))
    (tmp_path / "l.head").write_text(head)
    assert Ledger.read(path).charged_steps(run, "train") == 3


def test_something_else_is_not_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "l").write_text("hello\n")
    with pytest.raises(LedgerDamaged):
        Ledger(tmp_path / "l", BUDGET)
    with pytest.raises(FileNotFoundError):
        Ledger.read(tmp_path / "absent")
    with pytest.raises(ValueError, match="limit"):
        Ledger(tmp_path / "new")


RACE = """
import sys, time
from sfumato.privacy import *
event = SubsampledGaussian("sum", (Block("sum", 2.5),))
try:
    with Ledger(sys.argv[1], Budget(2.0, 1e-5)) as ledger:
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.reserve(run, [event])
        print("reserved", flush=True)
        sys.stdin.readline()
        ledger.charge(run, event)
        print("spent", flush=True)
except (BudgetExceeded, LedgerBusy) as error:
    print("refused", type(error).__name__, flush=True)
"""


@pytest.mark.long
def test_two_processes_on_one_nearly_spent_ledger(tmp_path: Path) -> None:
    """While one is at it the other is refused by the lock, and afterwards by the budget."""
    path = str(tmp_path / "l")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-c", RACE, path], **pipes)
    assert first.stdout is not None and first.stdin is not None
    assert first.stdout.readline() == "reserved\n"
    second = subprocess.run([sys.executable, "-c", RACE, path], capture_output=True, text=True, input="\n")
    assert second.stdout == "refused LedgerBusy\n"
    first.stdin.write("\n")
    first.stdin.close()
    assert first.stdout.read() == "spent\n"
    first.wait()
    third = subprocess.run([sys.executable, "-c", RACE, path], capture_output=True, text=True, input="\n")
    assert third.stdout == "refused BudgetExceeded\n"
    assert Ledger.read(path).spent() <= 2.0


def test_one_writer_within_a_process_too(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l", BUDGET), pytest.raises(LedgerBusy, match="one writer"):
        Ledger(tmp_path / "l", BUDGET)
    lines = (tmp_path / "l").read_text().splitlines()
    assert json.loads(lines[0])["kind"] == "ledger"


def test_a_full_disk_is_told_with_the_name_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path / "spending", BUDGET) as ledger:

        def full(descriptor: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="spending"):
            ledger.start_run(method="m", variant="v", seeded=False)


def test_an_entry_is_forced_to_the_disk_before_the_charge_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that loses power after the noise was drawn must not lose the charge."""
    forced: list[tuple[str, int]] = []
    real = os.fsync

    def watched(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        forced.append((path, os.fstat(descriptor).st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    path = tmp_path / "run" / "l"
    with Ledger(path, BUDGET) as ledger:
        folders = {name for name, _ in forced}
        assert {str(path.parent), str(tmp_path)} <= folders, "without its folder a new file is lost with the power"
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.reserve(run, [EVENT])
        for _ in range(3):
            forced.clear()
            ledger.charge(run, EVENT.times(1))
            assert (str(path), path.stat().st_size) in forced
