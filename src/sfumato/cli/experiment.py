"""``sfumato experiment``: run the experiments of a TOML file, show results, render them into the documentation."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import console, errors

if TYPE_CHECKING:
    from sfumato.experiments.experiment import Layout
    from sfumato.experiments.runner import Progress, Task

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

RESULTS = Path("docs/results")

Data = Annotated[
    list[str] | None,
    typer.Option(help="The data folder [default: $SFUMATO_DATA, or data]; NAME=PATH or NAME=TRAIN,TEST for one set."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ResultsFolder = Annotated[Path, typer.Option(help="The folder with result files.")]

experiment_app = typer.Typer(
    help="Experiments of a TOML file: run them, show their results, render them into pages. NOT PRIVATE.",
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
    results: Annotated[Path | None, typer.Option(help="Also write the result files, without the runs, here.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Train and evaluate what the file says; several trainings can share the device. NOT PRIVATE."""
    from sfumato.experiments.datasets import DatasetLocator
    from sfumato.experiments.experiment import changed, gather, in_order, lay_out
    from sfumato.experiments.runner import begin
    from sfumato.experiments.spec import read_experiments

    parameters = _parameters(settings or [])
    chosen = [
        changed(one, trainings=trainings, images=images, records=records, parameters=parameters)
        for one in read_experiments(file, only=only or ())
    ]
    here, locator = chosen_device(device), DatasetLocator.of(data or [])
    layouts = [lay_out(one, locator=locator, out=out, device=here) for one in chosen]
    begin(out, {"file": file.name, "records": records, "images": images, "set": parameters}, what="set of experiments")
    tasks = in_order(layouts)
    errors.print(f"{len(tasks)} tasks, {together} at a time", highlight=False, soft_wrap=True)
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
            print(json.dumps(result.to_json(), indent=2, ensure_ascii=False))
        else:
            show(result.name, [result.to_json()])
            console.print(f"Written: {', '.join(map(str, paths))}", soft_wrap=True, highlight=False)
    if failed:
        raise typer.Exit(1)


@experiment_app.command("list")
def list_command(
    files: Annotated[list[Path], typer.Argument(help="TOML files with experiments.")],
    *,
    as_json: AsJson = False,
) -> None:
    """List the experiments of a file: what is trained, on what, how often."""
    from dataclasses import asdict

    from rich.table import Table

    from sfumato.experiments.spec import read_experiments

    found = [(file, one) for file in files for one in read_experiments(file)]
    if as_json:
        content = [{"file": file.name, **asdict(one)} for file, one in found]
        return print(json.dumps(content, indent=2, ensure_ascii=False))
    table = Table("experiment", "method", "data", "ε", "unit", "trainings")
    for _, one in found:
        budgets = ", ".join(f"{epsilon:g}" for epsilon in one.epsilon) or "–"
        count = len(list(one.settings())) * one.trainings
        table.add_row(one.name, one.method, ", ".join(one.data), budgets, one.unit, str(count))
    console.print(table)


@experiment_app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="A result: the name of its file without .json.")],
    *,
    results: ResultsFolder = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Show one result file: every setting, ε, unit and value, and how it was made."""
    from sfumato.experiments.results import load_results
    from sfumato.experiments.spec import hint

    known = load_results(results)
    if name not in known:
        raise LookupError(f"{results} has no result {name!r}; {hint(name, known)}")
    if as_json:
        return print(json.dumps(known[name].to_json(), indent=2, ensure_ascii=False))
    show(name, [known[name].to_json()])
    made = known[name].provenance
    console.print(f"{made.command}\n{made.device}, commit {made.commit or 'not recorded'}", soft_wrap=True)


@experiment_app.command("render")
def render_command(
    pages: Annotated[list[Path] | None, typer.Argument(help="Markdown files [default: README.md and docs].")] = None,
    *,
    results: ResultsFolder = RESULTS,
) -> None:
    """Write the marked tables of Markdown pages again from the result files."""
    from sfumato.experiments.results import load_results
    from sfumato.files import write_file
    from sfumato.report.regions import documentation_pages, rendered

    known = load_results(results)
    for path in pages or documentation_pages(Path()):
        before = path.read_text(encoding="utf-8")
        after = rendered(before, known)
        if after != before:
            write_file(path, after, private=False)
            console.print(f"Written: {path}", soft_wrap=True)


@experiment_app.command("evidence")
def evidence_command(*, results: ResultsFolder = RESULTS, as_json: AsJson = False) -> None:
    """List the results that are older than the code they measure, or whose commit was not recorded."""
    from dataclasses import asdict

    from rich.table import Table

    from sfumato.experiments.evidence import stale_results
    from sfumato.experiments.results import load_results

    found = stale_results(load_results(results))
    if as_json:
        return print(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    table = Table("result", "commit", "why it is old")
    for one in found:
        table.add_row(one.name, one.commit or "–", one.reason)
    console.print(table)


def show(title: str, results: Sequence[dict[str, object]]) -> None:
    """Print the rows of result files, one block for each setting."""
    from rich.table import Table

    from sfumato.experiments.results import ResultSet
    from sfumato.report.papers import number

    for content in results:
        table = Table("setting", "data", "ε", "measure", "value", "trainings", title=title, title_justify="left")
        for row in ResultSet.from_json(content).rows:
            epsilon = "∞" if row.epsilon is None else f"{row.epsilon:g}"
            first = [row.setting, f"{row.data.name}, per {row.unit}", epsilon]
            for name, value in row.values.items():
                table.add_row(*first, name, number(value), str(value.trainings))
                first = ["", "", ""]
        console.print(table)


def run_reported(
    tasks: Sequence[Task], *, jobs: int, in_process: bool = False, minutes: float | None = None
) -> dict[str, str]:
    """``run_tasks`` with a line on standard error for each task; Ctrl-C says how to continue."""
    from sfumato.experiments.runner import run_tasks

    def report(progress: Progress) -> None:
        errors.print(str(progress), markup=False, highlight=False, soft_wrap=True)

    try:
        return run_tasks(tasks, jobs=jobs, in_process=in_process, minutes=minutes, report=report)
    except KeyboardInterrupt:
        errors.print("\nStopped. The same command continues from here; the ledgers hold what was spent.")
        raise typer.Exit(130) from None


def chosen_device(name: str) -> str:
    """``auto`` is the GPU where there is one."""
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _parameters(settings: Sequence[str]) -> dict[str, str]:
    for setting in settings:
        if "=" not in setting:
            raise ValueError(f"--set takes key=value, not {setting!r}")
    return dict(setting.split("=", 1) for setting in settings)


def _without_paths(words: Sequence[str]) -> list[str]:
    """The command without the paths of this machine, which do not belong into a result."""
    return [Path(word).name if os.sep in word and "=" not in word else word for word in words]


def _save_pictures(layout: Layout, out: Path) -> None:
    """A grid of samples for each setting, ten of each class, from the first training."""
    import numpy as np

    from sfumato.experiments.spec import slug
    from sfumato.experiments.training import release_for
    from sfumato.release.image_grid import grid

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
