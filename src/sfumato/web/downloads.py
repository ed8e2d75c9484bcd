"""What may leave, as one file for the browser: the public page and exported images. Nothing else can be fetched."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response, StreamingResponse

from sfumato.web.security import DOCUMENT_POLICY
from sfumato.web.workspace import NotThere, Workspace

_SINGLE = ("images.npz", "images.parquet")
_CHUNK = 1 << 20


def download_routes(workspace: Workspace) -> APIRouter:
    """The addresses of files that are fetched."""
    downloads = Downloads(workspace)
    router = APIRouter()
    router.add_api_route("/runs/{name}/download", downloads.public_page, methods=["GET"], response_model=None)
    router.add_api_route("/exports/{name}/download", downloads.export, methods=["GET"], response_model=None)
    return router


class Downloads:
    """Sends files as attachments."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def public_page(self, name: str) -> Response:
        """The public page of a run, which was scanned before it was written."""
        path = self.workspace.named("runs", name) / "public.html"
        if not _is_own(path):
            raise NotThere("this run has no public page")
        headers = {"Content-Security-Policy": DOCUMENT_POLICY}
        return FileResponse(path, media_type="text/html", filename=f"{name}.html", headers=headers)

    def export(self, name: str) -> Response:
        """Exported images: the npz or parquet file, or a zip of the folder."""
        folder = self.workspace.named("exports", name)
        if folder.is_symlink() or not _is_own(folder / "card.json"):
            raise NotThere("there is no such export")
        for single in _SINGLE:
            if _is_own(folder / single):
                filename = name + Path(single).suffix
                return FileResponse(folder / single, media_type="application/octet-stream", filename=filename)
        headers = {"Content-Disposition": f'attachment; filename="{name}.zip"'}
        return StreamingResponse(zipped(folder), media_type="application/zip", headers=headers)


def exports_of(workspace: Workspace, run: str) -> list[str]:
    """The names of the exports of a run that are there as a whole, in order."""
    found = []
    for path in (workspace.folder / "exports").iterdir():
        name, _, number = path.name.rpartition("-")
        if name == run and number.isdecimal() and (path / "card.json").is_file():
            found.append((int(number), path.name))
    return [name for _, name in sorted(found)]


def zipped(folder: Path) -> Iterator[bytes]:
    """The files of a folder as a zip, made while it is sent. They are stored as they are: images are compressed."""
    stream = _Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            entry = zipfile.ZipInfo.from_file(path, Path(folder.name, path.relative_to(folder)).as_posix())
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while part := source.read(_CHUNK):
                    target.write(part)
                    if stream.size >= _CHUNK:
                        yield stream.taken()
    yield stream.taken()


class _Stream:
    """What ``zipfile`` writes to where it cannot go back; the parts are taken as they come."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        """What was written since the last call."""
        found = b"".join(self._parts)
        self._parts, self.size = [], 0
        return found


def _is_own(path: Path) -> bool:
    """A file, and no link to one elsewhere."""
    return path.is_file() and not path.is_symlink()
