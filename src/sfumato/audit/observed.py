"""What a run leaves behind besides its release: standard output, written files, environment variables, samples."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sfumato.methods.base import Method
from sfumato.release.card import Card
from sfumato.release.release import Release

SAMPLES = 8
SEED = 1


@dataclass
class Observed:
    """Everything that two neighbouring runs must have in common."""

    output: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Path → hash of the contents, for files that the run opened for writing and left."""


_recording: list[set[str]] = []
_installed: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """The interpreter's audit hook; without a recording it does nothing."""
    if _recording and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        mode, flags = str(arguments[1] or ""), arguments[2]
        writes = any(letter in mode for letter in "wax+") or (
            isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        )
        path = os.fsdecode(arguments[0])
        if writes and not path.endswith(".pyc") and not path.startswith("/dev/"):
            _recording[-1].add(os.path.abspath(path))


@contextlib.contextmanager
def observing() -> Iterator[Observed]:
    """Observe a run: what it prints, which files it writes and which environment variables it sets."""
    if not _installed:
        sys.addaudithook(_audit)  # it cannot be removed, and is idle outside of this context
        _installed.append(True)
    seen, text, before = Observed(), io.StringIO(), dict(os.environ)
    written: set[str] = set()
    _recording.append(written)
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            yield seen
    finally:
        _recording.pop()
        seen.output = text.getvalue()
        changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
        # Torch chooses its cache folder, with a trial file, when it is first used.
        seen.environment = {name: value for name, value in changed.items() if not name.startswith("TORCH")}
        seen.files = {path: _hash(Path(path)) for path in sorted(written) if Path(path).is_file()}
        for name in seen.environment:
            os.environ[name] = before.get(name, "")
            if name not in before:
                del os.environ[name]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sample_hash(release: Release) -> str:
    """A hash of a few seeded samples and their labels."""
    images, labels = release.sample(SAMPLES, seed=SEED, device="cpu")
    return hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()


def fresh_samples(method: Method, folders: Sequence[Path]) -> list[str]:
    """The hashes of samples that a fresh process draws from saved releases: nothing alive can reach it."""
    kind = type(method)
    command = [sys.executable, "-m", "sfumato.audit.observed", kind.__module__, kind.__qualname__, *map(str, folders)]
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )
    if done.returncode:
        raise RuntimeError(f"a fresh process could not sample from the saved release:\n{done.stderr[-2000:]}")
    hashes: list[str] = json.loads(done.stdout.splitlines()[-1])
    return hashes


def _main(module: str, name: str, *folders: str) -> None:
    from importlib import import_module

    import torch

    torch.set_default_dtype(torch.float64)
    kind = import_module(module)
    for attribute in name.split("."):
        kind = getattr(kind, attribute)
    method_type: type[Method] = kind  # type: ignore[assignment]

    def rebuild(card: Card, tensors: Mapping[str, Tensor]) -> tuple[Method, Mapping[str, Tensor]]:
        return method_type.configured(card.parameters), tensors

    print(json.dumps([sample_hash(Release.read(folder, rebuild)) for folder in folders]))


if __name__ == "__main__":
    _main(*sys.argv[1:])
