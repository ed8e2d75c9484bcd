"""Fenced blocks of the documentation.

``<!-- gpu -->`` or ``<!-- cluster -->`` on the line above a block says that it needs such a machine and is not run;
``<!-- fragment -->`` marks Python that is part of a larger file. tests/documentation/test_commands.py runs the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from finding import ROOT, line_of

BLOCK = re.compile(
    r"(?:<!-- (?P<tag>[\w-]+) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
LANGUAGES = ("sh", "python", "text", "json", "toml", "yaml", "html", "css")
NOT_RUN = ("gpu", "cluster", "fragment")


@dataclass(frozen=True)
class FencedBlock:
    """One block of a page."""

    language: str
    body: str
    tag: str
    line: int

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block."""
        for line in self.body.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def pages() -> list[Path]:
    """Every page with blocks that a reader may copy."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[FencedBlock]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [
        FencedBlock(one["language"], one["body"], one["tag"] or "", line_of(text, one.start()))
        for one in BLOCK.finditer(text)
    ]


def without_blocks(text: str) -> str:
    """The page with empty lines in place of its fenced blocks, so that line numbers stay."""
    return BLOCK.sub(lambda found: "\n" * found.group().count("\n"), text)
