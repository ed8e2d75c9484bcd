"""Results as data: what was trained, on what, under which protocol, and the value of every training."""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sfumato.files import write_json

NOTICE = "NOT PRIVATE: computed from real data; for internal use, not covered by any (ε, δ)"
FORMAT = 1
_PACKAGES = ("sfumato", "torch", "torchmetrics", "scikit-learn")


@dataclass(frozen=True)
class Measured:
    """A metric over several trainings. ``values`` is empty where only the summary is known."""

    mean: float
    std: float | None
    trainings: int
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> Measured:
        """Mean and sample standard deviation; a single value has no deviation."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, len(values), tuple(values))


@dataclass(frozen=True)
class DataUsed:
    """The data of a result. ``sha256`` is that of the training and test images and labels, if it was recorded."""

    name: str
    split: str
    records: int | None = None
    test_records: int | None = None
    sha256: str | None = None
    remark: str = ""
    subset: int | None = None
    """The number of records that the setting takes, where that is not all of them."""


@dataclass(frozen=True)
class ResultRow:
    """One setting on one dataset at one ε, under one unit and one protocol: these are never pooled.

    ``epsilon`` is the ε of the setting: the budget, or what a paper claims (``None``: infinite or none). ``spent`` is
    the ε that the ledgers of the trainings hold (``None`` without a guarantee). ``holds`` is an ε that was computed for
    a paper's mechanism. ``seconds``, ``processor_seconds`` (of all threads) and ``peak_memory`` are means over the
    trainings. ``superseded`` says why the numbers no longer count. ``arithmetic`` is that in which the protocol's
    classifiers were trained.
    """

    setting: str
    data: DataUsed
    protocol: str
    epsilon: float | None
    delta: float
    unit: str
    method: str | None = None
    variant: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    spent: float | None = None
    images: int | None = None
    values: Mapping[str, Measured] = field(default_factory=dict)
    seconds: float | None = None
    processor_seconds: float | None = None
    peak_memory: float | None = None
    megabytes: float | None = None
    holds: float | None = None
    log_sha256: str | None = None
    superseded: str = ""
    arithmetic: str = "float32"

    @property
    def trainings(self) -> int:
        """The largest number of trainings behind one of the values."""
        return max((value.trainings for value in self.values.values()), default=0)


@dataclass(frozen=True)
class Provenance:
    """How a result was made. ``commit`` is ``None`` where it was not recorded."""

    command: str
    device: str
    versions: Mapping[str, str]
    commit: str | None


@dataclass(frozen=True)
class ResultSet:
    """A result file: the rows of one experiment, or of one entry of a paper at one scale."""

    name: str
    title: str
    scale: str
    provenance: Provenance
    rows: tuple[ResultRow, ...]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def superseded(self) -> bool:
        """Whether none of its numbers counts any more: such a file is as good as none."""
        return bool(self.rows) and all(row.superseded for row in self.rows)

    @property
    def transcribed(self) -> bool:
        """Whether it is from before the program wrote results as files: neither commit nor log is known."""
        return self.provenance.commit is None and not any(row.log_sha256 for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        return {"notice": NOTICE, "format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ResultSet:
        if content.get("format") != FORMAT:
            raise ValueError(f"not a result file of format {FORMAT}: it has {content.get('format')!r}")
        given = {key: value for key, value in content.items() if key not in ("notice", "format")}
        rows = tuple(_row(row) for row in given.pop("rows"))
        return cls(provenance=Provenance(**given.pop("provenance")), rows=rows, **given)

    @classmethod
    def load(cls, path: Path) -> ResultSet:
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    def save(self, path: Path, *, private: bool) -> Path:
        return write_json(path, self.to_json(), private=private)


def _row(content: Mapping[str, Any]) -> ResultRow:
    given = dict(content)
    data = DataUsed(**given.pop("data"))
    values = {
        name: Measured(found["mean"], found["std"], found["trainings"], tuple(found["values"]))
        for name, found in given.pop("values").items()
    }
    return ResultRow(data=data, values=values, **given)


def load_results(folder: Path) -> dict[str, ResultSet]:
    """All result files of experiments in a folder, by name without the ending; other JSON has no ``format``."""
    contents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {name: ResultSet.from_json(content) for name, content in contents.items() if "format" in content}


# Provenance


def provenance(command: str, device: str) -> Provenance:
    """Of a result that is made now, by this code on this machine."""
    return Provenance(command, device_name(device), _versions(), current_commit())


def device_name(device: str) -> str:
    """The GPU's or the processor's name, with the number of threads."""
    import torch

    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name())
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads != 1)}"


def current_commit() -> str | None:
    """The commit of the source tree, with ``+`` where it was changed since; ``None`` outside a repository."""
    folder = Path(__file__).parent
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changed else "")


def _git(folder: Path, *words: str) -> str:
    found = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def log_hash(paths: Iterable[Path]) -> str | None:
    """SHA-256 of the files that the numbers of a row were read from, in order; ``None`` if there are none."""
    digest, count = hashlib.sha256(), 0
    for path in paths:
        if path.is_file():
            digest.update(path.read_bytes())
            count += 1
    return digest.hexdigest() if count else None
