"""The commands of the documentation under ``torchrun``: on one machine, and on two that meet by rendezvous."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distributed.processes import environment, finish, free_port
from sfumato.methods.registry import load
from sfumato.privacy import Ledger

BUDGET = ["--epsilon", "3", "--classes", "2", "--declared-size", "400", "--device", "cpu"]
METHOD = ["--method", "dp-vae", "--set", "steps=4", "--set", "width=8"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for part, count in (("train", 200), ("test", 40)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"{part}.npz", images=pixels, labels=np.arange(count) % 2)
    return tmp_path / "train.npz"


def torchrun(*words: str) -> subprocess.Popen[str]:
    """An agent of ``torchrun`` that starts ``sfumato`` with these words behind its own options."""
    inherited = environment(0, 1, 0)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        del inherited[name]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env=inherited,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def two_processes(*words: str) -> None:
    agent = torchrun("--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "sfumato", *words)
    ((status, said),) = finish([agent])
    assert status == 0, said


@pytest.mark.long
def test_training_under_torchrun(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    two_processes("train", str(data), *METHOD, *BUDGET, "--out", str(run))
    card = load(run / "release").card
    assert card.certified and card.epsilon is not None and card.epsilon <= 3.0
    assert sum(event.steps for event in Ledger.read(run / "ledger.jsonl").events()) == 4


@pytest.mark.long
def test_two_machines_meet_and_train(data: Path, tmp_path: Path) -> None:
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "meeting"]
    machine = ["--nnodes", "2", "--nproc-per-node", "1", *meeting, "--local-addr", "127.0.0.1", "--max-restarts", "0"]
    words = [*machine, "-m", "sfumato", "train", str(data), *METHOD, *BUDGET, "--out", str(tmp_path / "run")]
    for status, said in finish([torchrun(*words), torchrun(*words)]):
        assert status == 0, said
    card = load(tmp_path / "run" / "release").card
    assert card.certified and sum(event.steps for event in card.events if event.name == "training") == 4
