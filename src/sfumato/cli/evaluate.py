"""``sfumato evaluate``: read, measure with progress bars, print a table, write JSON. All it says is NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.files import write_json

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.data.images import Images
    from sfumato.evaluation.classifiers import Progress
    from sfumato.release import SyntheticImages

# Torch and scikit-learn are imported where they are used: ``sfumato --help`` should not wait for them.


def evaluate_command(
    synthetic: Annotated[
        list[Path],
        typer.Argument(help="What 'sample' wrote, or any images. Several: independent trainings of one generator."),
    ],
    *,
    real: Annotated[Path, typer.Option(help="The real data; its training split, and its test split if it has one.")],
    real_test: Annotated[Path | None, typer.Option(help="The real test images, if they lie elsewhere.")] = None,
    protocol: Annotated[str, typer.Option(help="sinkhorn, dppm, dpdm or bench.")] = "sinkhorn",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number and its circumstances.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of classifier trainings; the seeds are 0, 1, 2, …")] = 5,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    feature_images: Annotated[
        int | None, typer.Option(min=12, help="Images of each set for FID and its kin [default: CPU 1000, GPU all].")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for reference statistics [default: user's cache].")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no reference statistics.")] = False,
    no_inception: Annotated[
        bool, typer.Option("--no-inception", help="Do without FID and KID: fast on a CPU.")
    ] = False,
    inception_head: Annotated[
        Path | None, typer.Option(help="safetensors with 'weight' and 'bias': adds the Inception Score.")
    ] = None,
    neighbours: Annotated[
        Path | None, typer.Option(help="Write a PNG of synthetic images above their nearest PRIVATE ones. Internal.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Resize to a square of this many pixels.")] = None,
    colour: Annotated[str | None, typer.Option(help="grey or rgb; by default as the files are.")] = None,
    classes: Annotated[
        str | None, typer.Option(help="The real data's label set: a number, or names with commas between.")
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="parquet: the label's column.")] = None,
    image_column: Annotated[str | None, typer.Option(help="parquet: the image's column.")] = None,
) -> None:
    """Judge synthetic images by a published protocol, beside baselines measured in the same run. NOT PRIVATE."""
    import torch
    from rich.console import Console

    from sfumato.data.images import read
    from sfumato.evaluation.cache import default_folder
    from sfumato.evaluation.evaluate import MEMORISATION_IMAGES, evaluate
    from sfumato.evaluation.memorisation import nearest_neighbours, write_view
    from sfumato.release import SyntheticImages

    console, errors = Console(), Console(stderr=True)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    frame: dict[str, Any] = {"size": size, "colour": colour}
    labels: dict[str, Any] = {
        "classes": _label_set(classes),
        "infer_classes": classes is None,
        "label_column": label_column,
        "image_column": image_column,
    }
    try:
        train = read(real, split="train", **frame, **labels)
        test = read(real_test or real, split="train" if real_test else "test", **frame, **labels)
        # Synthetic images are public: errors may name their files, and their labels may be looked up.
        sets = [_synthetic(path, **frame) for path in synthetic]
        with _bars(errors) as progress:
            result = evaluate(
                sets,
                train,
                test,
                protocol=protocol,
                data=real.resolve().name,
                seeds=range(seeds),
                device=device,
                feature_images=feature_images,
                cache=None if no_cache else cache or default_folder(),
                with_inception=not no_inception,
                inception_head=inception_head,
                progress=progress,
            )
    except (ValueError, ModuleNotFoundError, OSError) as error:
        errors.print(f"error: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from error
    if json_file is not None:
        write_json(json_file, result, private=True)
    if neighbours is not None:
        shown = sets[0].images if isinstance(sets[0], SyntheticImages) else sets[0].pixels
        looked_at = shown[:MEMORISATION_IMAGES]
        found = nearest_neighbours(looked_at, train.pixels, test.pixels[:MEMORISATION_IMAGES], device=device)
        write_view(neighbours, found, synthetic=looked_at, real_train=train.pixels)
    print_result(result, console)


def print_result(result: dict[str, Any], console: Console) -> None:
    """One table: a line for each row, a column for each metric of this one protocol."""
    from rich.table import Table

    protocol = result["protocol"]
    table = Table(title=f"protocol {protocol['name']} · FID against {protocol['fid_against']}", title_justify="left")
    columns: dict[str, dict[str, str]] = {}
    for entry in result["measurements"]:
        columns.setdefault(_heading(entry), {})[entry["row"]] = _cell(entry)
        if entry["metric"] == "accuracy" and entry["worst_class"] is not None:
            worst = entry["worst_class"]
            heading = f"{_heading(entry)}\nworst class"
            columns.setdefault(heading, {})[entry["row"]] = f"{100 * worst['mean']:.1f} ({worst['class']})"
    rows = list(dict.fromkeys(entry["row"] for entry in result["measurements"]))
    # One line per metric: a terminal has more lines than columns.
    table.add_column("metric")
    for row in rows:
        table.add_column(row, justify="right")
    for heading, cells in columns.items():
        table.add_row(heading.replace("\n", ", "), *(cells.get(row, "") for row in rows))
    console.print(table)
    counts = result["counts"]
    limit = counts["feature_images_at_most"]
    console.print(
        f"images: synthetic {counts['synthetic']}, real train {counts['real_train']}, real test {counts['real_test']}; "
        f"features from {'all' if limit is None else f'at most {limit}'} of each set; seeds {result['seeds']}",
        highlight=False,
    )
    for entry in result["left_out"]:
        console.print(f"left out: {entry['metric']}: {entry['reason']}", highlight=False, markup=False)
    memorisation = result["internal"]["memorisation"]
    console.print(
        f"memorisation (internal): {memorisation['exact_copies']} exact copies; "
        f"{100 * memorisation['share_nearer_than_one_percent_of_test']:.1f} % nearer to a training image than the "
        "nearest 1 % of test images",
        highlight=False,
    )
    console.print(result["notice"], style="bold red", highlight=False)


def _heading(entry: dict[str, Any]) -> str:
    names = {"accuracy": "accuracy %", "label_agreement": "label agreement %", "fid": "FID", "kid": "KID × 1000"}
    name = names.get(entry["metric"], entry["metric"].replace("_", " "))
    if entry["classifier"] is not None:
        return f"{entry['classifier']} {name}"
    own = entry["features"] is not None and not entry["features"]["name"].startswith("inception")
    return f"own-class {name}" if own else name


def _cell(entry: dict[str, Any]) -> str:
    percent = entry["metric"] in ("accuracy", "label_agreement")
    scale = 100 if percent else 1000 if entry["metric"] == "kid" else 1
    digits = 3 if entry["metric"] in ("precision", "recall", "density", "coverage") else 1
    text = f"{scale * entry['mean']:.{digits}f}"
    return text if entry["std"] is None else f"{text} ± {scale * entry['std']:.{digits}f}"


def _label_set(classes: str | None) -> list[str] | int | None:
    if classes is None:
        return None
    return int(classes) if classes.isdigit() else [name.strip() for name in classes.split(",")]


def _synthetic(path: Path, **options: Any) -> Images | SyntheticImages:
    """What ``sfumato sample`` wrote, with its card; any other images come without a guarantee."""
    from sfumato.data.images import read
    from sfumato.release.export import is_export, read_export

    return read_export(path) if is_export(path) else read(path, internal=True, infer_classes=True, **options)


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    ) as bars:
        running: dict[str, TaskID] = {}

        def progress(task: str, done: int, total: int) -> None:
            if task not in running:
                running[task] = bars.add_task(task, total=total)
            bars.update(running[task], completed=done, total=total)
            if done >= total:
                # A finished bar goes, so that many short tasks do not fill the screen.
                bars.remove_task(running.pop(task))

        yield progress
