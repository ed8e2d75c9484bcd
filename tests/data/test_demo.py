"""The demo tells its story and sorts what may leave from what may not."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sfumato.cli.demo import run_demo
from sfumato.data import PublicImages
from sfumato.methods import DPMERF


def _told(out: Path, **options: object) -> str:
    text = io.StringIO()
    run_demo(out, method=DPMERF.small(), console=Console(file=text, width=100), **options)  # type: ignore[arg-type]
    return text.getvalue()


def test_the_story_on_drawn_digits(tmp_path: Path) -> None:
    told = _told(tmp_path / "out")
    assert "certified" in told and "NOT private" in told and "10,000" in told
    synthetic = PublicImages.read(tmp_path / "out" / "synthetic")
    assert len(synthetic) == 1000 and synthetic.pixels.shape[1:] == (1, 28, 28)
    assert np.bincount(synthetic.labels).tolist() == [100] * 10
    card = json.loads((tmp_path / "out" / "release" / "card.json").read_text())
    assert card["guarantee"] == "certified" and card["epsilon"] <= 10
    assert (tmp_path / "out" / "synthetic" / "samples.png").stat().st_size > 0
    internal = tmp_path / "out" / "internal"
    assert stat.S_IMODE(internal.stat().st_mode) == 0o700
    assert json.loads((internal / "evaluation.json").read_text())["NOT PRIVATE"] is True
    for place in ("release", "synthetic"):
        assert not any("evaluation" in path.name for path in (tmp_path / "out" / place).rglob("*"))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not empty"):
        _told(tmp_path)
