"""``sfumato.compare``: every certified method on the same data, as files and as one result. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from sfumato.data.images import Options
from sfumato.evaluation.protocols import protocol_named
from sfumato.experiments.compare import ComparisonResult, gather, to_csv
from sfumato.experiments.comparison import (
    chosen_methods,
    comparison_conditions,
    comparison_hold_out,
    comparison_trainings,
    planned_epsilon,
    run_comparison,
)
from sfumato.experiments.runner import Progress, ignore
from sfumato.experiments.spec import EvaluationSpec
from sfumato.files import write_file, write_json
from sfumato.methods import Method
from sfumato.methods.registry import load
from sfumato.privacy.budget import Unit
from sfumato.report.comparison import comparison_page
from sfumato.report.public import sample_rows


def compare(
    data: str | Path,
    *,
    out: str | Path,
    methods: Sequence[Method] | str = "all",
    epsilon: Sequence[float] = (1.0, 10.0),
    delta: float = 1e-5,
    unit: Unit | None = None,
    seeds: int = 1,
    protocol: str = "sinkhorn",
    images: int | None = None,
    feature_images: int | None = None,
    with_inception: bool = True,
    test: str | Path | None = None,
    hold_out: float | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    report: Callable[[Progress], None] = ignore,
    planned: Callable[[float, int], None] | None = None,
    **options: Unpack[Options],
) -> ComparisonResult:
    """Train and evaluate certified methods alike, and write a table, a curve and a page. The result is NOT PRIVATE.

    Each training is a run of its own with its own ledger. A comparison that was interrupted continues where it was
    when the same call is made again. Bad images are refused before ``out`` is begun.

    Args:
        data: The private images; they are read from files, as ``sfumato.read`` does it.
        out: The comparison's folder.
        methods: Configured methods, or names with commas between; by default every method in its certified form.
        epsilon: The budgets.
        delta: δ of the guarantee; well below one over the number of units.
        unit: What is protected; by default persons, where the collection names them, and else images.
        seeds: Independent trainings of each method at each ε.
        protocol: The name of the evaluation's protocol.
        images: Synthetic images of each run; by default the protocol's number.
        feature_images: Images of each set for FID and KID.
        with_inception: Whether to measure FID and KID.
        test: The real test images, if they are elsewhere.
        hold_out: Hold out this share of the units at random to test on.
        device: Where networks run, ``cpu`` or ``cuda``.
        jobs: Processes that train at a time, each with its own time and memory; by default all runs are done in this
            process. A script that asks for processes needs ``if __name__ == "__main__":``.
        report: Called after every run.
        planned: Called with the ε of all runs together and their number, before any image is read.
        options: How the images are read, as for ``sfumato.read``.

    Returns:
        Every value; ``comparison.json``, ``comparison.csv`` and ``comparison.html`` in ``out`` hold the same.
    """
    folder = Path(out)
    chosen = chosen_methods(methods) if isinstance(methods, str) else list(methods)
    evaluation = EvaluationSpec(
        protocol=protocol,
        images=images or protocol_named(protocol).synthetic_count,
        feature_images=feature_images,
        inception_trainings=None if with_inception else 0,
    )
    trainings = comparison_trainings(chosen, sorted(set(epsilon)), seeds=seeds)
    total = planned_epsilon(trainings, delta)
    if planned is not None:
        planned(total, len(trainings))
    division = comparison_hold_out(hold_out, folder, unit=unit)
    conditions = comparison_conditions(
        Path(data),
        out=folder,
        test=None if test is None else Path(test),
        division=division,
        evaluation=evaluation,
        device=device,
        delta=delta,
        unit=unit,
        options=options,
    )
    failed = run_comparison(trainings, conditions, division=division, jobs=jobs, report=report)
    result = gather(trainings, conditions, failed=failed)
    write_comparison(result, folder)
    return result


def write_comparison(result: ComparisonResult, out: Path) -> list[Path]:
    """Write ``comparison.json``, ``comparison.csv`` and ``comparison.html``, readable by their owner alone."""
    pictures = [sample_rows(load(out / entry.runs[0] / "release"), each=10) for entry in result.entries]
    return [
        write_json(out / "comparison.json", result.to_json(), private=True),
        write_file(out / "comparison.csv", to_csv(result), private=True),
        write_file(out / "comparison.html", comparison_page(result, pictures), private=True),
    ]
