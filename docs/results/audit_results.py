"""Measure the tables of audits.md again: canaries in every certified method, and membership attacks on two releases.

    OMP_NUM_THREADS=1 python docs/results/audit_results.py
    python docs/tools/render.py

writes ``audit-canaries.json`` and ``audit-membership.json``; a few minutes on one core. Random and worst-case images
and drawn digits, so no file of data is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sfumato.data.digits import draw_digits
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, provenance

HERE = Path(__file__).parent
COMMAND = "python docs/results/audit_results.py"
CANARIES: Mapping[str, tuple[str, ...]] = {
    "dp-merf": ("--set", "features=2000", "--canaries", "2000", "--runs", "2", "--black-box"),
    "dp-lflow": ("--canaries", "300", "--runs", "3"),
    "dppm": ("--canaries", "300", "--runs", "3"),
    "dp2-vae": ("--canaries", "300", "--runs", "3"),
    "privae": ("--canaries", "300", "--runs", "3"),
    "gs-wgan": ("--canaries", "300", "--runs", "3"),
    "dpaf": ("--canaries", "60", "--runs", "10"),
    "broken_methods:ControlMethod": ("--canaries", "780", "--runs", "5"),
}
EPSILONS = (1.0, 10.0)
DRAWN = DataUsed("worst-case-images", "drawn", records=108)
DIGITS = DataUsed("digits", "1,000 members with seed 1, 1,000 others with seed 2", records=1000)
TRAINING = ("--method", "dp-merf", "--set", "features=1000", "--set", "iterations=300", "--set", "batch_size=100")


def sfumato(*words: str, folder: Path = HERE) -> Any:
    """What a command prints as JSON. Status 1 means that an audit found something, which is a result."""
    command = [sys.executable, "-m", "sfumato", *words]
    paths = [str(HERE.parents[1] / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}  # the control method is in tests/
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=own)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"sfumato {' '.join(words)}\n{done.stderr}")
    return json.loads(done.stdout) if "--json" in words else None


def single(values: Mapping[str, float]) -> dict[str, Measured]:
    """One measurement of each."""
    return {name: Measured(value, None, 1) for name, value in values.items()}


def canary_row(method: str, options: Sequence[str], epsilon: float) -> ResultRow:
    """The bounds that canaries give for a method under a budget."""
    found = sfumato("audit", "canary", method, *options, "--epsilon", f"{epsilon:g}", "--json")
    white, ledger, *black = found["audits"]
    values = {
        "printed ε": white["printed"],
        "white box, one run's bound": white["measured"]["epsilon"],
        "if Gaussian": white["also"]["epsilon"],
        "likelihood ratio of the ledger": ledger["measured"]["epsilon"],
        **({"black box": black[0]["measured"]["epsilon"]} if black else {}),
    }
    name = method.rpartition(":")[2] if ":" in method else method
    return ResultRow(
        setting=f"{name} ({' '.join(options)})",
        data=DRAWN,
        protocol="canaries",
        epsilon=epsilon,
        delta=1e-5,
        unit="image",
        method=None if ":" in method else method,
        spent=white["printed"],
        values=single(values),
    )


def membership_rows(epsilon: float) -> list[ResultRow]:
    """Attacks on DP-MERF's release of drawn digits."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part, seed in (("in", 1), ("out", 2)):
            digits = draw_digits(1000, seed=seed)
            np.savez(
                folder / f"{part}.npz", images=digits.pixels, labels=digits.labels, classes=np.array(digits.classes)
            )
        sfumato("train", "in.npz", *TRAINING, "--epsilon", f"{epsilon:g}", "--out", "run", folder=folder)
        words = ("--members", "in.npz", "--others", "out.npz", "--samples", "2000", "--shadows", "8", "--json")
        found = sfumato("audit", "membership", "run", *words, folder=folder)
    return [
        ResultRow(
            setting=f"dp-merf, {one['attack']}",
            data=DIGITS,
            protocol="membership",
            epsilon=epsilon,
            delta=1e-5,
            unit="image",
            method="dp-merf",
            values=single(
                {
                    "AUC": one["auc"],
                    "found at .001 false": one["tpr_at_0.1_percent_fpr"],
                    "found at .01 false": one["tpr_at_1_percent_fpr"],
                }
            ),
        )
        for one in found["attacks"]
    ]


def write(name: str, title: str, rows: Sequence[ResultRow]) -> None:
    """A result file beside this script."""
    ResultSet(name, title, "small", provenance(COMMAND, "cpu"), tuple(rows)).save(HERE / f"{name}.json", private=False)


if __name__ == "__main__":
    canaries = [canary_row(method, options, e) for method, options in CANARIES.items() for e in EPSILONS]
    write("audit-canaries", "Lower bounds on ε by canaries, of every method's small form", canaries)
    attacks = [row for epsilon in EPSILONS for row in membership_rows(epsilon)]
    write("audit-membership", "Membership attacks on releases of DP-MERF", attacks)
