"""``sfumato web``: the local page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.console import remark, say


def web(
    *,
    root: Annotated[list[Path], typer.Option(help="A folder that the page may use; it writes into the first.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on this machine; 0 for any free one.")] = 8765,
) -> None:
    """Serve the local page: choose a collection, plan, train, review and export in a browser on this machine."""
    try:
        from sfumato.web.server import serve
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "sfumato":
            raise
        raise ImportError("the local page needs more packages: pip install 'sfumato[web]'") from None

    def announce(address: str) -> None:
        say(f"Open {address}")
        remark("Only this machine can reach it. Ctrl-C ends the server; trainings go on.")

    serve(root, port=port, announce=announce)
