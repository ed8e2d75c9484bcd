"""A finished run on drawn digits, with an evaluation beside it, as small as it can be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from sfumato.data import Images, PrivateImages
from sfumato.data.digits import draw_digits
from sfumato.evaluation.evaluate import evaluate
from sfumato.evaluation.private_views import nearest_neighbours, write_side_by_side, write_view
from sfumato.evaluation.results import EvaluationResult
from sfumato.experiments.comparison import ClassSummary, ComparedMethod, ComparedMetric, ComparisonResult
from sfumato.experiments.results import Measured
from sfumato.methods import DPMERF
from sfumato.methods.registry import load
from sfumato.privacy import Budget
from sfumato.release.pages import data_address
from sfumato.training.run import Run

PIXEL = data_address(Image.new("L", (1, 1)))
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


def compared(methods: Sequence[str]) -> ComparisonResult:
    """A comparison with every metric of its page, made up."""
    kinds = [("LR accuracy, % ↑", "accuracy"), ("MLP accuracy, % ↑", "accuracy"), ("CNN accuracy, % ↑", "accuracy")]
    kinds += [("FID ↓", "fid"), ("KID × 1000 ↓", "kid"), ("coverage ↑", "coverage")]
    kinds += [("class-feature coverage ↑", "coverage")]
    metrics = tuple(ComparedMetric(0.123, 0.0123, 2, (0.1, 0.2), heading, metric, "CNN") for heading, metric in kinds)
    number = Measured(123.4, 12.3, 2, (100.0, 150.0))
    entries = tuple(
        ComparedMethod(
            method=name,
            variant="certified",
            name=name,
            paper="a paper",
            parameters={"steps": 3},
            epsilon=epsilon,
            spent=epsilon,
            runs=("run-0", "run-1"),
            metrics=metrics,
            worst_class=ClassSummary(0.5, None, 1, (0.5,), name="ankle boot"),
            seconds=number,
            peak_memory=Measured(2.0**31, None, 1, (2.0**31,)),
            peak_device_memory=2.0**31,
            threads=1,
            resumed=0,
        )
        for name in methods
        for epsilon in (1.0, 10.0)
    )
    facts = {"data": "digits", "protocol": "sinkhorn", "unit": "image", "images": 60_000}
    composed = {"epsilon": 20.0, "delta": 1e-5, "ledgers": 12}
    about = {"versions": {}, "counts": None, "left_out": []}
    return ComparisonResult(facts, "cuda", about, composed, entries, (), {})


def write_npz(path: Path, images: Images) -> Path:
    np.savez(path, images=images.pixels[:, 0], labels=images.labels)
    return path
