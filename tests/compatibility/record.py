"""Write the fixtures of this folder: seeded releases of every method's small form, with their ledgers and samples.

    python tests/compatibility/record.py tests/compatibility/first_edition

The files in ``first_edition`` were written by version 0.1.0 and are never written again: they show that releases and
ledgers of that version still load. ``fingerprints.json`` may be renewed when a change of the arithmetic is intended.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.methods import METHODS, find
from sfumato.privacy import Budget, BudgetExceeded, NoGuarantee
from worst_case import worst_case_images


def summary(values: np.ndarray) -> dict[str, Any]:
    """Shape, a few sums that notice a change of any entry, and a hash of the bits."""
    flat = np.nan_to_num(np.asarray(values, dtype=np.float64).ravel())
    direction = np.random.default_rng(0).standard_normal(flat.size)
    return {
        "shape": list(values.shape),
        "norm": float(np.linalg.norm(flat)),
        "projection": float(flat @ direction),
        "sha256": hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest(),
    }


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    fingerprints: dict[str, Any] = {}
    for name in METHODS:
        cls = find(name)
        for variant in cls.variants:
            method = cls.small(variant)
            budgets = [NoGuarantee()] if cls.raw_access else [Budget(e, 1e-5) for e in (3.0, 30.0, 300.0)]
            for budget in budgets:
                try:
                    method.plan(budget)
                    break
                except BudgetExceeded:
                    continue
            own = folder / f"{name} {method.variant}"
            release = method.fit(worst_case_images(), budget, own / "ledger.jsonl", seed=5, device="cpu")
            release.save(own / "release")
            (own / "release" / "card.html").unlink()
            (own / "ledger.jsonl.lock").unlink()
            images, _ = release.sample(8, seed=1, device="cpu")
            tensors = {key: summary(value.numpy()) for key, value in release.model.state_dict().items()}
            fingerprints[own.name] = {"budget": budget.to_json(), "tensors": tensors, "samples": summary(images)}
            print(own.name, len(tensors))
    (folder / "fingerprints.json").write_text(json.dumps(fingerprints, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
