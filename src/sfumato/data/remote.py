"""Collections at an address such as ``s3://bucket/folder``, read through fsspec; no file is copied to the disk.

Credentials come from the environment and the files of the cloud's own tools. They are never part of an address or of a
message.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.data.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Two letters at least: C:/ is a drive. pathlib makes one slash out of two.
_ADDRESS = re.compile(r"^(?P<scheme>[a-z][a-z0-9+.-]+):/+(?P<rest>.*)$")
_SECRET = re.compile(r"^[^/]*:[^/]*@")
_VERSIONS = ("ETag", "etag", "LastModified", "last_modified", "mtime", "created", "updated", "blob_id", "generation")
_BLOCK, _BLOCKS = 4 << 20, 8  # bytes of a request, and how many of them an open file keeps

_NO_CREDENTIALS = {
    "CredentialRetrievalError",
    "LocalTokenNotFoundError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
}
_UNREACHABLE = {
    "ClientConnectionError",
    "ClientConnectorError",
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "EndpointConnectionError",
    "OfflineModeIsEnabled",
    "ReadTimeoutError",
}


def address_of(path: str | Path) -> str | None:
    """The address that ``path`` is; ``None`` for a path on this machine.

    >>> address_of(Path("s3://bucket/xrays")), address_of("xrays/s3:")
    ('s3://bucket/xrays', None)
    """
    match = _ADDRESS.match(str(path))
    if match is None:
        return None
    slashes = ":///" if match["scheme"] in ("file", "local") else "://"
    return match["scheme"] + slashes + match["rest"]


def resolved(path: Path) -> str:
    """The absolute path of a collection on this machine, or its address."""
    return address_of(path) or str(path.resolve())


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address: its path in the file system, its size, and what changes when its content does."""

    place: Place
    path: str
    size: int
    version: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def open(self) -> RemoteStream:
        """Open the file; what is read of it comes in blocks of a few megabytes."""
        with self.place.errors():
            options = {"cache_type": "blockcache", "cache_options": {"maxblocks": _BLOCKS}}
            return RemoteStream(self.place, self.place.system.open(self.path, "rb", block_size=_BLOCK, **options))

    def content(self) -> bytes:
        """The whole file."""
        with self.place.errors():
            return bytes(self.place.system.cat_file(self.path))


class Place:
    """A file or folder at an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        match = _ADDRESS.match(address)
        if match is None or _SECRET.match(match["rest"]):
            raise BadInput(
                "an address must not hold credentials",
                advice="Give them in the environment or in the configuration of the cloud's own tools, and the address "
                "without them: commands are visible to other users and are kept.",
            )
        self._scheme = match["scheme"]
        # What follows a question mark may be a signature.
        self._shown = f"{self._scheme}://{match['rest'].partition('?')[0]}"
        with self.errors():
            import fsspec

            self.system: AbstractFileSystem
            # Neither instances nor listings are kept: a collection may change between two readings.
            options = {"use_listings_cache": False, "skip_instance_cache": True}
            self.system, self.path = fsspec.core.url_to_fs(address, **options)

    def file(self) -> RemoteFile | None:
        """The file at this address; ``None`` where it is a folder."""
        with self.errors():
            found = self.system.info(self.path)
        return None if found["type"] == "directory" else self._file(found)

    def listed(self, *folders: str) -> tuple[list[str], list[RemoteFile]]:
        """The names of the folders and the files in a folder of this place, both sorted."""
        path = "/".join([self.path.rstrip("/"), *folders])
        with self.errors():
            found = self.system.ls(path, detail=True)
        # Some stores list a folder in itself, as an empty file.
        inside = [info for info in found if info["name"].strip("/") != path.strip("/")]
        names = sorted(info["name"].rstrip("/").rpartition("/")[2] for info in inside if info["type"] == "directory")
        files = [self._file(info) for info in inside if info["type"] != "directory"]
        return names, sorted(files, key=lambda file: file.path)

    def _file(self, info: dict[str, Any]) -> RemoteFile:
        version = "\0".join(str(info[key]) for key in _VERSIONS if info.get(key) is not None)
        return RemoteFile(self, info["name"], int(info["size"] or 0), version)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what a file system raises into a rule; only the address and the kind of the error are told."""
        try:
            yield
        except BadInput:
            raise
        except Exception as error:
            problem = self._problem(error)
        else:
            return
        raise problem  # outside the handler: what the file system says may hold names and keys

    def _problem(self, error: BaseException) -> BadInput:
        kinds = _kinds(error)
        if isinstance(error, ImportError):
            return BadInput(f"{self._scheme}:// addresses need further packages", advice="pip install 'sfumato[cloud]'")
        if isinstance(error, ValueError) and "Protocol not known" in str(error):
            return BadInput(f"{self._scheme}:// is not a known kind of address", advice="For example s3:// or hf://.")
        if isinstance(error, FileNotFoundError):
            return Unavailable(
                f"there is nothing at {self._shown}",
                advice="Check the bucket or data set, the path in it, and the endpoint of the store.",
            )
        if kinds & _NO_CREDENTIALS:
            return Unavailable(
                f"no credentials were found for {self._shown}",
                advice="Give them in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
                "FSSPEC_S3='{\"anon\": true}' for a public bucket).",
            )
        if isinstance(error, PermissionError):
            return Unavailable(
                f"{self._shown} may not be read with these credentials",
                advice="Ask for the permission to list and to read it, or check the credentials in the environment.",
            )
        if kinds & _UNREACHABLE or isinstance(error, (ConnectionError, TimeoutError)):
            return Unavailable(
                f"the store of {self._shown} cannot be reached",
                advice="Check the network and the endpoint (AWS_ENDPOINT_URL), then give the command again: parts that "
                "were read are kept.",
            )
        advice = "Check the address and the credentials."
        return Unavailable(f"{self._shown} cannot be read", advice=advice, detail=type(error).__name__)


class RemoteStream(io.RawIOBase):
    """An open file whose errors are rules, also where a library reads it."""

    def __init__(self, place: Place, file: Any) -> None:
        self._place, self._file = place, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with self._place.errors():
            return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


def _kinds(error: BaseException) -> set[str]:
    """The names of the classes of an error, its causes and its contexts."""
    found: set[str] = set()
    seen: BaseException | None = error
    while seen is not None:
        found |= {kind.__name__ for kind in type(seen).__mro__}
        seen = seen.__cause__ or seen.__context__
    return found
