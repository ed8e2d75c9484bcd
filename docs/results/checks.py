"""Write the tables of docs/results/checks.md and docs/results/engine.md from the JSON files beside them.

    python docs/results/checks.py

Each file is written by the command that its page names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = (HERE / "checks.md", HERE / "engine.md", HERE / "audits.md")
REGION = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
SHOWN = 8


def load(name: str) -> Any:
    """A result file of this folder."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def lines(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    head = list(head)
    found = [head, ["---"] * len(head), *(list(map(str, row)) for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in found)


def exactness() -> str:
    """The largest movement of a sum over identical, opposite and random records and all batch sizes."""
    rows = []
    for name in ("engine-exactness-cpu", "engine-exactness-h200"):
        found = load(name)
        for row in found["rows"]:
            kinds = [row[kind] for kind in ("identical", "opposite", "random")]
            sizes = kinds[0]["sizes"]
            rows.append(
                (
                    row["case"] + (", narrow" if row.get("small") else ""),
                    found["device"],
                    row["arithmetic"] + (", compiled" if row["compiled"] else ""),
                    f"{len(sizes)} from {min(sizes)} to {max(sizes):,}",
                    f"{max(kind['largest'] for kind in kinds):.6f}",
                    {True: "yes", False: "no", None: "not measured"}[row.get("same bits in every order")],
                )
            )
    head = (
        "network",
        "device",
        "arithmetic",
        "batch sizes",
        "largest movement ÷ clip norm",
        "same bits in every order",
    )
    return lines(head, rows)


def kills() -> str:
    """What became of the resumptions."""
    found = load("kills")
    outcomes = sorted({outcome for row in found["outcomes"].values() for outcome in row})
    names = {
        "same": "its own",
        "another": "another one",
        "copy": "a copy from earlier in the run",
        "none": "none",
    }
    rows = [(names[which], *(row.get(outcome, 0) for outcome in outcomes)) for which, row in found["outcomes"].items()]
    words = {"finished": "finished", "RunRefused": "refused", "AnswerLost": "refused, a step counts as spent"}
    table = lines(("resumed with the ledger", *(words.get(outcome, outcome) for outcome in outcomes)), rows)
    drawn = found["killed after noise was drawn"]
    counts = f"{found['kills']} kills of {found['variants']} variants, {drawn} of them after noise had been drawn"
    return f"{counts}; {found['unsound']} were unsound.\n\n{table}"


def replay() -> str:
    """Every certified variant at its real schedule."""
    rows = []
    for row in load("replay")["rows"]:
        moved = [f"{where} {value:.6f}" for where, value in row.get("movement", {}).items()]
        found = row.get("failed") or ("FLAGGED" if row["flagged"] else "nothing")
        if row.get("vacuous"):
            found += f"; vacuous for {', '.join(row['vacuous'])}"
        rows.append((row["method"], row["variant"], row.get("pairs", 0), found, "; ".join(moved)))
    return lines(("method", "variant", "pairs", "flagged", "largest movement ÷ paid for"), rows)


def filter_cost() -> str:
    """What plans cost by the accountant of one run and by the filter for several."""
    rows = [
        (row["method"], f"{row['limit']:g}", row["order"])
        + tuple(f"{row[name]:.2f}" for name in ("one", "one_filtered", "two", "two_filtered"))
        for row in load("filter")["rows"]
    ]
    whole, halves = "one run with the whole limit", "two runs with half of it each"
    head = ("method", "limit ε", "order α", f"{whole}: PLD", "filter", f"{halves}: PLD", "filter")
    return lines(head, rows)


def gradients() -> str:
    """Every contender of a benchmark."""
    rows = [
        (
            row["case"],
            row["units"],
            row.get("draws", 1),
            row["contender"],
            f"{row['milliseconds']:.0f}" if "milliseconds" in row else row.get("failed", ""),
            f"{row['ratio']:.2f}" if "ratio" in row else "",
            f"{row['peak_ratio']:.2f}" if "peak_ratio" in row else "",
        )
        for row in load("engine-cpu")["rows"]
    ]
    return lines(("network", "batch", "draws", "engine", "ms", "time ÷ plain", "memory ÷ plain"), rows)


def profiles() -> str:
    """The operations that take most of a step."""
    found = load("engine-cpu")["profiles"]
    rows = []
    for plain, ours in zip(found[::2], found[1::2], strict=True):
        names = list(dict.fromkeys([*list(ours["operations"])[:SHOWN], *list(plain["operations"])[:3]]))
        for name in names:
            times = [f"{one['operations'].get(name, 0):.0f}" for one in (plain, ours)]
            rows.append((f"{ours['case']} {ours['units']}", f"`{name}`", *times))
    return lines(("step", "operation", "plain, ms", "private, ms"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "exactness": exactness,
    "kills": kills,
    "replay": replay,
    "filter": filter_cost,
    "gradients": gradients,
    "profiles": profiles,
}


def rendered(page: str) -> str:
    """The page with its tables written again."""
    return REGION.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path.read_text(encoding="utf-8")), encoding="utf-8")
