"""What a run keeps so that it can go on after a crash, in a folder that must not leave.

Released answers and public objects, and the records' private state where a method has one: all of it is deleted when
the run ends. The noise is never kept; a resumed run draws fresh noise and pays for it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load, save_file
from torch import Tensor

from sfumato.files import new_file, private_folder, write_file, write_json
from sfumato.privacy import PrivateState, RunRefused
from sfumato.privacy.distributed import World
from sfumato.privacy.interfaces import Result, Started

_HEAD = "ledger_head"


class FolderCheckpoint:
    """Safetensors files in ``folder``, owner-only, each replaced as a whole.

    ``seconds`` is the least time between two savings within a training loop, whose end is always saved: what came after
    the last one is lost in a crash, and stays charged. Where several processes train together the first one reads and
    writes the files; they hold nothing about the processes, so that a run goes on with any number of them.
    """

    def __init__(self, folder: str | Path, *, seconds: float = 10.0) -> None:
        self.folder = Path(folder)
        self.seconds = seconds
        self._saved_at = 0.0

    @property
    def started(self) -> Started | None:
        path = self.folder / "run.json"
        if not path.exists():
            return None
        try:
            return Started(**json.loads(path.read_text()))
        except TypeError:
            raise RunRefused(
                f"{self.folder} was written by another version and does not name the ledger and the collection of its "
                "run; start a new run"
            ) from None

    def start(self, started: Started) -> None:
        """Remember the run, so that it can be resumed with its own ledger and no other."""
        private_folder(self.folder)
        write_json(self.folder / "run.json", asdict(started), private=True)

    @property
    def head(self) -> tuple[int, str] | None:
        """The ledger's head after the last charge of the run, if there was one."""
        path = self.folder / _HEAD
        # Empty after a kill between its creation and the first write, before which no noise was drawn.
        if not path.exists() or not (text := path.read_text()):
            return None
        length, digest = text.split()
        return int(length), digest

    def charged(self, length: int, digest: str) -> None:
        """Remember the ledger's head. One short write without a flush: a killed process does not lose it."""
        if not World.current().first:
            return
        descriptor = os.open(self.folder / _HEAD, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            os.pwrite(descriptor, f"{length:020d} {digest}".encode(), 0)
        finally:
            os.close(descriptor)

    def result(self, run: str) -> Result | None:
        path = self._path("result", run)
        if not path.exists():
            return None
        tensors, structure = _read(path)
        counts = structure["counts"]
        return Result(tensors, None if counts is None else tuple(counts), structure["answers"])

    def save_result(self, run: str, result: Result) -> None:
        """Keep what the run has learnt until its release is written."""
        if not World.current().first:
            return
        # Parameters may be views of one vector, which a file cannot hold.
        tensors = {name: tensor.detach().clone() for name, tensor in result.tensors.items()}
        self._write(self._path("result", run), tensors, {"counts": result.counts, "answers": dict(result.answers)})

    def card(self, run: str) -> str | None:
        """The text of the card whose hash is on the ledger, if the run came so far."""
        path = self.folder / f"card {run}.json"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def save_card(self, run: str, card: str) -> None:
        """Keep the card until the release is written."""
        if World.current().first:
            write_file(self.folder / f"card {run}.json", card, private=True)

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def restore(self, name: str, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> int:
        """Put the kept objects back as they were at the last saving; the number of steps they have seen."""
        content = _content(self._path("steps", name))
        if not content:
            return 0
        tensors, structure = _parsed(content)
        for key, target in keep.items():
            target.load_state_dict(_unpack(structure["keep"][key], tensors))
        for state in states:
            state._restore(tensors[f"state {state.name}"], structure["records"][state.name])
        return int(structure["done"])

    def save(
        self, name: str, done: int, keep: Mapping[str, Any], states: Iterable[PrivateState], *, last: bool
    ) -> None:
        if not keep:
            return
        world, states = World.current(), list(states)
        # The clock of the first process decides; the others must know where their private state is asked for.
        if not (last or (world.from_first(lambda: self.due) if states else self.due)):
            return
        if world.size > 1:
            for state in states:
                state._gather(world)
        if not world.first:
            return
        tensors: dict[str, Tensor] = {}
        packed = {key: _pack(target.state_dict(), tensors) for key, target in keep.items()}
        records = {}
        for state in states:
            tensors[f"state {state.name}"], records[state.name] = state._saved()
        self._write(self._path("steps", name), tensors, {"done": done, "keep": packed, "records": records})
        self._saved_at = time.monotonic()

    def answer(self, name: str) -> Tensor | None:
        """A released answer, if it was given before the crash: no second question, no second charge."""
        content = _content(self._path("answer", name))
        return load(content)["answer"] if content else None

    def save_answer(self, name: str, answer: Tensor) -> None:
        if World.current().first:
            self._write(self._path("answer", name), {"answer": answer}, {})

    @property
    def due(self) -> bool:
        """Whether enough time has passed since the last saving."""
        return time.monotonic() - self._saved_at >= self.seconds

    def _path(self, kind: str, name: str) -> Path:
        # Encoded, so that two names never share a file.
        return self.folder / f"{kind} {name.replace('%', '%25').replace('/', '%2F')}.safetensors"

    def _write(self, path: Path, tensors: Mapping[str, Tensor], structure: Mapping[str, Any]) -> None:
        plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        with new_file(path, private=True) as temporary:
            save_file(plain, temporary, metadata={"structure": json.dumps(structure)})


def _parsed(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    # A safetensors file begins with the length of its JSON header.
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return load(content), json.loads(header["__metadata__"]["structure"])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return _parsed(path.read_bytes())


def _content(path: Path) -> bytes:
    """The file as the first process has it, or nothing."""
    world = World.current()
    return world.broadcast(path.read_bytes() if world.first and path.exists() else b"")


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON with the tensors taken out; dictionaries as pairs, since optimisers use whole-number keys."""
    if isinstance(value, Tensor):
        tensors[key := f"tensor {len(tensors)}"] = value.clone()
        return {"tensor": key}
    if isinstance(value, Mapping):
        return {"pairs": [[key, _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"items": [_pack(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"a checkpoint keeps tensors, numbers, text and collections of them, not {type(value).__name__}")


def _unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "pairs" in packed:
        return {key: _unpack(item, tensors) for key, item in packed["pairs"]}
    if "items" in packed:
        return [_unpack(item, tensors) for item in packed["items"]]
    return packed["value"]
