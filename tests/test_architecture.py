"""Imports point one way, the core stays small, and nothing unsafe is read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sfumato

ROOT = Path(sfumato.__file__).parent
ALLOWED = {
    "privacy": set(),
    "networks": set(),
    "data": {"privacy"},
    "release": {"privacy", "data"},
    "methods": {"privacy", "data", "release", "networks"},
    "evaluation": {"privacy", "data", "release", "networks", "methods"},
    "audit": {"privacy", "data", "release", "networks", "methods", "evaluation"},
    "report": {"release"},
    "reproduction": {"privacy", "data", "release", "networks", "methods", "evaluation", "audit", "report"},
}
# A release finds its sampler by name; it is the one import that points upstairs.
EXCEPTIONS = {("release/release.py", "methods")}
UNSAFE = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_rooms_import_only_what_lies_below_them(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "sfumato" or len(parts) < 2 or parts[1] not in {*ALLOWED, "cli", "console", "demo"}:
                continue
            where = path.relative_to(ROOT).as_posix()
            allowed = parts[1] == room or parts[1] in ALLOWED[room] or (where, parts[1]) in EXCEPTIONS
            allowed = allowed or (parts[1] == "console" and room in ("evaluation", "audit", "report", "reproduction"))
            assert allowed, f"{where} imports {name}"


def test_every_room_is_known() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(ALLOWED)


def test_nothing_unsafe_is_imported_or_called() -> None:
    for path in ROOT.rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & UNSAFE, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                assert text not in {"eval", "exec", "torch.load", "yaml.load"}, f"{path}: {text}"


def test_the_core_can_be_read_in_an_afternoon() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "privacy").glob("*.py"))
    assert lines <= 1500
