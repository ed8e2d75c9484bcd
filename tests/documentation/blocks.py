"""Fenced blocks of the documentation, and how their commands are run at a small size.

Blocks of one page run in order, in one folder. ``<!-- gpu -->`` or ``<!-- cluster -->`` on the line above a block says
that it needs such a machine and is not run; ``<!-- fragment -->`` marks Python that is part of a larger file. A page
with ``<!-- needs: run -->`` finds a finished run in ``run/`` and images drawn from it in ``synthetic/``.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sfumato.data.digits import draw_digits
from sfumato.methods import find

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:<!-- (?P<tag>[\w-]+) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
NOT_RUN = ("gpu", "cluster", "fragment")
# Run by tests/documentation/test_packages.py and by whoever runs the suite.
INSTALLING = ("pip", "make", "git", "cd", "python3", "podman", "sfumato-env/bin/pip", "unshare")
MOST_IMAGES = 120


@dataclass(frozen=True)
class FencedBlock:
    """One block of a page."""

    language: str
    body: str
    tag: str

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
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [FencedBlock(one["language"], one["body"], one["tag"] or "") for one in found]


def smaller(words: list[str]) -> list[str]:
    """The same command with the method's smallest parameters and few images."""
    words = ["120" if before == "--count" else word for before, word in zip(["", *words], words, strict=False)]
    if words[1] == "train":
        words += [] if "--method" in words else ["--method", "dp-merf"]
        name = words[words.index("--method") + 1]
        variant = words[words.index("--variant") + 1] if "--variant" in words else "certified"
        kind = find(name)
        usual = kind(variant=variant).parameters()
        small = kind.small(variant).parameters()
        given = {words[place + 1].split("=")[0] for place, word in enumerate(words) if word == "--set"}
        given |= {"steps"} if "--steps" in words else set()
        for key, value in small.items():
            if value != usual[key] and key not in given and key != "variant":
                words += ["--set", f"{key}={value}"]
    if words[1] == "evaluate":
        words += ["--no-inception", "--seeds", "1", "--no-cache"]
    if words[1:3] in (["audit", "canary"], ["audit", "replay"]) and len(words) > 3:
        words += ["--canaries", "20"] if words[2] == "canary" else ["--pairs", "1", "--search", "0"]
    return words


def make_collection(folder: Path) -> None:
    """Drawn digits as a folder for each class: two images of each person, whose name begins the file's name."""
    drawn = draw_digits(MOST_IMAGES, seed=3)
    for row, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        place = folder / f"class-{label % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels[0])).save(place / f"p{row // 4:03d}_{row:04d}.png")


def sfumato(words: list[str]) -> int:
    """Run a command in this process, which has torch loaded already."""
    from sfumato.cli.main import main

    before, sys.argv = sys.argv, words
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0
