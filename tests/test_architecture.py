"""Imports point one way, the core stays small, and nothing unsafe is read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sfumato

ROOT = Path(sfumato.__file__).parent
# Every package and top-level module, lowest layer first; each may import from its own layer's package and those below.
LAYERS = (
    ("files",),
    ("privacy", "networks"),
    ("data",),
    ("release",),
    ("training",),
    ("methods",),
    ("evaluation",),
    ("audit",),
    ("experiments",),
    ("report",),
    ("web",),
    ("cli",),
)
UNSAFE = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def layer_of(name: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if name in layer)


MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if path.parent != ROOT)


@pytest.mark.parametrize("where", [*MODULES, *(path.name for path in ROOT.glob("*.py") if path.stem[0] != "_")])
def test_imports_point_down(where: str) -> None:
    own = where.split("/")[0].removesuffix(".py")
    for name in imported(ROOT / where):
        parts = name.split(".")
        if (
            parts[0] != "sfumato"
            or len(parts) < 2
            or not (ROOT / parts[1]).exists() | (ROOT / f"{parts[1]}.py").exists()
        ):
            continue
        allowed = parts[1] == own or layer_of(parts[1]) < layer_of(own)
        assert allowed, f"{where} imports {name}"


def test_every_package_and_module_has_a_layer() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("*.py") if path.stem[0] != "_"}
    assert packages | modules <= {name for layer in LAYERS for name in layer}


def test_nothing_unsafe_is_imported_or_called() -> None:
    for path in ROOT.rglob("*.py"):
        roots = {name.split(".")[0] for name in imported(path)}
        assert not roots & UNSAFE, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                text = ast.unparse(node.func)
                assert text not in {"eval", "exec", "torch.load", "yaml.load"}, f"{path}: {text}"
