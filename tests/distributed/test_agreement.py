"""Processes that do not belong together, or do not all start, are refused with the reason; nothing is charged."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distributed.processes import environment, finish, free_port, run_task
from sfumato.methods.registry import load
from sfumato.privacy import Budget, Ledger, PrivateRecords
from sfumato.privacy.distributed import ProcessesDiffer, RankLost
from sfumato.training.distributed import meet


@pytest.mark.long
def test_other_records_or_another_budget_in_one_process_are_refused_by_all(tmp_path: Path) -> None:
    first, second = run_task("disagreement", 2, tmp_path / "two")
    assert first == second
    assert all(said.endswith("(processes 1 of 0 to 1)") for said in first.values())
    assert "different collections" in first["one less"] and "different collections" in first["other pixels"]
    assert "another method, parameters, budget" in first["another budget"]


@pytest.mark.parametrize("most", [None, 4])
def test_the_hash_of_records_depends_on_all_that_is_sampled(most: int | None) -> None:
    def records(**changes: object) -> PrivateRecords:
        pixels = np.zeros((4, 1, 2, 2), dtype=np.uint8)
        given = {"labels": np.zeros(4, dtype=np.int64), "persons": np.arange(4), "ids": np.arange(4), **changes}
        return PrivateRecords(given.pop("pixels", pixels), classes=("a", "b"), **given)  # type: ignore[arg-type]

    bright = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    bright[3, 0, 1, 1] = 1
    found = [
        records(),
        records(pixels=bright),
        records(labels=np.array([0, 0, 0, 1])),
        records(persons=np.array([0, 1, 2, 2])),
        records(ids=np.array([0, 1, 2, 4])),
        records()._without(3, "image"),
    ]
    assert len({one._digest(most) for one in found}) == len(found)
    assert records()._digest(most) == found[0]._digest(most)


def test_a_process_that_has_not_started_is_named() -> None:
    with pytest.raises(RankLost, match="processes 1, 2 of 0 to 2 have not started"):
        meet(dist.HashStore(), 0, 3, "gloo", longest=timedelta(seconds=0.1))


def test_gpus_in_some_processes_alone_are_refused() -> None:
    store = dist.HashStore()
    store.set("backend of 1", "gloo")
    with pytest.raises(ProcessesDiffer, match="a GPU of its own but processes 1 of 0 to 1"):
        meet(store, 0, 2, "nccl")


@pytest.mark.long
def test_only_the_first_process_needs_to_see_the_ledger_and_the_key(tmp_path: Path) -> None:
    machines = [tmp_path / "first", tmp_path / "second"]
    for machine in machines:
        machine.mkdir()
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (60, 28, 28), dtype=np.uint8)
        np.savez(machine / "data.npz", images=pixels, labels=np.arange(60) % 2)
    Ledger(machines[0] / "ledger.jsonl", Budget(3.0, 1e-7)).close()
    key = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (machines[0] / "key.pem").write_bytes(key)
    budget = ["--epsilon", "3", "--classes", "2", "--declared-size", "60", "--device", "cpu"]
    method = ["--method", "dp-vae", "--set", "steps=2", "--set", "width=8"]
    files = ["--ledger", "ledger.jsonl", "--sign", "key.pem", "--out", "run"]
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "sfumato", "train", "data.npz", *method, *budget, *files],
            env=environment(rank, 2, port),
            cwd=machine,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, machine in enumerate(machines)
    ]
    for status, said in finish(processes):
        assert status == 0, said
    assert load(machines[0] / "run" / "release").card.delta == 1e-7
    assert sorted(path.name for path in machines[1].iterdir()) == ["data.npz"]


@pytest.mark.long
def test_a_command_that_is_not_divided_is_not_run_several_times(tmp_path: Path) -> None:
    given = {**environment(0, 2, 0), "TORCHELASTIC_RUN_ID": "one"}
    words = [sys.executable, "-m", "sfumato", "tune", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")]
    ended = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "start 'sfumato tune' without it" in ended.stderr
