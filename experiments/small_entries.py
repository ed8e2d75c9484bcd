"""Run every entry of the papers at the small scale, one after another, and record what each costs.

    OMP_NUM_THREADS=1 python experiments/small_entries.py --data DATA

Writes the table ``measured`` of ``costs.toml``: process seconds of the whole command with ``--jobs 1``, reading of the
images included.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sfumato.experiments.entries import papers

COSTS = Path(__file__).parents[1] / "src" / "sfumato" / "planning" / "costs.toml"
TABLE = re.compile(r"(\[measured\]\n).*?(\n# Device memory)", re.DOTALL)


def children_seconds() -> float:
    """Process time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_entry(paper: str, entry: str, data: str) -> float:
    """Seconds of one command."""
    words = ["reproduce", paper, entry, "--scale", "small", "--data", data, "--jobs", "1", "--device", "cpu"]
    before = children_seconds()
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sfumato", *words, "--out", f"{folder}/out"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return children_seconds() - before


def known_seconds() -> dict[str, float]:
    """The table as it stands."""
    found = TABLE.search(COSTS.read_text(encoding="utf-8"))
    lines = re.findall(r'"([^"]+)" = ([\d.]+)', found[0] if found else "")
    return {name: float(seconds) for name, seconds in lines}


def write(seconds: dict[str, float]) -> None:
    """The table again, in the order of the catalogue."""
    names = [f"{paper.key} {entry}" for paper in papers().values() for entry in paper.entries]
    lines = "".join(f'"{name}" = {seconds[name]:.0f}\n' for name in names if name in seconds)
    COSTS.write_text(TABLE.sub(lambda found: found[1] + lines + found[2], COSTS.read_text(encoding="utf-8")))


def main() -> None:
    """All entries, or those that ``--only`` names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--only", action="append", default=[], help="An entry such as 'dppm table-1'.")
    chosen = parser.parse_args()
    seconds = known_seconds()
    names = [(paper.key, entry) for paper in papers().values() for entry in paper.entries]
    try:
        for paper, entry in names:
            name = f"{paper} {entry}"
            if not chosen.only or name in chosen.only:
                seconds[name] = run_entry(paper, entry, chosen.data)
                print(f"{name}: {seconds[name]:.1f} s", file=sys.stderr, flush=True)
    finally:
        write(seconds)


if __name__ == "__main__":
    main()
