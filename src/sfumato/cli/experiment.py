"""``sfumato experiment``, ``reproduce`` and ``compare``: trainings that are repeated and compared. NOT PRIVATE."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import ProgressBar, console, print_json, print_table, remark, say
from sfumato.cli.options import Collection, Device, Json, config_text, device_named, setting_pair
from sfumato.experiments.results import NOTICE
from sfumato.files import write_file
from sfumato.options import ReadingOptions
from sfumato.texts import duration

if TYPE_CHECKING:
    from rich.table import Table

    from sfumato.experiments.entries import Entry, Paper
    from sfumato.experiments.layout import Layout
    from sfumato.experiments.results import ResultSet
    from sfumato.experiments.runner import Progress, Task


# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

RESULTS = Path("docs/results")

Data = Annotated[
    list[str] | None,
    typer.Option(help="The data folder [default: $SFUMATO_DATA, or data]; NAME=PATH or NAME=TRAIN,TEST for one set."),
]
StartLimit = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="MINUTES", help="Start no training after this many minutes."),
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
    time_limit: StartLimit = None,
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
    from sfumato.experiments.layout import changed, gather, in_order, lay_out
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
    failed = run_reported(tasks, jobs=together, in_process=together == 1 and here == "cpu", minutes=time_limit)
    command = f"sfumato {shlex.join(_without_paths(sys.argv[1:]))}"
    for layout in layouts:
        result = gather(layout, command=command, device=here, failed=failed)
        paths = [out / f"{result.name}.json"]
        result.save(paths[0], private=True)
        _save_pictures(layout, out / layout.name)
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
        if evaluated is None or not evaluated.trainings or evaluated.protocol:
            continue
        if not (evaluated.folders[0] / "release").exists():
            continue
        name = f"{slug(line.setting)}-{evaluated.conditions.data.name}-{line.epsilon:g}.png"
        path = out / name
        if path.exists():
            continue
        release = release_for(evaluated.folders[0], evaluated.variant)
        classes = len(release.classes)
        labels = np.repeat(np.arange(classes), 10)
        images, _ = release.sample(10 * classes, labels=labels, device=evaluated.conditions.device)
        grid(images, columns=10, scale=2 if images.shape[-1] < 64 else 1).save(path)


# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

_PAPERS = {
    "dp2-vae": "DP²-VAE: tables 1 and 2, figures 4, 5, 7, 8 and 9.",
    "privae": "PRIVAE: table 1, figures 1 and 2.",
    "dp-lflow": "DP-LFlow: tables 1 to 4, figures 1, 5 and 6.",
    "dpaf": "DPAF: tables 1 to 17.",
    "dppm": "DPPM: tables 1 to 4, figure 3.",
}

reproduce_app = typer.Typer(
    help="The papers' tables and figures: list them, and run one. NOT PRIVATE.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@reproduce_app.command("list")
def list_entries(
    *,
    data: Data = None,
    details: Annotated[bool, typer.Option("--details", help="Also print data, methods and remarks.")] = False,
    as_json: Json = False,
) -> None:
    """All entries: by which algorithm, with which data, and whether it can be run here."""
    from rich.table import Table

    from sfumato.experiments.datasets import DatasetLocator
    from sfumato.experiments.entries import catalogue

    items = catalogue(DatasetLocator.of(data or []))
    if as_json:
        return print_json([item.to_json() for item in items])
    # Boxes and wrapped cells cost room that a terminal of 80 columns does not have.
    table = Table(box=None, pad_edge=False)
    table.add_column("entry", no_wrap=True, min_width=17)
    table.add_column("what", no_wrap=not details, overflow="ellipsis", max_width=max(13, console.width - 67))
    for name in ("paper's", "certified", "quoted", "small"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True, min_width=10)
    for item in items:
        what = item.title
        if details:
            what = "\n".join([what, *item.data, ", ".join(item.methods), *item.remarks])
        status = item.status.replace("data not available, a substitute is", "substitute")
        status = status.replace("data not available", "no data").replace("method not available", "no method")
        counts = (str(item.rows[kind] or "–") for kind in ("paper", "certified", "quoted"))
        seconds = "–" if item.seconds is None else duration(item.seconds)
        table.add_row(f"{item.paper} {item.entry}", what, *counts, seconds, status)
    console.print(table)
    say(f"{len(items)} entries. Rows by the paper's own algorithm, which has no guarantee or")
    say("another than it prints; by a certified one; and numbers that are only quoted.")
    say("The small scale was timed on one core; of the full scale no time is known.")
    say("The data comes from:")
    for home in dict.fromkeys(home for item in items for home in item.homes):
        say(f"  {home}")


def _paper_command(key: str, summary: str) -> Callable[..., None]:
    def command(
        entry: Annotated[str, typer.Argument(help="table-1, figure-5, …")],
        *,
        scale: Annotated[str, typer.Option(help="'full', the paper's size, or 'small', a check that it runs.")] = (
            "full"
        ),
        data: Data = None,
        out: Annotated[Path | None, typer.Option(help="Its folder. The same command continues in it.")] = None,
        results: Annotated[Path | None, typer.Option(help="Also write the result, without its runs, here.")] = None,
        jobs: Annotated[
            int | None, typer.Option(min=1, help="Trainings at a time; 1 works in this process [default: one a core].")
        ] = None,
        time_limit: StartLimit = None,
        device: Device = "auto",
        as_json: Json = False,
    ) -> None:
        from sfumato.experiments.entries import find

        paper, found = find(key, entry)
        folder = out or Path("reproduction") / f"{key}-{entry}-{scale}"
        layout, result = reproduce(
            paper, found, scale, data or [], folder, jobs=jobs, minutes=time_limit, device=device
        )
        _write(paper, found, layout, result, folder)
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
            result.save(results / f"{key}-{entry}-{scale}.json", private=False)
        if as_json:
            print_json(result.to_json())
        else:
            print_result(paper, found, result)
            say(f"Written: {folder}")
        if result.failed:
            raise typer.Exit(1)

    command.__doc__ = summary
    return command


for _key, _summary in _PAPERS.items():
    reproduce_app.command(_key)(_paper_command(_key, _summary))


def reproduce(
    paper: Paper,
    entry: Entry,
    scale: str,
    data: list[str],
    out: Path,
    *,
    jobs: int | None = None,
    minutes: float | None = None,
    device: str = "auto",
) -> tuple[Layout, ResultSet]:
    """Run what is not finished, and gather what was measured."""
    from sfumato.experiments.datasets import DatasetLocator
    from sfumato.experiments.entries import Scale
    from sfumato.experiments.layout import gather
    from sfumato.experiments.reproduction import lay_out_entry
    from sfumato.experiments.runner import begin
    from sfumato.files import private_folder

    here, size = device_named(device), Scale.of(scale, entry)
    layout = lay_out_entry(paper, entry, locator=DatasetLocator.of(data), scale=size, out=out, device=here)
    conditions = [line.evaluated.conditions for line in layout.lines if line.evaluated is not None]
    paths = sorted({str(found.data.train.resolve()) for found in conditions})
    begin(out, {"paper": paper.key, "entry": entry.name, "scale": scale, "data": paths}, what="reproduction")
    for found in conditions:
        private_folder(found.out)
    remark(f"{paper.name} {entry.name}, {scale}: {len(layout.tasks)} tasks")
    together = jobs or (1 if here == "cuda" else os.cpu_count() or 1)
    # At the small scale reading the images would take longer than most trainings.
    failed = run_reported(
        layout.tasks, jobs=together, in_process=together == 1, keep_processes=scale == "small", minutes=minutes
    )
    command = f"sfumato reproduce {layout.name} --scale {scale}"
    return layout, gather(layout, command=command, device=here, failed=failed)


def _write(paper: Paper, entry: Entry, layout: Layout, result: ResultSet, out: Path) -> None:
    """Write ``result.json``, ``result.html`` and the figure into the folder."""
    from sfumato.experiments.reproduction import compared
    from sfumato.files import write_file
    from sfumato.report.papers import draw, entry_page, standalone

    result.save(out / "result.json", private=True)
    write_file(out / "result.html", entry_page(paper, entry, result, layout.lines), private=True)
    chart = None if entry.figure is None else draw(compared(paper, entry, result.rows), entry.figure)
    if chart is not None:
        write_file(out / "figure.svg", standalone(chart), private=True)


def print_result(paper: Paper, entry: Entry, result: ResultSet) -> None:
    """A table for each dataset and ε; below, how many records, images and trainings the numbers are of."""
    from sfumato.experiments.results import NOTICE
    from sfumato.report.papers import blocks, caption, lines

    say(f"{result.name}: {entry.title}")
    for heading, rows in blocks(lines(paper, entry, result)):
        say(f"\n{heading}")
        console.print(_numbers(rows))
    for text in ("", *caption(entry, result)):
        say(text)
    console.print(NOTICE, style="bold red", highlight=False, soft_wrap=True)


def _numbers(rows: Sequence[Sequence[str]]) -> Table:
    """Numbers keep their line at 80 columns; names of settings are folded."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("setting", overflow="fold", min_width=12)
    table.add_column("measure", overflow="fold", max_width=18)
    for place, name in enumerate(("paper", "ours", "holds at", "our ε"), start=2):
        # Words such as "not measured" may be folded, numbers may not.
        widths = [len(row[place]) for row in rows if not row[place][:1].isalpha()]
        table.add_column(name, justify="right", min_width=max([*widths, *map(len, name.split())]), max_width=16)
    before = ""
    for row in rows:
        again = row[0] == before
        table.add_row("" if again else row[0], *row[1:4], *(("", "") if again else row[4:]))
        before = row[0]
    return table


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
    protocol: Annotated[str, typer.Option(help="sinkhorn, dppm or dpdm.")] = "sinkhorn",
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
    from sfumato.report.comparison import chosen_methods, compare

    here, options = device_named(device), reading.for_reader()
    if unit not in ("image", "person", None):
        raise ValueError(f"--unit is image or person, not {unit!r}")
    budgets, chosen = _budgets(epsilon), chosen_methods(methods, settings or [])

    def planned(total: float, runs: int) -> None:
        remark(f"{runs} run{'s' * (runs != 1)}: together they will cost ε = {total:.3g} at δ = {delta:g}.")
        progress.report("reading the images", 0, 0)

    try:
        with ProgressBar() as progress:
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
        show(result)
        say(f"{result.title}.\nWritten: comparison.json and comparison.html in {out}")
        console.print(NOTICE, style="bold red", highlight=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def _budgets(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--epsilon takes numbers with commas between, such as 1,10, not {text!r}") from None
