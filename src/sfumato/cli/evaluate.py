"""``sfumato evaluate``: read, measure with progress bars, print a table, write JSON. The output is NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import ProgressBar, print_table, remark, say, warn
from sfumato.cli.options import Device, device_named
from sfumato.files import write_json
from sfumato.options import ReadingOptions

if TYPE_CHECKING:
    from sfumato.data.images import Images
    from sfumato.evaluation.results import EvaluationResult, Measurement
    from sfumato.release import SyntheticImages

# Torch and scikit-learn are imported where they are used: ``sfumato --help`` should not wait for them.


def evaluate_command(
    synthetic: Annotated[Path, typer.Argument(help="What 'sample' wrote, or any images.")],
    *,
    real: Annotated[Path, typer.Option(help="The real data; its training part, and its test part if it has one.")],
    real_test: Annotated[Path | None, typer.Option(help="The real test images, if they are elsewhere.")] = None,
    held_out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Test on what this run held out by 'train --hold-out'.")
    ] = None,
    reading: ReadingOptions,
    protocol: Annotated[str, typer.Option(help="sinkhorn, dppm or dpdm.")] = "sinkhorn",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every value and its circumstances to this file.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Trainings of each classifier; the seeds are 0, 1, … [default: CPU 1, GPU 5]."),
    ] = None,
    device: Device = "auto",
    feature_images: Annotated[
        int | None, typer.Option(min=12, help="Images of each set for FID and KID [default: CPU 1000, GPU all].")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for reference statistics [default: user's cache].")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no reference statistics.")] = False,
    inception: Annotated[
        bool | None,
        typer.Option("--inception/--no-inception", help="Measure FID and KID, or not [default: on a GPU only]."),
    ] = None,
    neighbours: Annotated[
        Path | None, typer.Option(help="Write a PNG of synthetic images above their nearest PRIVATE ones. Internal.")
    ] = None,
    side_by_side: Annotated[
        Path | None, typer.Option(help="Folder for PNGs of PRIVATE and synthetic images of each class. Internal.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Write all of it into internal/ of this run, for 'sfumato report'.")
    ] = None,
) -> None:
    """Evaluate synthetic images by a published protocol, beside baselines measured in the same run. NOT PRIVATE."""
    from sfumato.evaluation.evaluate import evaluate
    from sfumato.evaluation.features import default_folder
    from sfumato.evaluation.private_views import write_side_by_side
    from sfumato.evaluation.protocols import protocol_named

    chosen = protocol_named(protocol)
    device = device_named(device)
    if device == "cpu" and (seeds is None or inception is None):
        remark("On a CPU by default: one training of each classifier, no FID. --seeds 5 --inception measures all.")
    seeds = seeds or (1 if device == "cpu" else 5)
    if inception is None:
        inception = device != "cpu" or feature_images is not None
    # Synthetic images are public: errors may name their files, and their labels may be looked up.
    into = None if run is None else _internal_folder(run)
    with ProgressBar() as bar:
        bar.report("reading the images", 0, 0)
        drawn = _synthetic(synthetic, reading)
        alike = _like(drawn, reading)
        train, test = _real_images(real, real_test, held_out, alike, bar)
        result = evaluate(
            drawn,
            train,
            test,
            protocol=chosen,
            data=real.resolve().name,
            seeds=range(seeds),
            device=device,
            feature_images=feature_images,
            cache=None if no_cache else cache or default_folder(),
            with_inception=inception,
            progress=bar.report,
            found=_remark_found,
        )
    if into is not None:
        json_file, neighbours = json_file or into / "evaluation.json", neighbours or into / "neighbours.png"
        side_by_side = side_by_side or into / "side_by_side"
    if json_file is not None:
        write_json(json_file, result.to_json(), private=True)
    if neighbours is not None:
        _write_neighbours(neighbours, drawn, train, test, device)
    if side_by_side is not None:
        write_side_by_side(side_by_side, drawn, train)
    print_result(result)
    if into is not None:
        say(f"Written: {into}; 'sfumato report {run}' makes the pages")


def _remark_found(measured: Sequence[Measurement]) -> None:
    """What was measured of a row, before the table of all rows is there."""
    shown = (f"{one.classifier or ''} {one.metric} {one.mean:.3g}".strip() for one in measured if one.mean is not None)
    if measured:
        remark(f"{measured[0].row}: {', '.join(shown)}")


def _internal_folder(run: Path) -> Path:
    """The folder of a finished run for what only the custodian may see."""
    from sfumato.training.run import Run

    if not (run / "release" / "card.json").is_file():
        raise FileNotFoundError(f"--run: {run} holds no finished run: there is no release/card.json")
    return Run(run).internal


def print_result(result: EvaluationResult) -> None:
    """A line for each metric, a column for each row: a terminal has more lines than columns."""
    from sfumato.evaluation.results import NOTICE
    from sfumato.report.chart import measurement_table

    table = measurement_table(result.measurements)
    protocol = result.protocol
    title = (
        f"classifiers and counts of {protocol.papers} (protocol {protocol.name}) · FID against {protocol.fid_against}"
    )
    print_table(("metric", *table.columns), [(name, *cells) for name, cells in table.rows], title=title)
    counts = result.counts
    limit = counts.feature_images_at_most
    say(
        f"images: synthetic {list(counts.synthetic)}, real train {counts.real_train}, real test {counts.real_test}; "
        f"features from {'all' if limit is None else f'at most {limit}'} of each set; seeds {list(result.seeds)}"
    )
    for one in result.left_out:
        say(f"left out: {one.metric}: {one.reason}")
    if result.memorisation is not None:
        share = 100 * result.memorisation.share_nearer_than_one_percent_of_test
        say(
            f"memorisation (internal): {result.memorisation.exact_copies} exact copies; {share:.1f} % nearer to a "
            "training image than the nearest 1 % of test images"
        )
    warn(NOTICE)


def _synthetic(path: Path, reading: ReadingOptions) -> Images | SyntheticImages:
    """What ``sfumato sample`` wrote, with its card; any other images come without a guarantee."""
    from sfumato.data.images import read
    from sfumato.release.export import is_export, read_export

    if is_export(path):
        return read_export(path)
    options = reading.for_reader()
    return read(path, internal=True, infer_classes=True, size=options["size"], colour=options["colour"])


def _like(synthetic: Images | SyntheticImages, reading: ReadingOptions) -> ReadingOptions:
    """Real images are read in the size and colour of the synthetic ones, unless the command says otherwise."""
    from sfumato.release import SyntheticImages

    if not isinstance(synthetic, SyntheticImages):
        return reading
    channels, height, width = synthetic.card.shape
    size = height if height == width else None
    return replace(reading, size=reading.size or size, colour=reading.colour or ("grey" if channels == 1 else "rgb"))


def _real_images(
    real: Path, real_test: Path | None, held_out: Path | None, reading: ReadingOptions, bar: ProgressBar
) -> tuple[Images, Images]:
    """Images to train classifiers on, and images to test on that the generator has not been trained on."""
    from sfumato.data.holdout import HoldOut, read_train_and_test

    if held_out is not None and real_test is not None:
        raise ValueError("--held-out and --real-test both name test images; give one of them")
    division = None if held_out is None else HoldOut.load(held_out / "internal" / "hold_out.json")
    bar.report("reading the images", 0, 0)
    infer = reading.classes is None
    return read_train_and_test(real, real_test, hold_out=division, infer_classes=infer, **reading.for_reader())


def _read(path: Path, reading: ReadingOptions) -> Images:
    from sfumato.data.images import read

    return read(path, infer_classes=reading.classes is None, **reading.for_reader())


def _write_neighbours(
    path: Path, synthetic: Images | SyntheticImages, train: Images, test: Images, device: str
) -> None:
    from sfumato.evaluation.evaluate import MEMORISATION_IMAGES
    from sfumato.evaluation.private_views import nearest_neighbours, write_view
    from sfumato.release import SyntheticImages

    pixels = synthetic.images if isinstance(synthetic, SyntheticImages) else synthetic.pixels
    shown = pixels[:MEMORISATION_IMAGES]
    found = nearest_neighbours(shown, train.pixels, test.pixels[:MEMORISATION_IMAGES], device=device)
    write_view(path, found, synthetic=shown, real_train=train.pixels)
