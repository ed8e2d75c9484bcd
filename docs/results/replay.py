"""Neighbour replay of every certified variant, and the table of docs/reference/audits.md.

    python docs/results/replay.py --pairs 3 --search 20     # runs the audits (about an hour of one core)
    python docs/results/replay.py --render                  # writes the table from replay.json alone

Every certified variant is replayed per image and per person; the result is written to ``replay.json`` after each.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

from sfumato.audit.adversarial_search import sweep
from sfumato.audit.worst_case import KINDS, worst_case_images
from sfumato.files import json_text
from sfumato.methods import METHODS, find
from sfumato.privacy import Budget, BudgetExceeded

HERE = Path(__file__).parent
RESULT, PAGE = HERE / "replay.json", HERE.parent / "reference" / "audits.md"
REGION = re.compile(r"(<!-- replay -->\n).*?(<!-- /replay -->)", re.DOTALL)
BUDGETS = (1.0, 10.0, 100.0, 1000.0)


def audited(name: str, variant: str, unit: str, pairs: int, search: int) -> dict[str, Any]:
    """The replay of one variant in its small form, at the smallest budget that pays for it."""
    method = find(name).small(variant)
    for limit in BUDGETS:
        try:
            method.plan(budget := Budget(limit, 1e-5, unit=unit))  # type: ignore[arg-type]
            break
        except BudgetExceeded:
            continue
    start = time.process_time()
    found = sweep(method, worst_case_images(96, persons=unit == "person"), budget=budget, pairs=pairs, tries=search)
    return {
        "method": name,
        "variant": method.variant,
        "unit": unit,
        "pairs": found.pairs,
        "search": found.tried,
        "findings": sorted({str(one) for result in found.kinds.values() for one in result.findings}),
        "movement": {where: round(value, 9) for where, value in found.movement.items()},
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each variant and unit."""
    lines = [
        "| method | variant | unit | pairs | by search | flagged | least of the largest movements ÷ paid for |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        where, least = min(row["movement"].items(), key=lambda entry: entry[1])
        flagged = "; ".join(row["findings"]) or "nothing"
        most = max(row["movement"].values())
        shown = f"{where} {least:.6f}" + (", VACUOUS" if least < 0.9 else "") + f" (largest {most:.9f})"
        cells = (row["method"], row["variant"], row["unit"], row["pairs"], row["search"], flagged, shown)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def rendered(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with its table written again."""
    return REGION.sub(lambda found: found[1] + table(rows) + found[2], page)


def main() -> None:
    """Run what was asked for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help=f"neighbours for each of the {len(KINDS)} kinds of unit")
    parser.add_argument("--search", type=int, default=20)
    parser.add_argument("--render", action="store_true")
    options = parser.parse_args()
    if not options.render:
        rows: list[dict[str, Any]] = []
        for name in METHODS:
            for variant in find(name).certified_variants():
                for unit in ("image", "person"):
                    rows.append(audited(name, variant, unit, options.pairs, options.search))
                    print(rows[-1], flush=True)
                    RESULT.write_text(json_text({"pairs_per_kind": options.pairs, "replays": rows}), encoding="utf-8")
    found = json.loads(RESULT.read_text(encoding="utf-8"))["replays"]
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
