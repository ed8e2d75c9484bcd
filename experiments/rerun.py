"""Draw result files at random, run their commands again on a CPU, and compare the values with those of the files.

    OMP_NUM_THREADS=1 python experiments/rerun.py --data DATA --seed 26 --out docs/results/reruns.json

Only files are drawn whose command is recorded, ran on a CPU and takes minutes: entries of the papers, and experiments
of a TOML file in this folder. A value agrees if the difference of the
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

from sfumato.experiments.results import ResultSet, current_commit, load_results
from sfumato.experiments.spec import read_experiments
from sfumato.planning.costs import costs

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
MOST_SECONDS = 90.0
"""Of one run of an entry."""
RUNS, LEVEL = 3, 0.01


def candidates(results: dict[str, ResultSet]) -> list[str]:
    """Results that were made on a CPU by a command that can be given again, and that are cheap."""
    return [
        name
        for name, result in sorted(results.items())
        if "NVIDIA" not in result.provenance.device
        and (_cheap_entry(name, result) or _cheap_experiment(result))
        and not any(row.superseded for row in result.rows)
    ]


def _cheap_entry(name: str, result: ResultSet) -> bool:
    """An entry of a paper that is cheap at full scale."""
    return (
        result.provenance.command.startswith("sfumato reproduce")
        and name.startswith(("privae-table-1", "privae-figure-2"))
        and costs()["measured"].get(result.name, math.inf) < MOST_SECONDS
    )


def _cheap_experiment(result: ResultSet) -> bool:
    """An experiment of a TOML file of this folder whose result names its commit and its log."""
    logged = result.provenance.commit is not None and all(row.log_sha256 for row in result.rows)
    seconds = sum((row.seconds or math.inf) * row.trainings for row in result.rows)
    return logged and _experiment_file(result) is not None and seconds < MOST_SECONDS


def _experiment_file(result: ResultSet) -> Path | None:
    """The TOML file of an experiment that is still in it."""
    words = shlex.split(result.provenance.command)
    if words[:3] != ["sfumato", "experiment", "run"] or len(words) < 4:
        return None
    path = HERE / Path(words[3]).name
    known = [one.name for one in read_experiments(path)] if path.is_file() else []
    return path if result.name in known else None


def words_again(result: ResultSet, data: str, folder: Path) -> list[str]:
    """The recorded command, of an experiment with this one result alone, with folders of this machine."""
    file = _experiment_file(result)
    options = ["--data", data, "--device", "cpu", "--out", str(folder / "out"), "--results", str(folder)]
    if file is not None:
        return ["experiment", "run", str(file), "--only", result.name, *options]
    return [*shlex.split(result.provenance.command)[1:], "--jobs", "1", *options]


def run_again(result: ResultSet, data: str, folder: Path) -> ResultSet:
    """The result of the recorded command, in a folder of its own."""
    command = [sys.executable, "-m", "sfumato", *words_again(result, data, folder)]
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
    if len(names) < chosen.count:
        sys.exit(
            f"Only {len(names)} results can be drawn, and --count asks for {chosen.count}. Entries of the papers can "
            "be once `python experiments/small_entries.py` has measured their seconds."
        )
    drawn = np.random.default_rng(chosen.seed).choice(names, size=chosen.count, replace=False).tolist()
    print(f"{len(names)} files can be drawn; drawn: {', '.join(drawn)}", file=sys.stderr, flush=True)
    found = [compared(name, results[name], chosen.data) for name in drawn]
    facts = {"command": f"python experiments/rerun.py --seed {chosen.seed}", "commit": current_commit()}
    chosen.out.write_text(json.dumps({**facts, "level": LEVEL, "drawn": found}, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(found, ensure_ascii=False))
    sys.exit(int(not all(one["agrees"] for one in found)))


if __name__ == "__main__":
    main()
