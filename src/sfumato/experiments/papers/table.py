"""An entry's result as text: for each number the paper's, ours, the ε that the paper claims, and the ε that hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

HEADINGS = ("data", "setting", "measure", "paper", "ours", "paper's ε", "… holds at", "our ε")


def lines(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One line for each number, in the order of ``HEADINGS``."""
    for row in result["rows"]:
        values = row["values"] or {"–": {"paper": None, "paper_std": None, "mean": None, "std": None}}
        for name, value in values.items():
            ours = number(value["mean"], value["std"]) if value["mean"] is not None else _absent(row)
            yield (
                place(row),
                row["setting"],
                name,
                number(value["paper"], value["paper_std"]),
                ours,
                row["claimed"],
                row["holds"],
                spent(row),
            )


def place(row: dict[str, Any]) -> str:
    """The collection, and how much of it where the paper takes a part."""
    return row["data"] if row["records"] is None else f"{row['data']}, {row['records']} records"


def number(mean: float | None, deviation: float | None) -> str:
    """Shares in three digits, or four where they are small, scores in two, percents and distances in one."""
    if mean is None:
        return "–"
    digits = 4 if 0 < abs(mean) < 0.1 else 3 if abs(mean) <= 1 else 2 if abs(mean) < 2 else 1
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _absent(row: dict[str, Any]) -> str:
    if row["missing"]:
        return f"not run: {row['missing']}"
    return "not measured" if row["ran"] else "–"


def spent(row: dict[str, Any]) -> str:
    if not row["trained"]:
        return "–"
    return "none" if row["epsilon"] is None else f"{row['epsilon']:g}"


def caption(result: dict[str, Any]) -> list[str]:
    """What the numbers are of: how many records, steps, images and trainings; what stood in for what."""
    size, found = result["size"], []
    trainings = f"{size['trainings']} training{'s' * (size['trainings'] != 1)} of each"
    fewest = min((row["trainings"] for row in result["rows"] if row["trained"]), default=size["trainings"])
    if fewest < size["trainings"]:
        trainings = f"{fewest} to {trainings}"
    images = "" if size["images"] is None else f", {size['images']:,} synthetic images"
    if not any(row["trained"] for row in result["rows"]):
        found.append("Computed: nothing is trained, and the scale changes nothing.")
    elif result["scale"] == "small":
        found.append(
            f"SMALL SCALE: N is at most {size['records_at_most']:,} records{images}, {trainings}, {_counts(result)}. "
            "It shows that the entry runs; no match with the paper is claimed."
        )
    else:
        found.append(f"{trainings}{images}; {_counts(result)}.")
    found += sorted({f"{row['remark']}." for row in result["rows"] if row["remark"] and row["ran"]})
    found += [f"FAILED: {name}: {reason}" for name, reason in result["failed"].items()]
    return found


_ROOM = {"FID": 10.0, "IS": 0.1}
_SHARE_ROOM, _POINTS = 0.03, 2.0


def verdict(result: dict[str, Any]) -> str:
    """How many of the paper's numbers ours reach: equal means within two deviations, or a little more for one run."""
    found = {"better": 0, "equal": 0, "worse": 0}
    for row in result["rows"]:
        for name, value in row["values"].items():
            if not row["trained"] or value["paper"] is None or value["mean"] is None:
                continue
            room = _ROOM.get(name, _SHARE_ROOM if value["paper"] <= 1 else _POINTS)
            ahead = value["mean"] - value["paper"]
            ahead = -ahead if name == "FID" else ahead
            equal = abs(ahead) <= max(room, 2 * (value["std"] or 0.0))
            found["equal" if equal else "better" if ahead > 0 else "worse"] += 1
    if not sum(found.values()):
        return ""
    counts = ", ".join(f"{count} {word}" for word, count in found.items())
    return f"Against the paper's {sum(found.values())} numbers, at our ε: {counts}."


def _counts(result: dict[str, Any]) -> str:
    """The steps of each method; those that stay at a default they do not use are left out."""
    found: dict[str, set[str]] = {}
    for row in result["rows"]:
        counts = row["counts"]
        if not counts:
            continue
        # A single step asks once; what takes the time then is learning from the answer.
        order = ("iterations", "steps") if counts.get("steps") == 1 else ("steps", "iterations")
        key = next(key for key in (*order, *counts) if key in counts)
        found.setdefault(row["method"], set()).add(f"{counts[key]:,} {key.replace('_', ' ')}")
    return "; ".join(f"{method} {' or '.join(sorted(texts))}" for method, texts in found.items())


def print_result(result: dict[str, Any], console: Console) -> None:
    table = Table(*HEADINGS[:3], title=f"{result['paper']} {result['entry']}: {result['title']}", title_justify="left")
    for name in HEADINGS[3:]:
        table.add_column(name, justify="right")
    before: tuple[str, ...] = ("", "")
    for line in lines(result):
        again = line[:2] == before
        shown = ("" if line[0] == before[0] else line[0], "" if again else line[1])
        table.add_row(*shown, *line[2:5], *(("", "", "") if again else line[5:]))
        before = line[:2]
    console.print(table)
    for text in caption(result):
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    console.print(result["notice"], style="bold red", highlight=False, soft_wrap=True)
