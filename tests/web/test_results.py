"""The page about the benchmark prints what its result file holds."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_is_that_of_the_result_file() -> None:
    """Written by: python benchmarks/web.py, or python docs/results/web_page.py from the file alone."""
    page = runpy.run_path(str(RESULTS / "web_page.py"))["page"]
    result = json.loads((RESULTS / "web.json").read_text(encoding="utf-8"))
    written = (RESULTS / "web.md").read_text(encoding="utf-8")
    assert page(result) == written
    result["load"]["ratio"] += 0.1
    assert page(result) != written
