"""``sfumato reproduce``: list the papers' tables and figures, run one, write the page about all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import console, print_json, remark, say
from sfumato.cli.experiment import RESULTS, Data, ResultsFolder, run_reported
from sfumato.cli.options import Device, Json, device_named
from sfumato.durations import duration

if TYPE_CHECKING:
    from rich.table import Table

    from sfumato.experiments.papers.entries import Entry, Paper
    from sfumato.experiments.papers.result import Layout
    from sfumato.experiments.results import ResultSet

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

_PAPERS = {
    "dp2-vae": "DP²-VAE: tables 1 and 2, figures 4, 5, 7, 8 and 9.",
    "privae": "PRIVAE: table 1, figures 1 and 2.",
    "dp-lflow": "DP-LFlow: tables 1 to 4, figures 1, 5 and 6.",
    "dpaf": "DPAF: tables 1 to 17.",
    "dppm": "DPPM: tables 1 to 4, figure 3.",
}

reproduce_app = typer.Typer(
    help="The papers' tables and figures: list them, run one, write the page about them. NOT PRIVATE.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@reproduce_app.command("list")
def list_command(
    *,
    data: Data = None,
    details: Annotated[bool, typer.Option("--details", help="Also print data, methods and remarks.")] = False,
    as_json: Json = False,
) -> None:
    """All entries: what each costs on this machine, and whether it can be run."""
    from rich.table import Table

    from sfumato.experiments.datasets import DatasetLocator
    from sfumato.experiments.papers.catalogue import catalogue
    from sfumato.experiments.results import load_results
    from sfumato.report.paper_page import by_entry, state_counts

    items = catalogue(DatasetLocator.of(data or []))
    if as_json:
        return print_json([item.to_json() for item in items])
    # Boxes and wrapped cells cost room that a terminal of 80 columns does not have.
    table = Table(box=None, pad_edge=False)
    table.add_column("entry", no_wrap=True, min_width=17)
    table.add_column("what", no_wrap=not details, overflow="ellipsis", max_width=max(20, console.width - 56))
    for name in ("runs", "small", "full"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True, min_width=10)
    for item in items:
        what = item.title
        if details:
            what = "\n".join([what, *item.data, ", ".join(item.methods), *item.remarks])
        costs = (duration(item.seconds[name]) for name in ("small", "full"))
        status = item.status.replace("data not available, a substitute is", "substitute").replace(
            "not available", "none"
        )
        table.add_row(f"{item.paper} {item.entry}", what, str(item.trainings), *costs, status)
    console.print(table)
    measured = "measured on one core" if all(item.measured for item in items) else "an estimate"
    say(f"{len(items)} entries. The cost of the small scale is {measured}, that of")
    say(f"the full scale an estimate for this machine's {items[0].device}.")
    if RESULTS.is_dir():
        say(f"By {RESULTS}:\n{state_counts(by_entry(list(load_results(RESULTS).values())))}.")


@reproduce_app.command("page")
def page_command(
    *,
    results: ResultsFolder = RESULTS,
    out: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("docs/results/reproduction.md"),
) -> None:
    """Write the page about all entries from the result files in a folder."""
    from sfumato.experiments.results import load_results
    from sfumato.files import write_file
    from sfumato.report.paper_page import by_entry, page

    write_file(out, page(by_entry(list(load_results(results).values()))), private=False)
    say(f"Written: {out}")


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
        minutes: Annotated[float | None, typer.Option(help="Start no training after this many minutes.")] = None,
        device: Device = "auto",
        inception_head: Annotated[
            Path | None, typer.Option(help="The Inception network's last layer, for the Inception Score.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        from sfumato.experiments.papers.entries import find

        paper, found = find(key, entry)
        folder = out or Path("reproduction") / f"{key}-{entry}-{scale}"
        layout, result = reproduce(
            paper, found, scale, data or [], folder, jobs=jobs, minutes=minutes, device=device, head=inception_head
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
    head: Path | None = None,
) -> tuple[Layout, ResultSet]:
    """Run what is not finished, and gather what was measured."""
    from sfumato.experiments.datasets import DatasetLocator
    from sfumato.experiments.papers.entries import Scale
    from sfumato.experiments.papers.result import gather, lay_out
    from sfumato.experiments.runner import begin
    from sfumato.files import private_folder

    here, size = device_named(device), Scale.of(scale, entry)
    layout = lay_out(entry, locator=DatasetLocator.of(data), scale=size, out=out, device=here, inception_head=head)
    conditions = [row.evaluated.conditions for row in layout.rows if row.evaluated is not None]
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
    return layout, gather(paper, entry, layout, scale=size, device=here, failed=failed)


def _write(paper: Paper, entry: Entry, layout: Layout, result: ResultSet, out: Path) -> None:
    """Write ``result.json``, ``result.html`` and the figure into the folder."""
    from sfumato.experiments.papers.result import compared
    from sfumato.files import write_file
    from sfumato.report.papers import draw, entry_page, standalone

    result.save(out / "result.json", private=True)
    write_file(out / "result.html", entry_page(paper, entry, result, layout.rows), private=True)
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
