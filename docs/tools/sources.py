"""Where the numbers of README and documentation come from: every rendered region, with its page, line and files.

python docs/tools/sources.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from finding import ROOT, line_of
from paper_page import by_entry
from regions import MEASURED, REGION, Selector, documentation_pages, unsourced_numbers
from sfumato.experiments.results import ResultSet, load_results

_OTHER_REGION = re.compile(
    r"<!-- (?P<mark>(?P<kind>table|expected use|case studies|measured)\b[^>]*?) -->\n.*?<!-- /(?P=kind)", re.DOTALL
)
_NUMBER = re.compile(r"\d[\d.,]*")
_OTHER_FILES = {
    "case studies": ("case-studies",),
    "expected use: other data": ("expected-use",),
    "expected use: other settings": ("expected-use",),
    "measured: costs": ("scale",),
    "measured: killed": ("killed-ranks",),
    "measured: mixture": ("mixture-scale",),
    "measured: training": ("scale",),
    "table: accountants": ("verification-accountants",),
    "table: contenders": ("engine-cpu-contenders",),
    "table: chosen-defects": ("mutants-chosen",),
    "table: exactness": ("engine-exactness-cpu", "engine-exactness-cpu-wide"),
    "table: filter": ("filter",),
    "table: gradients": ("engine-cpu", "engine-cpu-sizes", "engine-cpu-2048"),
    "table: kills": ("kills",),
    "table: profiles": ("engine-cpu",),
    "table: random-defects": ("mutants-random",),
    "table: replay": ("replay",),
    "table: recomputed": ("verification-recomputed",),
    "table: reruns": ("reruns",),
    "table: tampering": ("verification-tampering",),
    "table: verified-releases": ("verification-releases",),
    "table: the sources": (),  # counted in them
    "table: web-load": ("web",),
    "table: web-way": ("web",),
}
"""Regions of files with a format of their own, written and compared by the scripts beside them."""


@dataclass(frozen=True)
class Source:
    """A place of a page, how many numbers stand there, and the result files that they are rendered from."""

    page: str
    line: int
    numbers: int
    files: tuple[str, ...]


def sources(root: Path, results: Mapping[str, ResultSet]) -> list[Source]:
    """Of all pages, in their order. A number with a deviation or a percent sign outside of all regions has no file."""
    found = (one for path in documentation_pages(root) for one in _of_page(path, root, results))
    return [one for one in found if one.numbers]


def _of_page(path: Path, root: Path, results: Mapping[str, ResultSet]) -> Iterator[Source]:
    page, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
    whole = _whole_page(page, results)
    if whole:
        yield Source(page, 1, len(_NUMBER.findall(text)), whole)
        return
    for region in REGION.finditer(text):
        yield Source(page, line_of(text, region.start()), _count(region), Selector.parse(region["selector"]).files)
    for region in _OTHER_REGION.finditer(text):
        yield Source(page, line_of(text, region.start()), _count(region), _OTHER_FILES[region["mark"]])
    for number in unsourced_numbers(_OTHER_REGION.sub("", text)):
        place = next(found for found in MEASURED.finditer(text) if found.group() == number)
        yield Source(page, line_of(text, place.start()), 1, ())


def _whole_page(page: str, results: Mapping[str, ResultSet]) -> tuple[str, ...]:
    """The page that is rendered as a whole: the state of the papers' entries."""
    if page == "docs/results/reproduction.md":
        shown = by_entry([one for one in results.values() if one.provenance.commit]).values()
        return tuple(name for name, result in results.items() if any(result is one for one in shown))
    return ()


def _count(region: re.Match[str]) -> int:
    """Numbers below the mark and the heading of the table."""
    return len(_NUMBER.findall(re.sub(r"^<!--.*?-->\n(\|.*\n)?", "", region.group())))


if __name__ == "__main__":
    found = sources(ROOT, load_results(ROOT / "docs" / "results"))
    for one in found:
        print(f"{one.page}:{one.line}: {one.numbers} numbers: {', '.join(one.files) or 'NO FILE'}")
    absent = sum(not one.files for one in found)
    print(f"{sum(one.numbers for one in found)} numbers in {len(found)} places, {absent} of them without a file")
