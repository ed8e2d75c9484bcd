"""Replay every certified variant with a unit really removed, small and at its real schedule, and write replay.json.

    OMP_NUM_THREADS=1 python docs/results/replay_results.py
    python docs/results/checks.py

Small: every kind of worst-case unit, with a search for larger movements. Real schedule: a few neighbours at the
method's own sampling rates and numbers of steps, and samples drawn from the saved releases in a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sfumato.experiments.results import current_commit
from sfumato.methods import METHODS, find

HERE = Path(__file__).parent
SMALL, REAL = ("--pairs", "3", "--search", "3"), ("--full", "2")
EPSILON = {"published": "30"}
"""Variants whose noise is fixed need a larger budget."""


def replayed(method: str, variant: str, options: tuple[str, ...]) -> dict[str, Any]:
    """What a command prints as JSON; status 1 means that something was flagged, which is a result."""
    words = ["audit", "replay", method, "--variant", variant, *options, "--json"]
    words += ["--epsilon", EPSILON.get(variant, "3")]
    done = subprocess.run([sys.executable, "-m", "sfumato", *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"sfumato {' '.join(words)}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """All variants, in the order of the registry."""
    rows = []
    for method in METHODS:
        for variant in find(method).certified_variants():
            parts = {name: replayed(method, variant, options) for name, options in (("small", SMALL), ("real", REAL))}
            rows.append({"method": method, "variant": variant, **parts})
            print(method, variant, {name: (part["pairs"], part["flagged"]) for name, part in parts.items()}, flush=True)
            facts = {"command": "python docs/results/replay_results.py", "commit": current_commit()}
            facts |= {"small": " ".join(SMALL), "real": " ".join(REAL)}
            (HERE / "replay.json").write_text(json.dumps({**facts, "rows": rows}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
