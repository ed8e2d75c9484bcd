"""``docs/reproduction.md``: the state of all entries, made from result files and the specifications alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfumato.experiments.papers.collection import collections
from sfumato.experiments.papers.scale import SCALES
from sfumato.experiments.papers.specification import Entry, Paper, papers
from sfumato.experiments.papers.table import caption, number, place, spent, verdict

_HEADINGS = ("data", "setting", "paper's ε", "… holds at", "our ε")

Results = dict[tuple[str, str, str], dict[str, Any]]

_HEAD = """# The papers' tables and figures

    sfumato reproduce list                            # all {count}: what each needs and costs, and whether it runs here
    sfumato reproduce dp-lflow table-1 --data DATA    # the paper's size; --scale small to see that it runs
    sfumato reproduce page                            # writes this page from docs/results

A specification is data: a TOML file for each paper in `src/sfumato/reproduction/papers/`. `DATA` holds the collections
in folders of their names (`mnist`, `fashion-mnist`, `celeba`); `--data NAME=TRAIN,TEST` names one that lies elsewhere.
An entry that was stopped goes on when the same command is given again; `--results docs/results` keeps its numbers.

**How to read the numbers.** *paper* is what the paper prints; *ours* is measured here, with the deviation over
trainings. *paper's ε* is what its authors claim, *… holds at* what the mechanism they describe is really worth, *our ε*
what our ledger says about the very training whose number stands beside it; ? was not checked, ∞ is without noise.
**Numbers of the small scale match nothing and are no evidence about a method**: they show that the entry runs. At full
scale *equal* means within two deviations, 2 points, 0.03 of a share or 10 of FID. All of it is computed from real test
images and is NOT PRIVATE.

`sfumato reproduce adopt FILE` takes in what `benchmarks/utility.py` or `benchmarks/privae.py` measured with an entry's
very configurations; the first one's FIDs are from 10,000 images of each set.
"""


def read_results(folder: Path) -> Results:
    """All result files of a folder."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {(result["paper"], result["entry"], result["scale"]): result for result in found}


def page(results: Results) -> str:
    known = papers()
    count = sum(len(paper.entries) for paper in known.values())
    run = {(paper, entry) for paper, entry, _ in results}
    full = {(paper, entry) for paper, entry, scale in results if scale == "full"}
    # What a benchmark trained is some of an entry's rows, seldom all.
    adopted = {(r["paper"], r["entry"]) for r in results.values() if not r["command"].startswith("sfumato reproduce")}
    parts = [_HEAD.format(count=count)]
    parts.append(
        f"**State.** {count} entries; {len(full - adopted)} run at full scale, {len(full & adopted)} in part, "
        f"{len(run - full)} at small scale only, {count - len(run)} not run.\n"
    )
    parts.append(
        _table(
            ("entry", "what", "data", "methods", "state"),
            [r for p in known.values() for r in _state(p, run, full, adopted)],
        )
    )
    parts.append("## What the claimed ε are worth\n")
    parts.append(
        _table(
            ("paper", "holds", "because"),
            [(paper.name, _holds(paper), paper.reason) for paper in known.values()],
        )
    )
    for paper in known.values():
        own = [_section(paper, entry, results) for entry in paper.entries.values()]
        if any(own):
            parts.append(f"## {paper.name}\n")
            parts += [text for text in own if text]
    return "\n".join(parts)


def _state(
    paper: Paper, run: set[tuple[str, str]], full: set[tuple[str, str]], adopted: set[tuple[str, str]]
) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for entry in paper.entries.values():
        key = (paper.key, entry.name)
        if key in full:
            state = "in part, at full scale" if key in adopted else "run at full scale"
        elif key in run:
            state = "run at small scale"
        else:
            state = "not run"
        reasons = list(dict.fromkeys(setting.missing for setting in entry.settings if setting.missing))
        absent = [collections()[name] for name in entry.collections if collections()[name].substitute]
        reasons += [
            f"{found.title} is not at hand: {collections()[found.substitute].title} stands in" for found in absent
        ]
        data = "; ".join(collections()[name].title for name in entry.collections)
        methods = ", ".join(entry.methods) or entry.experiment or "none"
        rows.append((f"`{paper.key} {entry.name}`", entry.title, data, methods, "; ".join([state, *reasons])))
    return rows


def _holds(paper: Paper) -> str:
    return ", ".join(f"{claimed} → {really:g}" for claimed, really in paper.holds.items()) or "none does"


def _section(paper: Paper, entry: Entry, results: Results) -> str:
    """The numbers of the largest scale that was run."""
    found = [results[paper.key, entry.name, scale] for scale in SCALES if (paper.key, entry.name, scale) in results]
    if not found:
        return ""
    result = found[-1]
    title = f"### {paper.name}, {entry.name.replace('-', ' ')}: {entry.title}"
    if result["scale"] == "small":
        title += " (small scale)"
    facts = [f"`{result['command']}` · {result['machine']}, torch {result['torch']}", *caption(result)]
    if result["scale"] == "full" and verdict(result):
        facts.append(f"**{verdict(result)}**")
    if entry.note:
        facts.append(entry.note)
    shown = [row for row in result["rows"] if row["ran"] or row["trainings"] or row["missing"]]
    cited = sorted({row["setting"] for row in result["rows"]} - {row["setting"] for row in shown})
    if cited:
        facts.append(f"Not run, cited by the paper or not measured yet: {', '.join(cited)}.")
    return "\n\n".join((title, "\n".join(f"{fact}  " for fact in facts).rstrip(), _numbers(shown)))


def _numbers(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each setting, a column for each measure: the paper's number / ours."""
    measures = list(dict.fromkeys(name for row in rows for name in row["values"]))
    lines = []
    for row in rows:
        cells = [_both(row["values"].get(name)) for name in measures]
        named = row["setting"] if not row["missing"] else f"{row['setting']} (not run: {row['missing']})"
        lines.append((place(row), named, row["claimed"], row["holds"], spent(row), *cells))
    return _table((*_HEADINGS, *(f"{name}: paper / ours" for name in measures)), lines)


def _both(value: dict[str, Any] | None) -> str:
    if value is None:
        return "–"
    return f"{number(value['paper'], value['paper_std'])} / {number(value['mean'], value['std'])}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(text) + "\n"
