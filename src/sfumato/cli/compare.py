"""``sfumato compare``: every certified method on the same data, with the same sampler, accountant and metrics.

Each training is a run of its own: a folder with its release, its ledger and its evaluation, each written whole. So a
comparison that was killed continues where it was when the same command is given again. Its numbers are NOT PRIVATE.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import console, print_json, remark
from sfumato.cli.experiment import run_reported
from sfumato.cli.options import device_named, label_set
from sfumato.experiments.results import NOTICE
from sfumato.experiments.runner import Task, begin
from sfumato.experiments.spec import Conditions, DataSpec, EvaluationSpec, TrainingSpec
from sfumato.experiments.training import Baselines, Trial

if TYPE_CHECKING:
    from sfumato.experiments.compare import ComparisonResult
    from sfumato.methods import Method

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.


def compare_command(
    data: Annotated[Path, typer.Argument(help="The private images: image folder, npz, idx folder, parquet.")],
    *,
    out: Annotated[Path, typer.Option(help="The comparison's folder. The same command again goes on in it.")],
    methods: Annotated[str, typer.Option(help="'all', or names with commas between; NAME:VARIANT for a variant.")] = (
        "all"
    ),
    epsilon: Annotated[str, typer.Option(help="Budgets, with commas between.")] = "1,10",
    delta: Annotated[float, typer.Option(help="δ of the guarantee; well below one over the number of units.")] = 1e-5,
    unit: Annotated[str, typer.Option(help="What is protected: 'image', or 'person' by a person column.")] = "image",
    seeds: Annotated[int, typer.Option(min=1, help="Independent trainings of each method at each ε.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="steps=200 for every method that has it; dp-merf.features=500.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="sinkhorn, dppm, dpdm or bench.")] = "sinkhorn",
    images: Annotated[int | None, typer.Option(help="Synthetic images of each run [default: the protocol's].")] = None,
    feature_images: Annotated[int | None, typer.Option(min=12, help="Images of each set for FID and its kin.")] = None,
    no_inception: Annotated[bool, typer.Option("--no-inception", help="Do without FID and KID.")] = False,
    test: Annotated[Path | None, typer.Option(help="The real test images, if they lie elsewhere.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Hold out this share of the units at random to test on.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time [default: one for each core, one on a GPU].")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    size: Annotated[int | None, typer.Option(help="Resize to a square of this many pixels.")] = None,
    colour: Annotated[str | None, typer.Option(help="grey or rgb; by default as the files are.")] = None,
    classes: Annotated[str | None, typer.Option(help="The label set: a number, or names with commas.")] = None,
    label_column: Annotated[str | None, typer.Option(help="parquet: the label's column.")] = None,
    person_column: Annotated[str | None, typer.Option(help="parquet: the person's column.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train and evaluate every certified method alike, and write a table, a curve and a page. NOT PRIVATE."""
    from sfumato.data.holdout import check_test_part
    from sfumato.evaluation.protocols import protocol_named
    from sfumato.experiments.compare import gather

    here = device_named(device)
    options: dict[str, Any] = {"size": size, "colour": colour, "classes": label_set(classes)}
    options |= {"label_column": label_column, "person_column": person_column}
    evaluation = EvaluationSpec(
        protocol=protocol,
        images=images or protocol_named(protocol).synthetic_count,
        feature_images=feature_images,
        inception_trainings=0 if no_inception else None,
    )
    given = {key: value for key, value in options.items() if value is not None}
    if hold_out is None and test is None:
        check_test_part(data)
    source = DataSpec(
        data.resolve().name, data, test, given, hold_out=None if hold_out is None else out / "hold_out.json"
    )
    conditions = Conditions(source, (evaluation,), here, out, delta, unit)
    chosen = chosen_methods(methods, settings or [])
    trainings = [TrainingSpec(m, e, number) for number in range(seeds) for e in _budgets(epsilon) for m in chosen]
    _show_plan(trainings, conditions)
    together = jobs or (1 if here == "cuda" else os.cpu_count() or 1)
    failed = run_all(trainings, conditions, jobs=together, hold_out=hold_out)
    result = gather(trainings, conditions, failed=failed)
    written = write(result, out)
    if as_json:
        print_json(result.to_json())
    else:
        print_table(result)
        console.print(f"Written: {', '.join(path.name for path in written)} in {out}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


# What is compared


def chosen_methods(names: str, settings: Iterable[str]) -> list[Method]:
    """Configured methods: each registered one in its first certified form, or those that are named."""
    from sfumato.methods import METHODS, find

    wanted = []
    for name in METHODS if names == "all" else [part.strip() for part in names.split(",")]:
        base, variant = _method_and_variant(name)
        certified = find(base).certified_variants()
        if variant and variant not in certified:
            listed = ", ".join(certified) or "none"
            raise ValueError(f"{base} has no certified variant {variant!r}; it has {listed}. Only these are compared")
        if certified:
            wanted.append((base, variant or certified[0]))
    values: dict[str, dict[str, str]] = {base: {} for base, _ in wanted}
    for setting in settings:
        key, separator, value = (part.strip() for part in setting.partition("="))
        if not separator:
            raise ValueError(f"--set takes key=value or method.key=value, not {setting!r}")
        owner, dot, own_key = key.rpartition(".")
        takers = [owner] if dot else [base for base, _ in wanted if key in find(base)().parameters()]
        if not takers or takers[0] not in values:
            raise ValueError(f"--set {key}: none of the compared methods ({', '.join(values)}) takes it")
        for taker in takers:
            values[taker][own_key] = value
    return [find(base).configured({"variant": variant, **values[base]}) for base, variant in wanted]


def _method_and_variant(name: str) -> tuple[str, str]:
    """``dp-lflow:conditional`` and ``module:Class:variant`` in two; without a variant it is empty."""
    from sfumato.methods import METHODS

    parts = name.split(":")
    module = parts[0] not in METHODS and parts[0].replace(".", "").isidentifier()
    return ":".join(parts[: 1 + module]), ":".join(parts[1 + module :])


def _budgets(text: str) -> list[float]:
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"--epsilon takes numbers with commas between, such as 1,10, not {text!r}") from None
    return found


def _show_plan(trainings: Sequence[TrainingSpec], conditions: Conditions) -> None:
    """What all runs will cost together, before anything is touched; a budget that cannot be met is refused here."""
    from sfumato.experiments.compare import composed_epsilon

    plans = {(one.name, one.epsilon): one.method.plan(one.budget(conditions)) for one in trainings if not one.number}
    events = [event for one in trainings for event in plans[one.name, one.epsilon].events]
    total = composed_epsilon(events, conditions.delta)
    remark(
        f"{len(trainings)} run{'s' * (len(trainings) != 1)}: together they will cost ε = {total:.3g} at "
        f"δ = {conditions.delta:g} for each {conditions.unit}."
    )


# Running


def run_all(
    trainings: Sequence[TrainingSpec], conditions: Conditions, *, jobs: int, hold_out: float | None = None
) -> dict[str, str]:
    """Run what is not finished, ``jobs`` at a time; the reason for each run that failed."""
    data = conditions.data
    paths = {"path": str(data.train.resolve()), "test": None if data.test is None else str(data.test.resolve())}
    begin(conditions.out, {**conditions.facts(), **paths, "hold_out": hold_out}, what="comparison")
    if hold_out is not None and data.hold_out is not None and not data.hold_out.exists():
        from sfumato.data.holdout import HoldOut

        HoldOut.drawn(hold_out).save(data.hold_out)
    tasks: list[Task] = [Baselines(conditions), *(Trial(training, conditions) for training in trainings)]
    return run_reported(tasks, jobs=jobs)


# Showing


def write(result: ComparisonResult, out: Path) -> list[Path]:
    """Write ``comparison.json``, ``comparison.csv`` and ``comparison.html``, readable by their owner alone."""
    from sfumato.experiments.compare import to_csv
    from sfumato.files import write_file, write_json
    from sfumato.methods.registry import load
    from sfumato.report.comparison import comparison_page
    from sfumato.report.public import sample_rows

    content = result.to_json()
    pictures = [sample_rows(load(out / entry.runs[0] / "release"), each=10) for entry in result.entries]
    return [
        write_json(out / "comparison.json", content, private=True),
        write_file(out / "comparison.csv", to_csv(result), private=True),
        write_file(out / "comparison.html", comparison_page(result, pictures), private=True),
    ]


def print_table(result: ComparisonResult) -> None:
    """One line for each method and ε: accuracies, FID where it was measured, seconds, memory."""
    from rich.table import Table

    from sfumato.evaluation.metrics import metric_named
    from sfumato.report.tables import seconds_text

    shown = [m for m in result.entries[0].metrics if m.metric in ("accuracy", "fid")] if result.entries else []
    title = f"protocol {result.facts['protocol']} · {result.facts['data']}"
    table = Table("method", "ε", title=title, title_justify="left")
    # A terminal is narrow: a classifier's name stands for its accuracy.
    names = (f"{metric.classifier}, %" if metric.metric == "accuracy" else metric.heading for metric in shown)
    for name in (*names, "worst class, %", "seconds", "peak MiB"):
        table.add_column(name, justify="right")
    for entry in result.entries:
        found = {metric.heading: metric for metric in entry.metrics}
        cells = [
            metric_named(own.metric).text(own.mean, own.std) for own in (found[metric.heading] for metric in shown)
        ]
        worst = entry.worst_class
        cells.append("–" if worst is None else f"{100 * worst.mean:.1f} ({worst.name})")
        cells += [seconds_text(entry.seconds.mean), f"{entry.peak_memory.mean / 2**20:.0f}"]
        table.add_row(entry.name, f"{entry.epsilon:g}", *cells)
    console.print(table)
    composed = result.composed
    console.print(
        f"In all, {composed['ledgers']} run{'s' * (composed['ledgers'] != 1)} queried this dataset, one ledger each: "
        f"together ε = {composed['epsilon']:g} at δ = {composed['delta']:g} for each {result.facts['unit']}.",
        soft_wrap=True,
        highlight=False,
    )
    console.print(NOTICE, style="bold red", highlight=False, soft_wrap=True)
