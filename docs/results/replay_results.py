"""Replay every certified variant at its real schedule, with a unit really removed, and write replay.json.

    OMP_NUM_THREADS=1 python docs/results/replay_results.py
    python docs/results/checks.py

A few neighbours at the method's own sampling rates and numbers of steps, with small networks; samples are also drawn from
the saved releases in a fresh process. The conformance suite has the small schedules, with every kind of unit.
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
PAIRS = "2"
EPSILON = {"published": "30"}
"""Variants whose noise is fixed need a larger budget."""


def replayed(method: str, variant: str) -> dict[str, Any]:
    """What the command prints as JSON; status 1 means that something was flagged, which is a result."""
    words = ["audit", "replay", method, "--variant", variant, "--full", PAIRS, "--json"]
    words += ["--epsilon", EPSILON.get(variant, "3")]
    done = subprocess.run([sys.executable, "-m", "sfumato", *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return {name: found[name] for name in ("pairs", "flagged", "movement", "vacuous")}


def main() -> None:
    """All variants, in the order of the registry."""
    facts = {"command": "python docs/results/replay_results.py", "commit": current_commit()}
    rows = []
    for method in METHODS:
        for variant in find(method).certified_variants():
            rows.append({"method": method, "variant": variant, **replayed(method, variant)})
            print(rows[-1], flush=True)
            text = json.dumps({**facts, "rows": rows}, indent=1, ensure_ascii=False) + "\n"
            (HERE / "replay.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
