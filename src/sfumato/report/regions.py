"""Tables of Markdown pages that are rendered from result files, so that no number is typed by hand.

A page marks a region ``<!-- results: FILE[, FILE …] KEY=VALUE … -->`` … ``<!-- /results -->``; FILE is the name of a
result file without its ending. The keys are ``measures`` (columns, separated by ``;``) and filters on the rows:
``data``, ``unit``, ``epsilon``, ``setting``, ``protocol``. What is between the marks is written by
``sfumato experiment render``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sfumato.experiments.datasets import datasets
from sfumato.experiments.results import ResultRow, ResultSet
from sfumato.experiments.spec import hint
from sfumato.report.papers import number

REGION = re.compile(r"(<!-- results: (?P<selector>[^>]*?) -->\n)(?P<body>.*?)(?P<end><!-- /results -->)", re.DOTALL)
# A number with a deviation, or a percentage. δ, code and links are not measurements.
MEASURED = re.compile(r"\d\s*±\s*\.?\d|\d\s?%")
_FILTERS = ("data", "unit", "epsilon", "setting", "protocol")


@dataclass(frozen=True)
class Selector:
    """What a region shows."""

    files: tuple[str, ...]
    measures: tuple[str, ...]
    filters: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, text: str) -> Selector:
        """From the words of a mark."""
        files: list[str] = []
        filters: dict[str, tuple[str, ...]] = {}
        measures: tuple[str, ...] = ()
        for word in shlex.split(text):
            key, separator, value = word.partition("=")
            if not separator:
                files.append(word.rstrip(","))
            elif key == "measures":
                measures = tuple(value.split(";"))
            elif key in _FILTERS:
                filters[key] = tuple(value.split(";"))
            else:
                raise ValueError(f"a results region has no {key!r}; {hint(key, ('measures', *_FILTERS))}")
        return cls(tuple(files), measures, filters)

    def accepts(self, row: ResultRow) -> bool:
        """Whether the row passes all filters."""
        epsilon = "inf" if row.epsilon is None else f"{row.epsilon:g}"
        values = {
            "data": row.data.name,
            "unit": row.unit,
            "epsilon": epsilon,
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
    """A Markdown table: a line for each row, a column for each measure."""
    for name in selector.files:
        if name not in results:
            raise LookupError(f"there is no result file {name!r}; {hint(name, results)}")
    rows = [row for name in selector.files for row in results[name].rows if selector.accepts(row)]
    if not rows:
        raise LookupError(f"no row of {', '.join(selector.files)} passes the filters {dict(selector.filters)}")
    measures = selector.measures or tuple(dict.fromkeys(name for row in rows for name in row.values))
    heads = ("data", "setting", "unit", "ε", "trainings", *measures)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        epsilon = "∞" if row.epsilon is None else f"{row.epsilon:g}"
        cells = [_cell(row, name) for name in measures]
        first = (datasets()[row.data.name].title, row.setting, row.unit, epsilon, str(row.trainings))
        lines.append("| " + " | ".join((*first, *cells)) + " |")
    reasons = sorted({row.superseded for row in rows if row.superseded})
    lines += [f"\nStruck through: superseded, because {reason}." for reason in reasons]
    return "\n".join(lines) + "\n"


def _cell(row: ResultRow, name: str) -> str:
    text = number(row.values.get(name))
    return f"~~{text}~~" if row.superseded and name in row.values else text


def unsourced_lines(page: str) -> list[str]:
    """Lines outside of all regions and code blocks that print a measured number."""
    outside = REGION.sub("", page)
    outside = re.sub(r"```.*?```|`[^`\n]*`", "", outside, flags=re.DOTALL)
    lines = [line for line in outside.splitlines() if not line.startswith("    ")]
    return [line for line in lines if MEASURED.search(line)]


def documentation_pages(root: Path) -> Sequence[Path]:
    """README and every page below ``docs``."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
