"""What holds for every test: one thread, since the processes already fill the cores, and no chance.

A run without a seed draws its key from the operating system, and so do a selection and a hold-out. In tests of this
process these draws follow from the name of the test or fixture and the number of those before, whatever else ran: noise
is as good, and a test that fails once fails always. Processes that a test starts or forks draw their own.
"""

import hashlib
import os
import random
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sfumato.data import holdout
from sfumato.methods import scored
from sfumato.privacy import randomness, selection

torch.set_num_threads(1)


class FixedKeys:
    """Stands for the operating system: the same keys whenever ``name`` is the same."""

    def __init__(self) -> None:
        self.name, self.drawn, self._process = "", 0, os.getpid()

    def begin(self, name: str) -> None:
        self.name, self.drawn = name, 0
        torch.manual_seed(4021)  # initial weights and made-up images; unlike the seeds of single tests

    def urandom(self, size: int) -> bytes:
        if os.getpid() != self._process:
            return os.urandom(size)
        self.drawn += 1
        return hashlib.shake_256(f"{self.name} {self.drawn}".encode()).digest(size)

    def token_hex(self, size: int) -> str:
        return self.urandom(size).hex()

    def SystemRandom(self) -> random.Random:
        return random.Random(self.urandom(32))

    def randbelow(self, below: int) -> int:
        return self.SystemRandom().randrange(below)


keys = FixedKeys()
randomness.os = SimpleNamespace(**{**vars(os), "urandom": keys.urandom})  # type: ignore[attr-defined]
holdout.secrets = scored.secrets = selection.secrets = keys  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nothing depends on which tests ran before."""
    keys.begin(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """A fixture that tests share is the same whichever of them comes first, and changes nothing for that one."""
    if fixturedef.scope == "function":
        return (yield)
    name, drawn, state = keys.name, keys.drawn, torch.get_rng_state()
    keys.begin(f"{fixturedef.baseid} {fixturedef.argname}")
    try:
        return (yield)
    finally:
        keys.name, keys.drawn = name, drawn
        torch.set_rng_state(state)


run_again: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that failed and passed when CI ran it again, in the file that .ci/run prints last."""
    if "PYTEST_XDIST_WORKER" in os.environ or "UNSTEADY" not in os.environ:
        return
    if report.outcome == "rerun":
        run_again.add(report.nodeid)
    elif report.when == "call" and report.passed and report.nodeid in run_again:
        with Path(os.environ["UNSTEADY"]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")
