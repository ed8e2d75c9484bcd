"""``sfumato report``: a public page for each run, scanned before it is written, and one internal page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.console import console, errors
from sfumato.cli.options import AllowCustom
from sfumato.files import private_folder, write_file

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
    allow_custom: AllowCustom = False,
) -> None:
    """Write public.html, which may leave, into each run's folder, and one internal.html, which may not."""
    from sfumato.methods.registry import load
    from sfumato.report.folder import RunFolder
    from sfumato.report.internal import internal_page
    from sfumato.report.public import public_page
    from sfumato.report.scan import scan

    folders = [RunFolder(path) for path in runs]
    findings = []
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
