"""``sfumato compare``: every certified method on the same data, with the same sampler, accountant and metrics.

Each training is a run of its own: a folder with its release, its ledger and its evaluation, each written whole. So a
comparison that was killed continues where it was when the same command is given again. Its numbers are NOT PRIVATE.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import ProgressBar, console, print_json, remark
from sfumato.cli.options import Collection, config_text, device_named
from sfumato.durations import duration
from sfumato.experiments.results import NOTICE
from sfumato.files import write_file
from sfumato.options import ReadingOptions

if TYPE_CHECKING:
    from sfumato.experiments.comparison import ComparisonResult

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.


def compare_command(
    context: typer.Context,
    data: Collection,
    *,
    out: Annotated[Path, typer.Option(help="The comparison's folder. The same command again goes on in it.")],
    methods: Annotated[str, typer.Option(help="'all', or names with commas between; NAME:VARIANT for a variant.")] = (
        "all"
    ),
    epsilon: Annotated[str, typer.Option(help="Budgets, with commas between.")] = "1,10",
    delta: Annotated[float, typer.Option(help="δ of the guarantee; well below one over the number of units.")] = 1e-5,
    unit: Annotated[
        str | None, typer.Option(help="What is protected: image or person [default: person, if persons are named].")
    ] = None,
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
    reading: ReadingOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train and evaluate every certified method alike, and write a table, a curve and a page. NOT PRIVATE."""
    from sfumato.experiments.comparison import chosen_methods
    from sfumato.report.comparison import compare

    here, options = device_named(device), reading.for_reader()
    if unit not in ("image", "person", None):
        raise ValueError(f"--unit is image or person, not {unit!r}")
    budgets, chosen = _budgets(epsilon), chosen_methods(methods, settings or [])

    def planned(total: float, runs: int) -> None:
        remark(f"{runs} run{'s' * (runs != 1)}: together they will cost ε = {total:.3g} at δ = {delta:g}.")
        progress.report("reading the images", 0, 0)

    try:
        with ProgressBar() as progress:
            options["progress"] = progress.per_cent
            result = compare(
                data,
                out=out,
                methods=chosen,
                epsilon=budgets,
                delta=delta,
                unit=unit,  # type: ignore[arg-type]
                seeds=seeds,
                protocol=protocol,
                images=images,
                feature_images=feature_images,
                with_inception=not no_inception,
                test=test,
                hold_out=hold_out,
                device=here,
                jobs=jobs or (1 if here == "cuda" else os.cpu_count() or 1),
                planned=planned,
                report=lambda one: remark(str(one)),
                **options,
            )
    except KeyboardInterrupt:
        remark("Stopped. The same command continues from here; the ledgers hold what was spent.")
        raise typer.Exit(130) from None
    write_file(out / "command.toml", config_text(context), private=True)
    if as_json:
        print_json(result.to_json())
    else:
        print_table(result)
        console.print(f"Written: comparison.json, comparison.csv, comparison.html in {out}", soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def _budgets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilon takes numbers with commas between, such as 1,10, not {text!r}") from None


def print_table(result: ComparisonResult) -> None:
    """One line for each method and ε: accuracies, FID where it was measured, seconds, memory."""
    from rich.table import Table

    from sfumato.evaluation.results import metric_named

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
        cells += [duration(entry.seconds.mean), f"{entry.peak_memory.mean / 2**20:.0f}"]
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
