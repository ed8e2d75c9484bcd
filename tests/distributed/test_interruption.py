"""A process that is killed ends all of them; what was charged stays, and fewer processes go on."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from distributed.processes import finish, start
from sfumato.methods.registry import load
from sfumato.privacy import Ledger
from sfumato.privacy.distributed import RankLost, World

STEPS = 12


def command(data: Path, out: Path, *, resume: bool = False) -> list[str]:
    method = ["--method", "dp-vae", "--set", f"steps={STEPS}", "--set", "width=8"]
    budget = ["--epsilon", "3", "--delta", "1e-5", "--classes", "2", "--declared-size", "400", "--device", "cpu"]
    return ["train", str(data), *method, *budget, "--out", str(out), *["--resume"] * resume]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    np.savez(path, images=rng.integers(0, 256, (400, 28, 28), dtype=np.uint8), labels=np.arange(400) % 2)
    return path


@pytest.mark.long
@pytest.mark.parametrize(("victim", "moment", "step"), [(0, "noise", 1), (1, "exchange", 4), (2, "noise", 10)])
def test_a_killed_process_ends_the_others_and_fewer_go_on(
    victim: int, moment: str, step: int, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ledger = out / "ledger.jsonl"
    killed = str(Path(__file__).with_name("killed.py"))
    ended = finish(start([killed, str(victim), moment, str(step), *command(data, out)], 3))
    assert ended[victim][0] == -signal.SIGKILL, ended[victim][1]
    for rank, (status, text) in enumerate(ended):
        assert rank == victim or (status > 0 and "another process of this run has ended" in text), text
    before = Ledger.read(ledger)
    assert before.events()
    for status, text in finish(start(["-m", "sfumato", *command(data, out, resume=True)], 2)):
        assert status == 0, text
    after = Ledger.read(ledger)
    assert after.holds(*before.head)
    release = load(out / "release")
    assert release.card.guarantee == "certified" and release.card.epsilon <= 3.0
    assert sum(event.steps for event in release.card.events if event.name == "training") == STEPS


@pytest.mark.long
def test_what_one_process_cannot_read_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(b"PK\x03\x04 and no more")
    (first, said), (second, lost) = finish(
        start(["-m", "sfumato", *command(tmp_path / "data.npz", tmp_path / "run")], 2)
    )
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
