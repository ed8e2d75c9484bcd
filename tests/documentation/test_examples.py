"""The notebooks and the script of examples/ run, and their committed output is complete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from documentation.blocks import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def test_there_are_three_notebooks() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_output_is_committed_and_has_no_errors_or_paths(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run from the top"
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not any(output.output_type == "error" for output in outputs)
    text = path.read_text(encoding="utf-8")
    assert "/tmp/" not in text and "/home/" not in text and "/root/" not in text
    assert path.stat().st_size < 400_000


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
