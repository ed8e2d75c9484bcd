"""The page about the benchmark prints what its result file holds."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LOAD: dict[str, Any] = {
    "streams": 7,
    "ratio": 1.0625,
    "ratios": [1.0, 1.125],
    "events_per_stream_and_second": 0.75,
    "page_loads": 11,
    "page_loads_per_second": 1.5,
    "page_load_median_seconds": 0.021,
    "page_load_p95_seconds": 0.043,
}
MEASURED = {"command": "the command", "machine": "the machine", "load": LOAD, "way": {"inspect": 2.5}}


def test_the_page_is_that_of_the_result_file() -> None:
    """Written by: python benchmarks/web.py, or python docs/results/web_page.py from the file alone."""
    page = runpy.run_path(str(RESULTS / "web_page.py"))["page"]
    made = page(MEASURED)
    for text in ("beside 7 open", "1.062", "1.000, 1.125", "0.75", "11, 1.50", "0.021", "0.043", "| inspect | 2.5 |"):
        assert text in made
    for path in RESULTS.glob("web.json"):
        assert page(json.loads(path.read_text(encoding="utf-8"))) == path.with_suffix(".md").read_text(encoding="utf-8")
