"""How commands of the documentation are run at a small size.

Blocks of one page run in order, in one folder. A page with ``<!-- needs: run -->`` finds a finished run in ``run/`` and
images drawn from it in ``synthetic/``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from sfumato.data.digits import draw_digits
from sfumato.methods import find

# Run by tests/documentation/test_packages.py and by whoever runs the suite.
INSTALLING = ("pip", "make", "git", "cd", "python3", "podman", "sfumato-env/bin/pip", "unshare")
MOST_IMAGES = 120


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
