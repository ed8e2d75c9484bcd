"""``sfumato sample``: draw labelled images from a release."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.console import ProgressBar, say, use_quiet
from sfumato.cli.options import AllowCustom, ReleasePath, device_named, label_set


def sample(
    context: typer.Context,
    release: ReleasePath,
    *,
    count: Annotated[int, typer.Option(min=1, help="How many images.")] = 1000,
    out: Annotated[Path, typer.Option(help="A new folder for them.")],
    format: Annotated[str, typer.Option(help="folder, npz or parquet.")] = "folder",
    labels: Annotated[str | None, typer.Option(help="Only these classes: names separated by commas.")] = None,
    proportions: Annotated[bool, typer.Option("--proportions", help="Classes by their noisy counts.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeatable samples; costs nothing.")] = None,
    allow_no_guarantee: Annotated[
        bool, typer.Option("--allow-no-guarantee", help="Export images of a release that has no guarantee.")
    ] = False,
    allow_custom: AllowCustom = False,
) -> None:
    """Draw labelled images from a release. Costs no privacy: no private data is read.

    Under torchrun every process draws its part and writes a parquet file of its own.
    """
    import numpy as np

    from sfumato.methods.registry import load
    from sfumato.release.export import export
    from sfumato.release.shards import export_shards
    from sfumato.training.distributed import process_group
    from sfumato.training.run_folder import release_folder

    world, device = context.with_resource(process_group(device_named("auto")))
    use_quiet(not world.first)
    found = load(release_folder(release), allow_custom=allow_custom)
    wanted = None
    if labels is not None:
        given = label_set(labels)
        names = (labels,) if isinstance(given, int) or given is None else given
        unknown = [name for name in names if name not in found.classes]
        if unknown:
            raise ValueError(f"--labels: no class {unknown[0]!r}; the release has {', '.join(found.classes)}")
        wanted = np.array([found.classes.index(name) for name in names])[np.arange(count) % len(names)]
    if world.size > 1:
        if format != "parquet":
            raise ValueError("several processes write parquet files: add --format parquet")
        with ProgressBar() as bar:
            written = export_shards(
                found,
                count,
                out,
                world,
                labels=wanted,
                proportions=proportions,
                seed=seed,
                device=device,
                allow_no_guarantee=allow_no_guarantee,
                progress=bar.report,
            )
        if not world.first:
            return
    else:
        drawn = found.sample(count, labels=wanted, proportions=proportions, seed=seed)
        written = export(drawn, out, format=format, allow_no_guarantee=allow_no_guarantee)  # type: ignore[arg-type]
    say(found.card.sentence)
    say(f"Written: {count} images to {written}")
