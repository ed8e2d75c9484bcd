"""A finished run on drawn digits, with an evaluation beside it, as small as it can be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sfumato.data import Images, PrivateImages
from sfumato.data.digits import draw_digits
from sfumato.evaluation.evaluate import evaluate
from sfumato.evaluation.private_views import nearest_neighbours, write_side_by_side, write_view
from sfumato.evaluation.results import EvaluationResult
from sfumato.methods import DPMERF
from sfumato.methods.registry import load
from sfumato.privacy import Budget
from sfumato.training.run import Run

TRAIN, TEST = draw_digits(317, seed=1), draw_digits(90, seed=2)


def finished_run(folder: Path, *, epsilon: float = 5.0, unit: str = "image") -> Run:
    """``release/``, ``internal/`` and a ledger, written by the run itself."""
    run = Run(folder)
    run.begin({"method": "dp-merf"}, resume=False)
    budget = Budget(epsilon, 1e-5, unit)  # type: ignore[arg-type]
    run.finish(DPMERF.small().fit(PrivateImages.from_images(TRAIN), budget, run.ledger, command="sfumato train …"))
    return run


def evaluated(run: Run) -> EvaluationResult:
    """Put an evaluation, the pictures beside it and a cost into ``internal/``."""
    release = load(run.release)
    drawn = release.sample(80, seed=0)
    result = evaluate(drawn, TRAIN, TEST, data="drawn digits", seeds=[0], with_inception=False)
    (run.internal / "evaluation.json").write_text(json.dumps(result.to_json()))
    found = nearest_neighbours(drawn.images, TRAIN.pixels, TEST.pixels)
    write_view(run.internal / "neighbours.png", found, synthetic=drawn.images, real_train=TRAIN.pixels)
    write_side_by_side(run.internal / "side_by_side", drawn, TRAIN)
    cost = {"seconds": 1.5, "peak_memory": 2**28, "device": "cpu", "threads": 1, "resumed": False}
    (run.internal / "cost.json").write_text(json.dumps(cost))
    return result


def write_npz(path: Path, images: Images) -> Path:
    np.savez(path, images=images.pixels[:, 0], labels=images.labels)
    return path
