"""Draw result files at random, run their commands again on a CPU, and compare the values with those of the files.

    OMP_NUM_THREADS=1 python experiments/rerun.py --data DATA --seed 26 --out docs/results/reruns.json

Only files are drawn whose command is recorded, ran on a CPU and takes minutes. A value agrees if the difference of the
means is what the spread of the trainings explains, by Student's t at a level of .01; a file agrees if no more of its
values lie outside than such a level lets expect (the .99 quantile of the binomial distribution). A file with one
training of each setting has no spread of its own; its command is run three times, and the spread is that of the new
runs.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy import stats

from sfumato.experiments.papers.costs import costs
from sfumato.experiments.results import ResultSet, current_commit, load_results

RESULTS = Path(__file__).parents[1] / "docs" / "results"
MOST_SECONDS = 90.0
"""Of one run of an entry."""
RUNS, LEVEL = 3, 0.01


def candidates(results: dict[str, ResultSet]) -> list[str]:
    """Entries of the papers that ran on a CPU and are cheap, at the small scale or because they always are."""
    return [
        name
        for name, result in sorted(results.items())
        if "NVIDIA" not in result.provenance.device
        and result.provenance.command.startswith("sfumato reproduce")
        and (result.scale == "small" or name.startswith(("privae-table-1", "privae-figure-2")))
        and costs()["measured"].get(result.name, math.inf) < MOST_SECONDS
        and not any(row.superseded for row in result.rows)
    ]


def run_again(result: ResultSet, data: str, folder: Path) -> ResultSet:
    """The result of the recorded command, in a folder of its own."""
    words = shlex.split(result.provenance.command)[1:]
    options = ["--data", data, "--jobs", "1", "--device", "cpu", "--out", str(folder / "out")]
    command = [sys.executable, "-m", "sfumato", *words, *options, "--results", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    [path] = folder.glob("*.json")
    return ResultSet.load(path)


def all_values(runs: Sequence[ResultSet]) -> dict[tuple[str, str, str, str], list[float]]:
    """Every training's value by setting, data, ε and measure."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for run in runs:
        for row in run.rows:
            for name, value in row.values.items():
                found.setdefault((row.setting, row.data.name, str(row.epsilon), name), []).extend(value.values)
    return found


def agrees(old: Sequence[float], new: Sequence[float]) -> bool:
    """Whether the spread explains the difference of the means."""
    freedom = len(old) + len(new) - 2
    squares = sum(float(np.var(values)) * len(values) for values in (old, new))
    error = math.sqrt(squares / freedom * (1 / len(old) + 1 / len(new)))
    difference = abs(float(np.mean(old)) - float(np.mean(new)))
    return difference <= stats.t.ppf(1 - LEVEL / 2, freedom) * error + 1e-9 * abs(float(np.mean(old)))


def compared(name: str, old: ResultSet, data: str) -> dict[str, object]:
    """How many values were compared, and which lie outside of the spread."""
    runs = 1 if old.rows[0].trainings > 1 or not old.rows[0].method else RUNS
    with TemporaryDirectory() as folder:
        places = [Path(folder) / str(number) for number in range(runs)]
        new = all_values([run_again(old, data, place) for place in places])
    before = all_values([old])
    outside = [
        {"value": list(key), "file": values, "again": new[key]}
        for key, values in before.items()
        if not (values == new[key] or agrees(values, new[key]))
    ]
    allowed = int(stats.binom.ppf(0.99, len(before), LEVEL))
    facts = {"result": name, "runs": runs, "values": len(before), "allowed_outside": allowed}
    return {**facts, "agrees": len(outside) <= allowed, "outside": outside}


def main() -> None:
    """Draw, run, compare, write. Exit status 1 if a file does not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "reruns.json")
    chosen = parser.parse_args()
    results = load_results(RESULTS)
    names = candidates(results)
    drawn = np.random.default_rng(chosen.seed).choice(names, size=chosen.count, replace=False).tolist()
    print(f"{len(names)} files can be drawn; drawn: {', '.join(drawn)}", file=sys.stderr, flush=True)
    found = [compared(name, results[name], chosen.data) for name in drawn]
    facts = {"command": f"python experiments/rerun.py --seed {chosen.seed}", "commit": current_commit()}
    chosen.out.write_text(json.dumps({**facts, "level": LEVEL, "drawn": found}, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(found, ensure_ascii=False))
    sys.exit(int(not all(one["agrees"] for one in found)))


if __name__ == "__main__":
    main()
