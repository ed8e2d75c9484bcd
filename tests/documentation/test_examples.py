"""The notebooks and the scripts of examples/ run; that their committed output is complete is a part of make check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# In IPython, as in a notebook, and without a kernel's ports.
CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
cells = [cell for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
for cell in cells:
    shell.run_cell("".join(cell["source"])).raise_error()
print(f"{len(cells)} cells ran")
"""

pytestmark = pytest.mark.long


def run(*words: str, place: Path) -> str:
    environment = {**os.environ, "MPLBACKEND": "agg", "IPYTHONDIR": str(place / "ipython")}
    done = subprocess.run([sys.executable, *words], cwd=place, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    assert run("-c", CELLS, str(path), place=tmp_path).endswith(" cells ran\n")


def test_the_script_with_own_models_certifies_all_three(tmp_path: Path) -> None:
    assert run(str(ROOT / "examples" / "own_model.py"), place=tmp_path).count("certified") == 3


@pytest.mark.parametrize(
    ("name", "package"), [("own_loop", "opacus"), ("lightning_loop", "lightning"), ("accelerate_loop", "accelerate")]
)
def test_a_loop_of_ones_own_learns_within_its_budget(name: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    said = run(str(ROOT / "examples" / f"{name}.py"), place=tmp_path)
    assert "ε 2.99" in said and all(int(share) > 60 for share in re.findall(r"accuracy (\d+)%", said)), said
