"""``sfumato reproduce``: list the papers' tables and figures, run one, write the page about all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import console, errors
from sfumato.files import json_text, private_folder, write_file, write_json

if TYPE_CHECKING:
    from sfumato.experiments.papers.specification import Entry, Paper

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

_PAPERS = {
    "dp2-vae": "DP²-VAE: tables 1 and 2, figures 4, 5, 8 and 9.",
    "privae": "PRIVAE: table 1, figures 1 and 2.",
    "dp-lflow": "DP-LFlow: tables 1 to 4, figures 1, 5 and 6.",
    "dpaf": "DPAF: tables 1 to 17.",
    "dppm": "DPPM: tables 1 to 4, figure 3.",
}

Data = Annotated[
    list[str] | None,
    typer.Option(help="The data folder [default: $SFUMATO_DATA, or data]; NAME=PATH or NAME=TRAIN,TEST for one set."),
]

reproduce_app = typer.Typer(
    help="The papers' tables and figures: list them, run one, write the page about them. NOT PRIVATE.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@reproduce_app.command("list")
def list_command(
    *,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """All entries: what each needs, what it costs on this machine, and whether it can be run."""
    from rich.table import Table

    from sfumato.experiments.papers.catalogue import catalogue
    from sfumato.experiments.papers.collection import DatasetLocator
    from sfumato.report.internal import seconds_text

    items = catalogue(DatasetLocator.of(data or []))
    if as_json:
        return print(json.dumps([item.to_json() for item in items], indent=2, ensure_ascii=False))

    def shown(seconds: float | None) -> str:
        return "?" if seconds is None else seconds_text(seconds)

    table = Table("entry", "what", "data", "methods", "runs", "small", "full", "status")
    for item in items:
        status = "; ".join([item.status, *item.remarks])
        words = (f"{item.paper} {item.entry}", item.title, "; ".join(item.data), ", ".join(item.methods) or "–")
        table.add_row(*words, str(item.trainings), *(shown(item.seconds[name]) for name in ("small", "full")), status)
    console.print(table)
    console.print(f"{len(items)} entries. Costs are estimates for this machine's {items[0].device}.", highlight=False)


@reproduce_app.command("page")
def page_command(
    *,
    results: Annotated[Path, typer.Option(help="The folder with result files.")] = Path("docs/results"),
    out: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("docs/reproduction.md"),
) -> None:
    """Write the page about all entries from the result files in a folder."""
    from sfumato.experiments.papers.page import page, read_results

    write_file(out, page(read_results(results)), private=False)
    console.print(f"Written: {out}", soft_wrap=True)


@reproduce_app.command("adopt")
def adopt_command(
    files: Annotated[list[Path], typer.Argument(help="results.json files of benchmarks/utility.py or privae.py.")],
    *,
    data: Data = None,
    results: Annotated[Path, typer.Option(help="The folder for result files.")] = Path("docs/results"),
) -> None:
    """Put a benchmark's numbers into the entries whose very configurations it trained."""
    from sfumato.experiments.papers.adopt import adopted
    from sfumato.experiments.papers.collection import DatasetLocator

    results.mkdir(parents=True, exist_ok=True)
    reports = [json.loads(path.read_text()) for path in files]
    for found in adopted(reports, shelf=DatasetLocator.of(data or [])):
        path = results / f"{found['paper']}-{found['entry']}-full.json"
        write_json(path, found, indent=1, private=False)
        rows = sum(row["trained"] for row in found["rows"])
        console.print(f"{path}: {rows} of {len(found['rows'])} rows", highlight=False, soft_wrap=True)


def _paper_command(key: str, summary: str) -> Callable[..., None]:
    def command(
        entry: Annotated[str, typer.Argument(help="table-1, figure-5, …")],
        *,
        scale: Annotated[str, typer.Option(help="'full', the paper's size, or 'small', to see that it runs.")] = "full",
        data: Data = None,
        out: Annotated[Path | None, typer.Option(help="Its folder. The same command again goes on in it.")] = None,
        results: Annotated[Path | None, typer.Option(help="Also write the result, without its runs, here.")] = None,
        jobs: Annotated[
            int | None, typer.Option(min=1, help="Trainings at a time; 1 works in this process [default: one a core].")
        ] = None,
        device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
        inception_head: Annotated[
            Path | None, typer.Option(help="The Inception network's last layer, for the Inception Score.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    ) -> None:
        from sfumato.experiments.papers.specification import find

        found = find(key, entry)
        folder = out or Path("reproduction") / f"{key}-{entry}-{scale}"
        options: dict[str, Any] = {"jobs": jobs, "device": device, "inception_head": inception_head}
        result = reproduce(*found, scale=scale, data=data or [], out=folder, **options)
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
            write_json(results / f"{key}-{entry}-{scale}.json", result, indent=1, private=False)
        if as_json:
            print(json_text(result, indent=1), end="")
        else:
            from sfumato.experiments.papers.table import print_result

            print_result(result, console)
            console.print(f"Written: {folder}", soft_wrap=True)
        if result["failed"]:
            raise typer.Exit(1)

    command.__doc__ = summary
    return command


for _key, _summary in _PAPERS.items():
    reproduce_app.command(_key)(_paper_command(_key, _summary))


def reproduce(
    paper: Paper,
    entry: Entry,
    *,
    scale: str,
    data: list[str],
    out: Path,
    jobs: int | None = None,
    device: str = "auto",
    inception_head: Path | None = None,
) -> dict[str, Any]:
    """Run what is not run yet, and write ``result.json``, ``result.html`` and the figure into the folder."""
    import torch

    from sfumato.experiments.papers.collection import DatasetLocator
    from sfumato.experiments.papers.figure import draw, standalone
    from sfumato.experiments.papers.result import RESULT, gather
    from sfumato.experiments.papers.rows import lay_out
    from sfumato.experiments.papers.scale import Scale
    from sfumato.experiments.papers.sheet import sheet
    from sfumato.experiments.processes import run_tasks
    from sfumato.experiments.trial import begin

    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    size = Scale.of(scale, entry)
    layout = lay_out(
        entry, shelf=DatasetLocator.of(data), scale=size, out=out, device=chosen, inception_head=inception_head
    )
    places = sorted({str(row.terms.data.resolve()) for row in layout.rows if row.terms is not None})
    begin(out, {"paper": paper.key, "entry": entry.name, "scale": scale, "data": places}, what="reproduction")
    for row in layout.rows:
        if row.terms is not None:
            private_folder(row.terms.out)
    errors.print(f"{paper.name} {entry.name}, {scale}: {len(layout.tasks)} tasks", highlight=False, soft_wrap=True)
    together = jobs or (1 if chosen == "cuda" else os.cpu_count() or 1)
    failed = run_tasks(layout.tasks, jobs=together, here=together == 1)
    result = gather(paper, entry, layout, scale=size, failed=failed)
    chart = None if entry.figure is None else draw(result, entry.figure)
    write_json(out / RESULT, result, indent=1, private=True)
    write_file(out / "result.html", sheet(result, layout.rows, chart=chart), private=True)
    if chart is not None:
        write_file(out / "figure.svg", standalone(chart), private=True)
    return result
