"""``sfumato experiment``: run the experiments of a TOML file and show results."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import console, print_json, print_table, remark, say
from sfumato.cli.options import Device, Json, device_named, setting_pair

if TYPE_CHECKING:
    from sfumato.experiments.experiment import Layout
    from sfumato.experiments.results import ResultSet
    from sfumato.experiments.runner import Progress, Task

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

RESULTS = Path("docs/results")

Data = Annotated[
    list[str] | None,
    typer.Option(help="The data folder [default: $SFUMATO_DATA, or data]; NAME=PATH or NAME=TRAIN,TEST for one set."),
]
ResultsFolder = Annotated[Path, typer.Option(help="The folder with result files.")]

experiment_app = typer.Typer(
    help="Experiments of a TOML file: run them and show their results. NOT PRIVATE.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@experiment_app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="A TOML file: one table for each experiment.")],
    *,
    out: Annotated[Path, typer.Option(help="The folder for runs and results. The same command continues in it.")],
    only: Annotated[list[str] | None, typer.Option(help="This experiment of the file; may be given again.")] = None,
    data: Data = None,
    together: Annotated[int, typer.Option(min=1, help="Trainings that share the device and the cores.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Start no training after this many minutes.")] = None,
    trainings: Annotated[int | None, typer.Option(min=1, help="Of each setting, in place of the file's.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Synthetic images, in place of the protocol's.")] = None,
    records: Annotated[int | None, typer.Option(min=1, help="Train on a subset of this many records.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A parameter of all methods: steps=200.")] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Narrow networks and few steps: a check that the file runs.")
    ] = False,
    results: Annotated[Path | None, typer.Option(help="Also write the result files, without the runs, here.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train and evaluate what the file says; several trainings can share the device. NOT PRIVATE."""
    from sfumato.experiments.datasets import DatasetLocator
    from sfumato.experiments.experiment import changed, gather, in_order, lay_out
    from sfumato.experiments.runner import begin
    from sfumato.experiments.spec import read_experiments

    parameters = dict(setting_pair(text) for text in settings or [])
    chosen = [
        changed(one, trainings=trainings, images=images, records=records, parameters=parameters, small=small)
        for one in read_experiments(file, only=only or ())
    ]
    here, locator = device_named(device), DatasetLocator.of(data or [])
    layouts = [lay_out(one, locator=locator, out=out, device=here) for one in chosen]
    facts = {"file": file.name, "records": records, "images": images, "set": parameters}
    begin(out, {**facts, "small": True} if small else facts, what="set of experiments")
    tasks = in_order(layouts)
    remark(f"{len(tasks)} tasks, {together} at a time")
    failed = run_reported(tasks, jobs=together, in_process=together == 1 and here == "cpu", minutes=minutes)
    command = f"sfumato {shlex.join(_without_paths(sys.argv[1:]))}"
    for layout in layouts:
        result = gather(layout, command=command, device=here, failed=failed)
        paths = [out / f"{result.name}.json"]
        result.save(paths[0], private=True)
        _save_pictures(layout, out)
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
            paths.append(result.save(results / f"{result.name}.json", private=False))
        if as_json:
            print_json(result.to_json())
        else:
            show(result)
            say(f"Written: {', '.join(map(str, paths))}")
    if failed:
        raise typer.Exit(1)


@experiment_app.command("list")
def list_command(
    files: Annotated[list[Path], typer.Argument(help="TOML files with experiments.")],
    *,
    as_json: Json = False,
) -> None:
    """List the experiments of a file: what is trained, on what, how often."""
    from dataclasses import asdict

    from sfumato.experiments.spec import read_experiments

    found = [(file, one) for file in files for one in read_experiments(file)]
    if as_json:
        content = [{"file": file.name, **asdict(one)} for file, one in found]
        return print_json(content)
    rows = []
    for _, one in found:
        budgets = ", ".join(f"{epsilon:g}" for epsilon in one.epsilon) or "–"
        count = len(list(one.settings())) * one.trainings
        rows.append((one.name, one.method, ", ".join(one.data), budgets, one.unit, str(count)))
    print_table(("experiment", "method", "data", "ε", "unit", "trainings"), rows)


@experiment_app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="A result: the name of its file without .json.")],
    *,
    results: ResultsFolder = RESULTS,
    as_json: Json = False,
) -> None:
    """Show one result file: every setting, ε, unit and value, and how it was made."""
    from sfumato.experiments.results import load_results
    from sfumato.experiments.spec import hint

    known = load_results(results)
    if name not in known:
        raise LookupError(f"{results} has no result {name!r}; {hint(name, known)}")
    if as_json:
        return print_json(known[name].to_json())
    show(known[name])
    made = known[name].provenance
    say(f"{made.command}\n{made.device}, commit {made.commit or 'not recorded'}")


def show(result: ResultSet) -> None:
    """Print the rows of a result file."""
    from rich.table import Table

    from sfumato.report.papers import number

    headings = ("setting", "data", "ε", "measure", "value", "trainings")
    table = Table(*headings, title=result.name, title_justify="left", pad_edge=False)
    for row in result.rows:
        epsilon = "∞" if row.epsilon is None else f"{row.epsilon:g}"
        first = [row.setting, f"{row.data.name}, per {row.unit}", epsilon]
        for name, value in row.values.items():
            table.add_row(*first, name, number(value), str(value.trainings))
            first = ["", "", ""]
    console.print(table)


def run_reported(
    tasks: Sequence[Task],
    *,
    jobs: int,
    in_process: bool = False,
    keep_processes: bool = False,
    minutes: float | None = None,
) -> dict[str, str]:
    """``run_tasks`` with a line on standard error for each task; Ctrl-C says how to continue."""
    from sfumato.experiments.runner import run_tasks

    def report(progress: Progress) -> None:
        remark(str(progress))

    try:
        return run_tasks(
            tasks, jobs=jobs, in_process=in_process, keep_processes=keep_processes, minutes=minutes, report=report
        )
    except KeyboardInterrupt:
        remark("Stopped. The same command continues from here; the ledgers hold what was spent.")
        raise typer.Exit(130) from None


def _without_paths(words: Sequence[str]) -> list[str]:
    """The command without the paths of this machine; what is in the repository is named from its root."""
    root = Path(__file__).resolve().parents[3]

    def short(word: str) -> str:
        if os.sep not in word:
            return word
        path = Path(word).resolve()
        return str(path.relative_to(root)) if path.is_relative_to(root) else path.name

    # NAME=PATH names a dataset or an option.
    return ["=".join(short(part) for part in word.split("=")) for word in words]


def _save_pictures(layout: Layout, out: Path) -> None:
    """A grid of samples for each setting, ten of each class, from the first training."""
    import numpy as np

    from sfumato.experiments.spec import slug
    from sfumato.experiments.training import release_for
    from sfumato.release.pages import grid

    for line in layout.lines:
        evaluated = line.evaluated
        if not evaluated.trainings or evaluated.protocol or not (evaluated.folders[0] / "release").exists():
            continue
        name = f"{slug(line.setting)}-{evaluated.conditions.data.name}-{line.epsilon:g}.png"
        path = out / layout.experiment.name / name
        if path.exists():
            continue
        release = release_for(evaluated.folders[0], evaluated.variant)
        classes = len(release.classes)
        labels = np.repeat(np.arange(classes), 10)
        images, _ = release.sample(10 * classes, labels=labels, device=evaluated.conditions.device)
        grid(images, columns=10, scale=2 if images.shape[-1] < 64 else 1).save(path)
