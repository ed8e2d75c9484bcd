"""A newcomer's route, measured: from a clone to the first release of 2,000 own pictures.

    python benchmarks/newcomer.py FOLDER --data mnist --out docs/results/newcomer.json

``FOLDER`` must not exist. The pictures are the first 2,000 of MNIST's training split, written as PNG files in a folder
for each class before the clock starts. Every command runs as a reader would type it, in a fresh clone and a fresh
environment. The page docs/results/newcomer.md is written from the result, and linked from the index of results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "newcomer.md"
INDEX = PAGE.with_name("index.md")
ENTRY = "| [A newcomer's route](newcomer.md) | from a clone to the first release of one's own pictures, in minutes |\n"
PICTURES = 2000
COMMANDS = (
    "git clone {root} sfumato",
    "python3 -m venv environment",
    "environment/bin/pip install -q -c sfumato/constraints.txt './sfumato[eval,report]'",
    "environment/bin/sfumato inspect pictures",
    "environment/bin/sfumato demo --data pictures --out first",
    "environment/bin/sfumato ledger first/ledger.jsonl --release first/release",
)


def measure(folder: Path, data: Path) -> dict[str, Any]:
    """Run every command and note its seconds."""
    from sfumato.experiments.results import current_commit

    folder.mkdir(parents=True)
    write_pictures(folder / "pictures", data)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SFUMATO"))}
    load, steps = os.getloadavg()[0], []
    for command in COMMANDS:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic()
        subprocess.run(command.format(root=ROOT), shell=True, cwd=folder, env=environment, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        words = command.replace("{root}", "REPOSITORY")
        print(words, file=sys.stderr)
        steps.append({"command": words, "seconds": round(time.monotonic() - started), "cpu_seconds": round(spent)})
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    made = {"command": "python benchmarks/newcomer.py", "commit": current_commit()}
    return {**made, "pictures": PICTURES, "machine": machine, "load": round(load, 1), "steps": steps}


def write_pictures(folder: Path, data: Path) -> None:
    """PNG files in a folder for each class."""
    from PIL import Image

    from sfumato.data import read

    images = read(data, classes=10)
    for row in range(PICTURES):
        place = folder / str(images.labels[row])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images.pixels[row][0]).save(place / f"{row:05d}.png")


def page(result: dict[str, Any]) -> str:
    """The page about the measurement."""
    steps = result["steps"]
    wall, cpu = (sum(step[name] for step in steps) for name in ("seconds", "cpu_seconds"))
    lines = [
        "# A newcomer's route",
        "",
        f"From a clone to the first release of {result['pictures']:,} own pictures: {len(steps)} commands, "
        f"{wall / 60:.1f} minutes,",
        f"{cpu / 60:.1f} minutes of CPU time. {result['machine']}; load average before it: {result['load']}.",
        "The pictures are the first of MNIST's training split, as PNG files in a folder for each class. The time to",
        "download packages depends on the network.",
        "",
        "<!-- table: newcomer -->",
        "| command | seconds | CPU seconds |",
        "|---|---|---|",
        *(f"| `{step['command']}` | {step['seconds']} | {step['cpu_seconds']} |" for step in steps),
        "<!-- /table -->",
        "",
        "Measured by `python benchmarks/newcomer.py FOLDER --data mnist`; the numbers are in",
        "`docs/results/newcomer.json`. The demo trains DP-MERF; [which method to choose](../how-to/choose.md) depends",
        "on time and images.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "newcomer.json")
    arguments = parser.parse_args()
    found = measure(arguments.folder, arguments.data)
    arguments.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(found), encoding="utf-8")
    index = INDEX.read_text(encoding="utf-8")
    if ENTRY not in index:
        INDEX.write_text(index.replace("| Methods |", f"{ENTRY}| Methods |", 1), encoding="utf-8")
    print(page(found), file=sys.stderr)
