"""Tables of Markdown pages that are rendered from result files, so that no number is typed by hand.

A page marks a region ``<!-- results: FILE[, FILE …] KEY=VALUE … -->`` … ``<!-- /results -->``; FILE is the name of a
result file without its ending. The keys are ``measures`` (separated by ``;``) and filters on the rows: ``data``,
``unit``, ``epsilon``, ``setting``, ``protocol``. The measures ``seconds`` and ``processor seconds`` are those of a
training. By default each row is a line and each measure a column; with ``layout=pivot`` each setting is a line, each
dataset and ε a column, with the number of trainings in brackets, and ``paper=beside`` adds what the paper of an entry
prints. Numbers that were transcribed have a dagger. What is between the marks is written by ``python
docs/tools/render.py``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paper_page import table
from sfumato.experiments.datasets import datasets
from sfumato.experiments.entries import find
from sfumato.experiments.reproduction import compared
from sfumato.experiments.results import ResultRow, ResultSet
from sfumato.experiments.spec import hint
from sfumato.report.papers import number

REGION = re.compile(r"(<!-- results: (?P<selector>[^>]*?) -->\n)(?P<body>.*?)(?P<end><!-- /results -->)", re.DOTALL)
# A number with a deviation, or a percentage. δ, code and links are not measurements.
MEASURED = re.compile(r"\d\s*±\s*\.?\d|\d\s?%")
DAGGER = " †"
TRANSCRIBED = (
    "† Transcribed: measured before the program wrote its results to files, so neither the commit nor a hash of the "
    "log is known."
)
_KEYS = ("measures", "layout", "paper")
_FILTERS = ("data", "unit", "epsilon", "setting", "protocol")


@dataclass(frozen=True)
class Selector:
    """What a region shows."""

    files: tuple[str, ...]
    measures: tuple[str, ...]
    filters: Mapping[str, tuple[str, ...]]
    pivot: bool = False
    paper: bool = False

    @classmethod
    def parse(cls, text: str) -> Selector:
        """From the words of a mark."""
        files: list[str] = []
        filters: dict[str, tuple[str, ...]] = {}
        measures: tuple[str, ...] = ()
        pivot = paper = False
        for word in shlex.split(text):
            key, separator, value = word.partition("=")
            if not separator:
                files.append(word.rstrip(","))
            elif key == "measures":
                measures = tuple(value.split(";"))
            elif word == "layout=pivot":
                pivot = True
            elif word == "paper=beside":
                paper = True
            elif key in _FILTERS:
                filters[key] = tuple(value.split(";"))
            else:
                raise ValueError(f"a results region has no {key!r}; {hint(key, (*_KEYS, *_FILTERS))}")
        return cls(tuple(files), measures, filters, pivot, paper)

    def accepts(self, row: ResultRow) -> bool:
        """Whether the row passes all filters."""
        values = {
            "data": row.data.name,
            "unit": row.unit,
            "epsilon": _epsilon(row),
            "setting": row.setting,
            "protocol": row.protocol,
        }
        return all(values[key] in allowed for key, allowed in self.filters.items())


def rendered(page: str, results: Mapping[str, ResultSet]) -> str:
    """The page with every region written again."""

    def body(match: re.Match[str]) -> str:
        selector = Selector.parse(match["selector"])
        return f"{match[1]}{region_table(selector, results)}{match['end']}"

    return REGION.sub(body, page)


def region_table(selector: Selector, results: Mapping[str, ResultSet]) -> str:
    """A Markdown table of the selected rows, and why some of them are struck through."""
    for name in selector.files:
        if name not in results:
            raise LookupError(f"there is no result file {name!r}; {hint(name, results)}")
    files = [results[name] for name in selector.files]
    found = [(row, file.transcribed) for file in files for row in file.rows if selector.accepts(row)]
    if not found:
        raise LookupError(f"no row of {', '.join(selector.files)} passes the filters {dict(selector.filters)}")
    rows = [row for row, _ in found]
    # One dagger in the heading where every row has it.
    every, some = all(mark for _, mark in found), any(mark for _, mark in found)
    shown = [_Shown(row, DAGGER * (mark and not every)) for row, mark in found]
    measures = selector.measures or tuple(dict.fromkeys(name for row in rows for name in row.values))
    if selector.pivot:
        printed = _printed(files, selector, measures) if selector.paper else {}
        text = _pivot(shown, measures, printed, DAGGER * every)
    else:
        text = _flat(shown, measures, DAGGER * every)
    text += f"\n{TRANSCRIBED}\n" if some else ""
    made = [file.provenance.commit for file in files]
    commits = sorted({commit[:7] for commit in made if commit})
    text += f"\nMeasured at commit {', '.join(commits)}.\n" if commits else ""
    halves = sorted({row.setting for row in rows if row.arithmetic != "float32"})
    text += f"\nClassifiers that were trained in bfloat16: {', '.join(halves)}.\n" if halves else ""
    reasons = sorted({row.superseded for row in rows if row.superseded})
    return text + "".join(f"\nStruck through: superseded, because {reason}.\n" for reason in reasons)


@dataclass(frozen=True)
class _Shown:
    """A row, and the dagger beside its numbers."""

    row: ResultRow
    mark: str


def _flat(shown: Sequence[_Shown], measures: Sequence[str], mark: str) -> str:
    lines = []
    for one in shown:
        row, count = one.row, f"{one.row.trainings}{one.mark}"
        first = (datasets()[row.data.name].title, row.setting, row.unit, _epsilon(row), count)
        # A measure of fewer trainings than the row has says how many.
        counted = {name for name, value in row.values.items() if value.trainings != row.trainings}
        lines.append((*first, *(_cell(row, name, counted=name in counted) for name in measures)))
    return table(("data", "setting", "unit", "ε", f"trainings{mark}", *measures), lines)


_Column = tuple[str, str, str, str]
"""Dataset, ε, unit and protocol."""


def _pivot(
    shown: Sequence[_Shown], measures: Sequence[str], printed: Mapping[str, Mapping[_Column, str]], mark: str
) -> str:
    """A line for each setting, a column for each dataset, unit, ε and protocol: none of these is averaged over."""
    if len(measures) != 1:
        raise ValueError(f"layout=pivot shows one measure, not {', '.join(measures)}")
    columns = _columns([one.row for one in shown if one.row.epsilon is not None])
    lines: dict[str, dict[_Column, str]] = {}
    for one in shown:
        row, own = one.row, lines.setdefault(one.row.setting, {})
        for key in columns:
            # A row without ε, such as real data, is shown in every column of its dataset and protocol.
            if key == _column(row) or (row.epsilon is None and (key[0], key[3]) == (row.data.name, row.protocol)):
                if key in own:
                    raise ValueError(f"two rows for {row.setting}, {columns[key]}: select one of them")
                own[key] = _cell(row, measures[0], counted=True) + one.mark
    lines |= {f"{setting}: what the paper prints": dict(own) for setting, own in printed.items()}
    body = [(setting, *(own.get(key, "–") for key in columns)) for setting, own in lines.items()]
    return table((f"{measures[0]}{mark}", *columns.values()), body)


def _printed(files: Sequence[ResultSet], selector: Selector, measures: Sequence[str]) -> dict[str, dict[_Column, str]]:
    """By setting, what the papers of the entries print beside the selected rows."""
    found: dict[str, dict[_Column, str]] = {}
    for file in files:
        paper, entry = find(*file.name.split())
        for row in compared(paper, entry, file.rows):
            value = row.printed.get(measures[0])
            if row.ours is not None and value is not None and selector.accepts(row.ours):
                found.setdefault(row.setting.name, {})[_column(row.ours)] = number(value)
    return found


def _column(row: ResultRow) -> _Column:
    return (row.data.name, _epsilon(row), row.unit, row.protocol)


def _columns(rows: Sequence[ResultRow]) -> dict[_Column, str]:
    """By dataset and then by ε; the unit and the protocol are in the heading where they differ between columns."""
    order = list(dict.fromkeys(row.data.name for row in rows))
    units, protocols = ({getattr(row, name) for row in rows} for name in ("unit", "protocol"))
    found = {}
    for row in sorted(rows, key=lambda row: (order.index(row.data.name), row.epsilon, row.unit)):
        words = [f"{datasets()[row.data.name].title}, ε {_epsilon(row)}"]
        words += [f"per {row.unit}"] if len(units) > 1 else []
        words += [f"`{row.protocol}`"] if len(protocols) > 1 else []
        found[_column(row)] = ", ".join(words)
    return found


def _epsilon(row: ResultRow) -> str:
    return "∞" if row.epsilon is None else f"{row.epsilon:g}"


def _cell(row: ResultRow, name: str, *, counted: bool = False) -> str:
    value = row.values.get(name)
    if value is None:
        seconds = {"seconds": row.seconds, "processor seconds": row.processor_seconds}.get(name)
        return "–" if seconds is None else f"{seconds:,.0f}"
    text = number(value) + (f" ({value.trainings})" if counted else "")
    return f"~~{text}~~" if row.superseded else text


def unsourced_numbers(page: str) -> list[str]:
    """Numbers with a deviation or a percent sign outside of all regions and code blocks."""
    outside = REGION.sub("", page)
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", outside, flags=re.DOTALL)
    lines = [line for line in outside.splitlines() if not line.startswith("    ")]
    return [found.group() for line in lines for found in MEASURED.finditer(line)]


def documentation_pages(root: Path) -> Sequence[Path]:
    """README and every page below ``docs``."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
