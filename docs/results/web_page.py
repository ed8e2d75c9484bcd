"""The page web.md, from the measurements that benchmarks/web.py wrote to web.json.

Run ``python docs/results/web_page.py`` to write it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def page(result: dict[str, Any]) -> str:
    """The whole page."""
    load, way = result["load"], result["way"]
    rows = {
        "time of a training step beside the busy page, relative to the quiet one (median)": f"{load['ratio']:.3f}",
        "the same in each round": ", ".join(f"{one:.3f}" for one in load["ratios"]),
        "events a second of the slowest stream": f"{load['events_per_stream_and_second']:.2f}",
        "page loads, and how many a second": f"{load['page_loads']}, {load['page_loads_per_second']:.2f}",
        "seconds of a page load, median": f"{load['page_load_median_seconds']:.3f}",
        "seconds of a page load, 95th percentile": f"{load['page_load_p95_seconds']:.3f}",
    }
    lines = [
        "# What the local page costs",
        "",
        f"Written by `{result['command']}` ({result['machine']}) from `docs/results/web.json`.",
        "",
        "## Beside a training",
        "",
        f"A training with one thread (DP-VAE, drawn digits) beside {load['streams']} open event streams with one event",
        "a second each and two page loads a second. Busy and quiet times alternate in one run, and the clients run on",
        "the same machine. The target is 1.1 at most.",
        "",
        *_table(("measured", "value"), rows),
        "",
        "## The whole way",
        "",
        "Seconds in a browser from choosing a file of 1,000 drawn digits to the exported set (DP-MERF with small",
        "settings), waiting for every page. Most of it is the start of each command and its libraries.",
        "",
        *_table(("part", "seconds"), {name: f"{seconds:.1f}" for name, seconds in way.items()}),
    ]
    return "\n".join(lines) + "\n"


def _table(heading: tuple[str, str], rows: dict[str, str]) -> list[str]:
    return [f"| {name} | {value} |" for name, value in (heading, ("---", "---"), *rows.items())]


if __name__ == "__main__":
    found = json.loads((HERE / "web.json").read_text(encoding="utf-8"))
    (HERE / "web.md").write_text(page(found), encoding="utf-8")
