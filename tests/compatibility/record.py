"""Renew the fingerprints of seeded trainings, where a change of the arithmetic or of the draws is intended.

    python tests/compatibility/record.py

The releases, ledgers and samples in ``first_edition`` were written by version 0.1.0 and are never written again: they
show that files of that version still load.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.methods.registry import load
from sfumato.privacy.budget import budget_from_json
from worst_case import worst_case_images

FOLDER = Path(__file__).parent / "first_edition"


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


def trained(name: str, budget: dict[str, Any]) -> dict[str, Any]:
    """Fingerprints of the tensors that a seeded training of this release's method gives today."""
    torch.set_num_threads(1)
    method = load(FOLDER / name / "release").method
    release = method.fit(worst_case_images(), budget_from_json(budget), seed=5, device="cpu")  # type: ignore[attr-defined]
    return {key: summary(value.numpy()) for key, value in release.model.state_dict().items()}


def main() -> None:
    path = FOLDER / "fingerprints.json"
    fingerprints: dict[str, Any] = json.loads(path.read_text())
    for name, written in fingerprints.items():
        found = trained(name, written["budget"])
        same = sum(found[key] == written["tensors"].get(key) for key in found)
        print(f"{name}: {same} of {len(found)} tensors unchanged")
        written["tensors"] = found
    path.write_text(json.dumps(fingerprints, indent=1) + "\n")


if __name__ == "__main__":
    main()
