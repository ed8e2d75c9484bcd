"""``sfumato cache``: where decoded pixels and reference statistics are kept, and how to remove them."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from sfumato.cli.console import print_json, say
from sfumato.cli.options import Json


def cache(
    *,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is there.")] = False,
    as_json: Json = False,
) -> None:
    """Show or clear the folder with decoded private pixels and reference statistics."""
    from sfumato.data.cache import clear_cache
    from sfumato.files import cache_folder

    folder = cache_folder()
    if clear:
        clear_cache()
        shutil.rmtree(folder / "evaluation", ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    if as_json:
        print_json({"folder": str(folder), "bytes": size})
    elif clear:
        say("The cache is empty.")
    else:
        say(f"{folder}: {size / 2**20:.1f} MiB, readable by its owner alone; --clear removes it")
