"""``sfumato sample``, ``report`` and ``card``: what a release shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import console, errors, print_json, say
from sfumato.cli.options import AllowCustom, Json, ReleasePath
from sfumato.files import private_folder, write_file
from sfumato.options import label_set

if TYPE_CHECKING:
    from sfumato.report.pages import RunFolder


def sample(
    release: ReleasePath,
    *,
    count: Annotated[int, typer.Option(min=1, help="How many images.")] = 1000,
    out: Annotated[Path, typer.Option(help="A new folder for them.")],
    format: Annotated[str, typer.Option(help="folder, npz, parquet or dicom.")] = "folder",
    labels: Annotated[str | None, typer.Option(help="Only these classes: names separated by commas.")] = None,
    proportions: Annotated[bool, typer.Option("--proportions", help="Classes by their noisy counts.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeatable samples; costs nothing.")] = None,
    allow_no_guarantee: Annotated[
        bool, typer.Option("--allow-no-guarantee", help="Export images of a release that has no guarantee.")
    ] = False,
    allow_custom: AllowCustom = False,
) -> None:
    """Draw labelled images from a release. Costs no privacy: no private data is read."""
    import numpy as np

    from sfumato.methods.registry import load
    from sfumato.release.export import export

    found = load(release, allow_custom=allow_custom)
    wanted = None
    if labels is not None:
        given = label_set(labels)
        names = (labels,) if isinstance(given, int) or given is None else given
        unknown = [name for name in names if name not in found.classes]
        if unknown:
            raise ValueError(f"--labels: no class {unknown[0]!r}; the release has {', '.join(found.classes)}")
        wanted = np.array([found.classes.index(name) for name in names])[np.arange(count) % len(names)]
    drawn = found.sample(count, labels=wanted, proportions=proportions, seed=seed)
    written = export(drawn, out, format=format, allow_no_guarantee=allow_no_guarantee)  # type: ignore[arg-type]
    say(found.card.explained)
    say(f"Written: {count} images to {written}")
    if (written / "samples.png").exists():
        say(f"Look at {written / 'samples.png'} first.")


# Torch is imported where it is used: ``sfumato --help`` should not wait for it.


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, as 'train' or 'compare' write them.")],
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder for internal.html [default: internal/ of the first run].")
    ] = None,
    scan_only: Annotated[
        bool, typer.Option("--scan", help="Write nothing: check the release and the public.html that are there.")
    ] = False,
    side_by_side: Annotated[
        bool,
        typer.Option("--side-by-side", help="Show PRIVATE images beside synthetic ones, by class, on internal.html."),
    ] = False,
    allow_custom: AllowCustom = False,
) -> None:
    """Write public.html, which may leave, into each run's folder, and one internal.html, which may not."""
    from sfumato.methods.registry import load
    from sfumato.report.pages import RunFolder, internal_page, public_page
    from sfumato.report.scan import scan

    folders = [RunFolder(path) for path in runs]
    findings = []
    if side_by_side and not scan_only:
        for run in folders:
            _write_side_by_side(run, allow_custom=allow_custom)
    for run in folders:
        run.card()
        page = None if scan_only else public_page(load(run.release, allow_custom=allow_custom))
        found = scan(run.path, page=page, allow_custom=allow_custom)
        findings += found
        for finding in found:
            errors.print(f"{run.path}: {finding}", style="red", markup=False, highlight=False, soft_wrap=True)
        if page is not None and not found:
            where = run.path if run.release != run.path else out or run.path.parent
            written = write_file(where / "public.html", page, private=False)
            console.print(f"Written: {written}, may leave", soft_wrap=True)
        elif scan_only and not found:
            console.print(f"{run.path}: nothing found that may not leave", soft_wrap=True)
    if not scan_only:
        folder = private_folder(out or folders[0].internal)
        written = write_file(folder / "internal.html", internal_page(folders), private=True)
        console.print(f"Written: {written}, NOT PRIVATE", soft_wrap=True)
    if findings:
        errors.print("The release scan found what may not leave; public.html was not written.", style="red")
        raise typer.Exit(1)


def _write_side_by_side(run: RunFolder, *, allow_custom: bool) -> None:
    """Some of the images that a run was trained on and some of its release, for its internal page."""
    import numpy as np

    from sfumato.cli.train import read_as_trained
    from sfumato.evaluation.private_views import IMAGES_OF_A_CLASS, write_side_by_side
    from sfumato.methods.registry import load

    release = load(run.release, allow_custom=allow_custom)
    labels = np.repeat(np.arange(len(release.classes)), IMAGES_OF_A_CLASS)
    real, _ = read_as_trained(run.path, None)
    write_side_by_side(run.internal / "side_by_side", release.sample(len(labels), labels=labels), real)


def card(
    release: ReleasePath,
    *,
    registry: Annotated[
        bool, typer.Option("--registry", help="Print a tier-3 entry (YAML) for the DP Deployments Registry.")
    ] = False,
    curator: Annotated[str, typer.Option(help="With --registry: who holds the collection.")] = "",
    region: Annotated[str, typer.Option(help="With --registry: the region, such as Europe.")] = "",
    sector: Annotated[str, typer.Option(help="With --registry: the sector, such as Health.")] = "",
    intended_use: Annotated[str, typer.Option(help="With --registry: what the images are meant for.")] = "",
    justification: Annotated[str, typer.Option(help="With --registry: why ε and the unit are what they are.")] = "",
    as_json: Json = False,
) -> None:
    """Print what a release says about each layer of NIST SP 800-226, or its entry for the DP Deployments Registry."""
    from sfumato.release.card import Card
    from sfumato.release.registry import Stated, nist_layers, registry_entry, yaml_text
    from sfumato.training.run import release_folder

    found = Card.read(release_folder(release))
    stated = Stated(curator, region, sector, intended_use, justification)
    if not registry:
        layers = nist_layers(found)
        return print_json(layers) if as_json else say("\n".join(f"{name}: {text}" for name, text in layers.items()))
    if missing := [name for name, text in vars(stated).items() if not text.strip()]:
        options = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise ValueError(f"no ledger knows what these say, and the registry asks for it: {options}")
    entry = registry_entry(found, stated)
    return print_json(entry) if as_json else say(yaml_text(entry).rstrip())
