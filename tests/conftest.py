"""What holds for every test: one thread, since the processes already fill the cores, and nothing left to chance.

Where the program asks the operating system for a key (of the noise, of a selection, of what is held out), it gets
numbers of a generator that starts anew with every test and with every fixture that several tests share. A test of the
law of some noise then passes always or never. Processes that a test starts or forks draw their own.
"""

import os
import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from sfumato.data import holdout
from sfumato.methods import scored
from sfumato.privacy import randomness, selection

torch.set_num_threads(1)

_GENERATOR, _PROCESS = random.Random(), os.getpid()


def _random_bytes(count: int) -> bytes:
    return _GENERATOR.randbytes(count) if os.getpid() == _PROCESS else os.urandom(count)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Initial weights, made-up images and keys do not depend on which tests ran before."""
    torch.manual_seed(4021)  # unlike the seeds of single tests
    _GENERATOR.seed(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
    """A fixture that tests share does not depend on which of them comes first."""
    if fixturedef.scope == "function":
        return (yield)
    before, weights = _GENERATOR.getstate(), torch.get_rng_state()
    _GENERATOR.seed(f"{fixturedef.baseid} {fixturedef.argname}")
    torch.manual_seed(4021)
    try:
        return (yield)
    finally:
        _GENERATOR.setstate(before)
        torch.set_rng_state(weights)


randomness.os = SimpleNamespace(urandom=_random_bytes)  # type: ignore[attr-defined]
_secrets = SimpleNamespace(
    SystemRandom=lambda: _GENERATOR,
    randbelow=_GENERATOR.randrange,
    token_hex=lambda count: _random_bytes(count).hex(),
)
for _module in (selection, scored, holdout):
    _module.secrets = _secrets  # type: ignore[attr-defined]
