"""``sfumato demo``: from a private collection to published synthetic images in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.console import console
from sfumato.options import ReadingOptions


def demo(
    *,
    out: Annotated[Path, typer.Option(help="A new folder for everything the demo makes.")],
    data: Annotated[Path | None, typer.Option(help="Your own collection instead of drawn digits.")] = None,
    epsilon: Annotated[float, typer.Option(help="The ε that may be spent.")] = 10.0,
    delta: Annotated[float, typer.Option(help="The δ of the guarantee.")] = 1e-5,
    reading: ReadingOptions,
) -> None:
    """From a private collection to synthetic images with a guarantee, in minutes."""
    from sfumato.cli.demonstration import run_demo
    from sfumato.data import read

    own = None if data is None else read(data, **reading.for_reader())
    run_demo(out, data=own, epsilon=epsilon, delta=delta, console=console)
