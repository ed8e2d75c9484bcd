"""What ``import sfumato`` offers: about thirty names, found by tab completion, fetched when they are used."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import sfumato
from sfumato.methods import METHODS, find


def test_every_public_name_is_there_and_documented() -> None:
    for name in set(sfumato.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(sfumato, name)), name
        assert name in dir(sfumato)


def test_every_method_is_public() -> None:
    assert {find(name).__name__ for name in METHODS} <= set(sfumato.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Budgett'"):
        sfumato.Budgett  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    assert sfumato.__version__.count(".") == 2


def test_torch_is_not_imported_before_it_is_needed() -> None:
    """``sfumato --help`` starts without torch, numpy and pyarrow."""
    program = (
        "import sys, sfumato.cli.main as m; dir(m); "
        "print(sorted({'torch', 'numpy', 'pyarrow', 'scipy', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


PACKAGE = Path(sfumato.__file__).parent
EXAMPLES = sorted(
    ".".join(("sfumato", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.long
def test_examples_run() -> None:
    found = {name: doctest.testmod(importlib.import_module(name)) for name in EXAMPLES}
    assert len(found) > 20 and not {name: result for name, result in found.items() if result.failed}
    assert all(result.attempted for result in found.values())
