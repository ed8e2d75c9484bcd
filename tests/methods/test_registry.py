"""Finding methods by name, and a user's own method from training to loading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.methods import METHODS, find
from sfumato.methods.registry import CustomMethodRefused, load
from sfumato.privacy import Budget
from worst_case import worst_case_images

MINE = """
from dataclasses import dataclass
from typing import ClassVar

from sfumato.methods.dp_merf import DPMERF


@dataclass(frozen=True)
class MyMethod(DPMERF):
    name: ClassVar[str] = "my-method"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the working directory."""
    name = "module_of_a_user"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_every_registered_name_is_that_of_its_class() -> None:
    assert all(find(name).name == name and find(name).identifier() == name for name in METHODS)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(LookupError, match="did you mean 'dp-lflow'"):
        find("dp-flow")
    with pytest.raises(LookupError, match="no method 'nowhere:Method'"):
        find("nowhere:Method")
    with pytest.raises(LookupError, match="not a subclass"):
        find("pathlib:Path")


def test_a_method_of_the_users_own_is_found_trained_and_loaded(module: str, tmp_path: Path) -> None:
    method = find(f"{module}:MyMethod").small()
    release = method.fit(worst_case_images(), Budget(3.0, 1e-5))
    assert release.card.method == f"{module}:MyMethod"
    release.save(tmp_path / "release")
    assert type(load(tmp_path / "release").method) is type(method)  # the module is imported already


def test_a_card_does_not_make_load_import_a_module(module: str, tmp_path: Path) -> None:
    find(f"{module}:MyMethod").small().fit(worst_case_images(), Budget(3.0, 1e-5)).save(tmp_path / "release")
    del sys.modules[module]
    with pytest.raises(CustomMethodRefused, match="allow_custom"):
        load(tmp_path / "release")
    assert module not in sys.modules
    program = f"from sfumato import load; print(load({str(tmp_path / 'release')!r}, allow_custom=True).card.method)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == f"{module}:MyMethod"


def test_the_settings_of_a_paper_configure_its_method() -> None:
    kinds = [kind for kind in map(find, METHODS) if kind.paper_settings is not None]
    assert len(kinds) >= 5
    for kind in kinds:
        method = kind.configured(kind.preset("paper"))
        assert {key: getattr(method, key) for key in kind.preset("paper")} == kind.paper_settings
        assert kind.raw_access or method.variant != "published" or method.claim() is not None
        with pytest.raises(ValueError, match="only one is 'paper'"):
            kind.preset("authors")
