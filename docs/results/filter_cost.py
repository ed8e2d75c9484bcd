"""What a plan costs under the filter for adaptively chosen runs, beside the accountant of one run; writes filter.json.

    python docs/results/filter_cost.py
    python docs/results/checks.py
"""

from __future__ import annotations

import json
from pathlib import Path

from sfumato.experiments.results import current_commit
from sfumato.methods import find
from sfumato.privacy import Budget
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.accounting import filter_order, filtered_epsilon

DELTA = 1e-5
PLANS = ("dp-merf", "dp-vae", "dp-lflow", "dppm", "gs-wgan")
LIMITS = (1.0, 3.0, 10.0)
RUNS = 2
"""Runs that share the limit equally."""


def main() -> None:
    """The ε of one run that has the whole limit, and of two runs with half of it each, by both accountants."""
    rows = []
    for name in PLANS:
        for limit in LIMITS:
            order = filter_order(limit, DELTA)
            whole = find(name)().plan(Budget(limit, DELTA)).events
            half = find(name)().plan(Budget(limit / RUNS, DELTA)).events
            together = [event for _ in range(RUNS) for event in half]
            row: dict[str, object] = {"method": name, "limit": limit, "order": order}
            row |= {"one": epsilon(whole, DELTA), "one_filtered": filtered_epsilon(whole, order, DELTA)}
            row |= {"two": epsilon(together, DELTA), "two_filtered": filtered_epsilon(together, order, DELTA)}
            rows.append(row)
            print(row, flush=True)
    facts = {"command": "python docs/results/filter_cost.py", "commit": current_commit(), "delta": DELTA, "rows": rows}
    (Path(__file__).parent / "filter.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
