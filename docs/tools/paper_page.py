"""``docs/results/reproduction.md``: the state of all entries, made from result files and the papers' entries alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from sfumato.experiments.datasets import datasets
from sfumato.experiments.entries import Entry, Paper, papers
from sfumato.experiments.measures import PROTOCOL
from sfumato.experiments.reproduction import Compared, compared, entry_name
from sfumato.experiments.results import ResultSet
from sfumato.report.papers import agreement, caption, number

_HEADINGS = ("data", "unit", "setting", "paper's ε", "… holds at", "our ε", "trainings")

_HEAD = """# The papers' tables and figures

<!-- gpu -->
```sh
sfumato reproduce list                                    # all {count}: by which algorithm, and whether it runs
sfumato reproduce dp-lflow table-1 --data DATA            # the paper's size
sfumato reproduce dp-lflow table-1 --data DATA --scale small    # a check that it runs
python docs/tools/render.py                               # writes this page from docs/results
```

An entry is data: a TOML file for each paper in `src/sfumato/experiments/papers/`. `DATA` is the folder with the
datasets, each in a folder of its name: `mnist` and `fashion-mnist` (idx files), `celeba` (parquet files);
`--data NAME=TRAIN,TEST` names one that is kept elsewhere. An entry that was stopped continues when the same command is
given again; `--results docs/results` writes its numbers where this page reads them.

**How to read the numbers.** *paper* is what the paper prints; *ours* is measured here, with the standard deviation over
the trainings. *paper's ε* is what its authors claim, *… holds at* the ε of the mechanism they describe, *our ε* the one
on the ledgers of the trainings beside it; ? was not checked, ∞ is without noise. Trainings that protect a person and
trainings that protect an image are never averaged together: the unit has a column.
*Equal* means within two deviations, 2 points, 0.03 of a share or 10 of FID. Numbers of the small scale reproduce
nothing and are not kept. A row that is ~~struck through~~ is superseded, for the reason given
above its table. Results of which the commit is not known are left out. All of it is computed from real test images and
is NOT PRIVATE.
"""


def page(results: Mapping[str, ResultSet]) -> str:
    """The page, from results at full scale by the name of their entry (``dp-lflow table-1``)."""
    known = papers()
    count = sum(len(paper.entries) for paper in known.values())
    states = _states(results)
    parts = [_HEAD.format(count=count)]
    parts.append(f"**State.** {count} entries; {state_counts(results)}.\n")
    rows = [
        (f"`{name}`", paper.entries[name.split()[1]].title, _words(state), _reasons(paper.entries[name.split()[1]]))
        for paper in known.values()
        for name, state in states.items()
        if name.split()[0] == paper.key
    ]
    parts.append(table(("entry", "what", "state", "remarks"), rows))
    parts.append("## The ε that hold\n")
    parts.append(
        table(("paper", "claimed → holds", "because"), [(p.name, _holds(p), p.reason) for p in known.values()])
    )
    for paper in known.values():
        own = [_section(paper, entry, results) for entry in paper.entries.values()]
        if any(own):
            parts.append(f"## {paper.name}\n")
            parts += [text for text in own if text]
    return "\n".join(parts)


def state_counts(results: Mapping[str, ResultSet]) -> str:
    """How many entries were run, at which scale."""
    counts = Counter(_states(results).values())
    return f"{counts['full']} run at full scale, {counts['part']} in part, {counts['']} not run"


def by_entry(results: Sequence[ResultSet]) -> dict[str, ResultSet]:
    """The papers' results at full scale, by entry, without those of which no number counts any more."""
    current = [result for result in results if result.name.split()[0] in papers() and not result.superseded]
    return {result.name: result for result in current if result.scale == "full"}


def _states(results: Mapping[str, ResultSet]) -> dict[str, str]:
    return {
        entry_name(paper, entry): _state(paper, entry, results)
        for paper in papers().values()
        for entry in paper.entries.values()
    }


def _state(paper: Paper, entry: Entry, results: Mapping[str, ResultSet]) -> str:
    full = results.get(entry_name(paper, entry))
    if full is None:
        return ""
    rows = compared(paper, entry, full.rows)
    wanted = [row for row in rows if row.setting.method or row.setting.baseline or entry.computation]
    return "full" if all(row.ours is not None and not row.ours.superseded for row in wanted) else "part"


def _words(state: str) -> str:
    return {"full": "full scale", "part": "full scale, in part"}.get(state, "not run")


def _reasons(entry: Entry) -> str:
    reasons = list(dict.fromkeys(setting.missing for setting in entry.settings if setting.missing))
    absent = [datasets()[name] for name in entry.datasets if datasets()[name].substitute]
    reasons += [f"{found.title} → {datasets()[found.substitute].title}" for found in absent]
    return "; ".join(reasons)


def _holds(paper: Paper) -> str:
    return ", ".join(f"{claimed} → {really:g}" for claimed, really in paper.holds.items()) or "none"


def _section(paper: Paper, entry: Entry, results: Mapping[str, ResultSet]) -> str:
    """The numbers of an entry that was run at full scale."""
    name = entry_name(paper, entry)
    result = results.get(name)
    if result is None:
        return ""
    title = f"### {paper.name}, {entry.name.replace('-', ' ')}: {entry.title}"
    made = result.provenance
    # Codes, densities and attacks are measured without the classifiers and distances of a protocol.
    protocol = "" if entry.computation or PROTOCOL not in entry.measures else f", protocol {entry.protocol}"
    deltas = ", ".join(f"{delta:g}" for delta in sorted({row.delta for row in result.rows}))
    facts = [
        _command(name, result),
        f"Measured at commit {(made.commit or 'unknown')[:7]} on {made.device}, "
        f"torch {made.versions.get('torch', 'unknown')}, δ = {deltas}{protocol}.",
        *caption(entry, result),
    ]
    facts += sorted({f"**Superseded:** {row.superseded}." for row in result.rows if row.superseded})
    if agreement(paper, entry, result):
        facts.append(f"**{agreement(paper, entry, result)}**")
    facts += [entry.note] if entry.note else []
    rows = compared(paper, entry, result.rows)
    shown = [row for row in rows if row.ours is not None or row.setting.missing]
    facts += _absent(rows, {row.setting.name for row in shown})
    return "\n\n".join((title, "\n".join(f"{fact}  " for fact in facts).rstrip(), _numbers(entry, shown)))


def _command(name: str, result: ResultSet) -> str:
    return f"`sfumato reproduce {name} --scale {result.scale} --data DATA`"


def _absent(rows: Sequence[Compared], shown: Collection[str]) -> list[str]:
    """Names of the settings without a number of ours: what the paper cites of others, and what can be run."""
    absent = {row.setting.name: row.setting for row in rows if row.setting.name not in shown}
    ours = sorted(name for name, setting in absent.items() if setting.method or setting.baseline)
    cited = sorted(absent.keys() - set(ours))
    found = [f"Not ours, cited by the paper: {', '.join(cited)}."] if cited else []
    return found + ([f"Not measured yet: {', '.join(ours)}."] if ours else [])


def _numbers(entry: Entry, rows: Sequence[Compared]) -> str:
    """A line for each setting, a column for each measure: the paper's number / ours."""
    measures = list(dict.fromkeys(name for row in rows for name in row.metrics(entry)))
    found = []
    for row in rows:
        cells = [_both(row, name) for name in measures]
        missing = row.setting.missing
        named = row.setting.name if not missing else f"{row.setting.name} (not run: {missing})"
        unit = "–" if row.ours is None or row.setting.baseline else row.ours.unit
        computed = entry.computation and not row.trained
        count = "–" if row.ours is None or computed else str(row.ours.trainings)
        found.append((row.title, unit, named, row.claimed, row.holds, row.spent, count, *cells))
    return table((*_HEADINGS, *(f"{name}: paper / ours" for name in measures)), found)


def _both(row: Compared, name: str) -> str:
    printed = row.printed.get(name)
    ours = None if row.ours is None else row.ours.values.get(name)
    if printed is None and ours is None:
        return "–"
    text = number(ours)
    struck = f"~~{text}~~" if ours is not None and row.ours is not None and row.ours.superseded else text
    return f"{number(printed)} / {struck}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    text = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    text += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(text) + "\n"
