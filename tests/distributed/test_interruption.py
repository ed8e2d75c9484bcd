"""A process that is killed ends all of them; what was charged stays, and fewer processes go on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from distributed.processes import finish, start
from sfumato.methods.registry import load
from sfumato.privacy import Ledger
from sfumato.privacy.distributed import RankLost, World

STEPS = 60  # many are left when the kill comes late on a machine that does much else


def command(data: Path, out: Path, *, resume: bool = False) -> list[str]:
    method = ["--method", "dp-vae", "--set", f"steps={STEPS}", "--set", "width=8"]
    budget = ["--epsilon", "3", "--delta", "1e-5", "--classes", "2", "--declared-size", "400", "--device", "cpu"]
    return ["-m", "sfumato", "train", str(data), *method, *budget, "--out", str(out), *["--resume"] * resume]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    np.savez(path, images=rng.integers(0, 256, (400, 28, 28), dtype=np.uint8), labels=np.arange(400) % 2)
    return path


def charged(ledger: Path) -> int:
    return len(ledger.read_text().splitlines()) if ledger.exists() else 0


def wait_for_charges(processes: list[subprocess.Popen[str]], ledger: Path, count: int) -> None:
    while charged(ledger) < count and all(process.poll() is None for process in processes):
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("moment", [4, 11, 25])
def test_a_killed_process_ends_the_others_and_fewer_go_on(moment: int, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ledger = out / "ledger.jsonl"
    processes = start(command(data, out), 3)
    wait_for_charges(processes, ledger, moment)
    victim = processes[random.Random(moment).randrange(3)]
    victim.send_signal(signal.SIGKILL)
    ended = finish(processes)
    assert all(status != 0 for status, _ in ended)
    survivors = [text for (_, text), process in zip(ended, processes, strict=True) if process is not victim]
    assert all("another process of this run has ended" in text for text in survivors)
    before = Ledger.read(ledger)
    assert before.events()
    for status, text in finish(start(command(data, out, resume=True), 2)):
        assert status == 0, text
    after = Ledger.read(ledger)
    assert after.holds(*before.head)
    release = load(out / "release")
    assert release.card.guarantee == "certified" and release.card.epsilon <= 3.0
    assert sum(event.steps for event in release.card.events if event.name == "training") == STEPS


def test_what_one_process_cannot_read_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"PK\x03\x04 and no more")
    (first, said), (second, lost) = finish(start(command(tmp_path / "data.npz", tmp_path / "run"), 2))
    assert first != 0 and "the npz file is damaged" in said
    assert second != 0 and "another process of this run has ended" in lost


class Told(World):
    """A second process of two, to which the first one says this."""

    def __init__(self, message: dict[str, object]) -> None:
        super().__init__(1, 2)
        self.message = json.dumps(message).encode()

    def broadcast(self, content: bytes) -> bytes:
        return self.message


def test_only_the_first_process_makes_what_all_of_them_get() -> None:
    def make() -> object:
        raise AssertionError("called in the second process")

    assert Told({"value": {"run": 3}}).from_first(make) == {"run": 3}
    with pytest.raises(RankLost, match="LedgerBusy"):
        Told({"error": "LedgerBusy"}).from_first(make)
