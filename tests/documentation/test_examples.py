"""The notebooks and the script of examples/ run, and their committed output is complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    patience = {"timeout": 1800, "startup_timeout": 600}
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", resources=place, **patience).execute()


@pytest.mark.long
def test_the_script_with_own_models_certifies_all_three() -> None:
    words = [sys.executable, str(ROOT / "examples" / "own_model.py")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("certified") == 3
