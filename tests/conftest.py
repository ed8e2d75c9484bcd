"""What holds for every test: one thread, since the processes already fill the cores, and no chance.

A run without a seed draws its key from the operating system. In tests of this process the key follows from the name of
the test or fixture and the number of keys drawn before, whatever else ran: noise is as good, and a test that fails once
fails always.
"""

import hashlib
import os
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sfumato.privacy import randomness

torch.set_num_threads(1)


class FixedKeys:
    """Stands for the operating system: the same keys whenever ``name`` is the same."""

    def __init__(self) -> None:
        self.name, self.drawn = "", 0

    def begin(self, name: str) -> None:
        self.name, self.drawn = name, 0
        torch.manual_seed(4021)  # initial weights and made-up images; unlike the seeds of single tests

    def urandom(self, size: int) -> bytes:
        self.drawn += 1
        return hashlib.shake_256(f"{self.name} {self.drawn}".encode()).digest(size)


keys = FixedKeys()
randomness.os = SimpleNamespace(**{**vars(os), "urandom": keys.urandom})  # type: ignore[attr-defined]


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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that failed and is run again, as CI does, in the file that .ci/run prints last."""
    if report.outcome == "rerun" and "PYTEST_XDIST_WORKER" not in os.environ and "UNSTEADY" in os.environ:
        with Path(os.environ["UNSTEADY"]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")
