"""``sfumato preview``: images from the checkpoint of a training that is under way. They may not leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.console import print_json, say
from sfumato.cli.options import Json
from sfumato.files import new_file


def preview_command(
    run: Annotated[Path, typer.Argument(help="The folder of a training that is under way or was stopped.")],
    *,
    out: Annotated[Path | None, typer.Option(help="The picture [default: internal/preview.png of the run].")] = None,
    as_json: Json = False,
) -> None:
    """Draw images from the last checkpoint of a training. Costs no privacy; they may not leave before the release."""
    from sfumato.methods.preview import NoPreview, preview
    from sfumato.methods.registry import METHODS, find
    from sfumato.release.image_grid import grid
    from sfumato.training.run_folder import Run

    folder = Run(run)
    if not (folder.internal / "run.json").is_file():
        raise FileNotFoundError(f"{run} holds no training")
    facts = folder.facts()
    try:
        if facts["method"] not in METHODS:
            raise NoPreview("previews are drawn for the methods of this package; importing a class would run its code")
        found = preview(find(facts["method"]).configured(facts["parameters"]), folder.checkpoint)
    except NoPreview as reason:
        if not as_json:
            raise
        print_json({"picture": None, "note": f"{str(reason)[0].upper()}{str(reason)[1:]}."})
        return
    path = out or folder.internal / "preview.png"
    scale = max(1, 56 // found.images.shape[-1])
    with new_file(path, private=True) as temporary:
        grid(found.images, columns=found.columns, scale=scale).save(temporary, format="PNG", optimize=True)
    if as_json:
        shown = {"picture": str(path), "classes": found.classes, "columns": found.columns}
        print_json({**shown, "part": found.part, "done": found.done, "total": found.total})
        return
    say(
        f"After {found.done} of {found.total} steps of {found.part!r}; a row for each class: {', '.join(found.classes)}"
    )
    say(f"Written: {path}. It may not leave: only the release has a card.")
