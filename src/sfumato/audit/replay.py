"""Neighbour replay: run a method on D and on D without one unit, and compare what must not depend on it.

The neighbour lacks the unit's images altogether; every other record keeps its id, and with it its coins and draws. The
second run is given the noisy answers of the first. Whatever a sound method computes from them must then be equal in
both: the queries with their public arguments, the ledger, the released tensors to the last bit, the samples, the card,
standard output, written files, environment variables. Only the exact sums behind the noise may move, and by no more
than the ledger has paid for. An exception is a finding.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from sfumato.evaluation.classifiers import Progress, silent
from sfumato.methods.base import Method
from sfumato.privacy import AnyBudget, Curator, Event, Ledger, PrivateRecords, Randomness, Step, SubsampledGaussian
from sfumato.privacy.gradients import UnsupportedModel
from sfumato.privacy.interfaces import Tape
from sfumato.privacy.mechanism import Query
from sfumato.privacy.sampling import Units
from sfumato.release.card import Card
from sfumato.release.release import Release

TOLERANCE = 1e-6  # of the declared movement: float64 rounding


@dataclass(frozen=True)
class Finding:
    """A broken rule, and where it showed."""

    rule: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.where}): {self.detail}"


@dataclass
class Replay:
    """The result. ``movement`` is, for each event and block, the largest movement ÷ what was paid for (or claimed)."""

    pairs: int = 0
    findings: list[Finding] = field(default_factory=list)
    movement: dict[str, float] = field(default_factory=dict)

    @property
    def flagged(self) -> bool:
        return bool(self.findings)

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted({finding.rule for finding in self.findings}))

    def vacuous(self, least: float = 0.9) -> list[str]:
        """Blocks that no pair moved near their bound: the replay shows nothing about these."""
        return sorted(name for name, value in self.movement.items() if value < least)

    def add(self, rule: str, where: str, detail: str) -> None:
        finding = Finding(rule, where, detail)
        if finding not in self.findings:
            self.findings.append(finding)

    def add_all(self, other: Replay) -> None:
        """Take over the findings and movements of another replay."""
        self.pairs += other.pairs
        for finding in other.findings:
            self.add(finding.rule, finding.where, finding.detail)
        for name, value in other.movement.items():
            self.movement[name] = max(value, self.movement.get(name, 0.0))

    @property
    def stopped(self) -> bool:
        """The method did not run at all, so further pairs would show nothing."""
        return any(finding.rule in ("refused", "exception", "vacuous") for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "flagged": self.flagged,
            "findings": [vars(finding) for finding in self.findings],
            "movement": self.movement,
            "vacuous": self.vacuous(),
        }


@dataclass(frozen=True)
class Taped:
    """One query and its answer, as the first run saw them."""

    query: Query
    answer: Tensor
    charges: int


class Recorder:
    """Keeps every query with its answer."""

    def __init__(self) -> None:
        self.taped: list[Taped] = []

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        sums = tuple(replace(one, total=one.total.detach().clone()) for one in query.sums)
        self.taped.append(Taped(replace(query, sums=sums), answer.clone(), charges))
        return answer


class Player:
    """Returns the recorded answers and measures how far the sums behind them moved."""

    def __init__(self, taped: Sequence[Taped], noise: Mapping[tuple[str, str], float], result: Replay) -> None:
        self.taped, self.noise, self.result = taped, noise, result
        self.asked = 0

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        where = f"{query.event} / {query.block}"
        if self.asked >= len(self.taped):
            self.result.add("same queries", where, "the neighbour's run has more queries")
            return answer
        first = self.taped[self.asked]
        self.asked += 1
        if _public(query) != _public(first.query):
            self.result.add("same queries", where, "event, step, block or public arguments differ")
            if answer.shape != first.answer.shape:
                return answer
        ratio = _movement(query, first.query, self.noise.get((query.event, query.block)))
        self.result.movement[where] = max(self.result.movement.get(where, 0.0), ratio)
        if ratio > 1 + TOLERANCE:
            kind = "claimed" if query.claimed else "paid for"
            self.result.add("movement", where, f"moved by more than was {kind}")
        return first.answer


def _public(query: Query) -> tuple[Any, ...]:
    sums = tuple((one.name, tuple(one.total.shape), one.clip_norm, one.standard_deviation) for one in query.sums)
    return (query.event, query.step, query.block, dict(query.public), query.claimed, sums)


def _movement(second: Query, first: Query, noise: float | None) -> float:
    """The movement in units of the noise, against 1/σ of the ledger's entry; for a claim, against the claim."""
    if [one.total.shape for one in second.sums] != [one.total.shape for one in first.sums]:
        return math.inf
    pairs = list(zip(second.sums, first.sums, strict=True))
    if second.claimed:
        return max(float((a.total - b.total).norm()) / a.clip_norm for a, b in pairs)
    if noise is None:
        return math.inf
    return noise * math.sqrt(sum((float((a.total - b.total).norm()) / a.standard_deviation) ** 2 for a, b in pairs))


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
    command = [sys.executable, "-m", "sfumato.audit.replay", kind.__module__, kind.__qualname__, *map(str, folders)]
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


__all__ = ["Finding", "Replay", "participants", "replay"]

_ALPHA = 1e-9  # of the test that the noise is as large as it says
_FRESH = 2  # neighbours whose samples are drawn in a fresh process


def participants(method: Method, private: PrivateRecords, budget: AnyBudget, seed: int) -> list[int]:
    """Units whose coin comes up at least once in every planned event of a run with this seed."""
    randomness, units = Randomness(seed), Units(private, budget.unit, max_images=1)
    present = set(units.sample(randomness, 1.0, "all").tolist())
    for event in method.plan(budget).events:
        drawn: set[int] = set()
        for index in range(event.steps):
            if event.shards is None:
                drawn |= set(units.sample(randomness, event.sampling_rate, event.name, index).tolist())
            else:
                chosen = randomness.coins(event.shards, event.sampling_rate, event.name, index).numpy()
                drawn |= set(np.flatnonzero(np.isin(units.shard_of(randomness, event.shards), chosen)).tolist())
        present &= drawn
    return sorted(present)


@dataclass(frozen=True)
class _Run:
    """One run of a method and everything that it left."""

    release: Release
    events: tuple[Event, ...]
    observed: Observed
    samples: str


def replay(
    method: Method,
    private: PrivateRecords,
    *,
    budget: AnyBudget,
    pairs: int = 40,
    seed: int = 0,
    units: Sequence[int] | None = None,
    max_images_per_unit: int = 4,
    fresh_process: bool = False,
    progress: Progress = silent,
) -> Replay:
    """Replay neighbours of a collection.

    Args:
        method: Its certified form, usually small.
        private: D.
        budget: The budget of every run.
        pairs: The number of neighbours.
        seed: Fixes coins, draws and noise of all runs.
        units: The ids of the units to remove; by default those whose coins come up in every event.
        max_images_per_unit: As in ``fit``.
        fresh_process: Also draw samples of a few releases in a process of their own.
        progress: Called after each neighbour.
    """
    result = Replay()
    options: dict[str, Any] = {"seed": seed, "max_images_per_unit": max_images_per_unit}
    with _double_precision():
        recorder = Recorder()
        try:
            first = _run(method, private, budget, recorder, **options)
        except Exception as error:
            rule = "refused" if isinstance(error, (UnsupportedModel, LookupError, PermissionError)) else "exception"
            result.add(rule, "first run", f"{type(error).__name__}: {error}")
            return result
        _check_mechanism(method, result)
        _check_charges(recorder.taped, first.events, result)
        _check_noise(recorder.taped, result)
        noise = {
            (e.name, b.name): b.noise_multiplier / e.sensitivity(e.relation)
            for e in _sums(first.events)
            for b in e.blocks
        }
        chosen = participants(method, private, budget, seed) if units is None else list(units)
        if not chosen:
            result.add("vacuous", "coins", "no unit's coin comes up in every event; choose another seed or rate")
        neighbours = []
        # The last unit is always among them: a method may treat the end of a collection in its own way.
        removed = [*chosen[: pairs - 1], *chosen[-1:]] if len(chosen) > pairs else chosen
        for number, unit in enumerate(removed):
            progress("neighbours", number, len(removed))
            player = Player(recorder.taped, noise, result)
            result.pairs += 1
            try:
                other = _run(method, private._without(unit, budget.unit), budget, player, **options)
            except Exception as error:
                result.add("same queries", "neighbour's run", f"raised {type(error).__name__}")
                continue
            if player.asked < len(recorder.taped):
                result.add("same queries", "end", "the neighbour's run has fewer queries")
            _compare(first, other, result)
            neighbours.append(other)
        if fresh_process:
            _compare_fresh(method, [first, *neighbours[:_FRESH]], result)
    return result


def _run(method: Method, private: PrivateRecords, budget: AnyBudget, tape: Tape, **options: Any) -> _Run:
    with Ledger(None, budget) as ledger:
        with observing() as observed:
            release = method.fit(private, budget, ledger, tape=tape, device="cpu", **options)
        return _Run(release, ledger.events(), observed, sample_hash(release))


def _compare(first: _Run, other: _Run, result: Replay) -> None:
    if other.events != first.events:
        result.add("same ledger", "events", "the two ledgers differ")
    tensors = first.release.model.state_dict()
    for name, tensor in other.release.model.state_dict().items():
        if not torch.equal(tensor, tensors[name]):
            result.add("same release", name, "a released tensor depends on the data outside any answer")
    if _comparable(other.release.card) != _comparable(first.release.card):
        result.add("same release", "card", "the card depends on the data outside any answer")
    if other.samples != first.samples:
        result.add("same samples", "release.sample()", "samples depend on the data outside any answer")
    for name in ("output", "environment", "files"):
        if getattr(other.observed, name) != getattr(first.observed, name):
            result.add("same side effects", name, f"the {name} of the two runs differ")


def _compare_fresh(method: Method, runs: Sequence[_Run], result: Replay) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        try:
            folders = [run.release.save(Path(temporary) / str(place)) for place, run in enumerate(runs)]
            drawn = fresh_samples(method, folders)
        except Exception as error:
            result.add("same samples", "fresh process", f"saving or sampling raised {type(error).__name__}")
            return
    if any(one != drawn[0] for one in drawn):
        result.add("same samples", "fresh process", "samples from the saved releases differ")
    if any(one != run.samples for one, run in zip(drawn, runs, strict=True)):
        result.add("same samples", "fresh process", "the trained objects sample other images than the saved release")


def _check_mechanism(method: Method, result: Replay) -> None:
    """Only the project's own Curator and Step are known to clip, charge and draw noise as they say."""
    for kind, own in ((type(method).curator_type, Curator), (type(method).curator_type.step_type, Step)):
        if not kind.__module__.startswith("sfumato.privacy.") and kind is not own:
            result.add("own mechanism", kind.__name__, f"the method replaces the project's {own.__name__}")


def _sums(events: Sequence[Event]) -> Iterator[SubsampledGaussian]:
    return (event for event in events if isinstance(event, SubsampledGaussian))


def _comparable(card: Card) -> dict[str, Any]:
    """Without times and what is hashed over times."""
    return {key: value for key, value in card.to_json().items() if key not in ("made", "run", "ledger", "ledger_head")}


def _check_charges(taped: Sequence[Taped], events: Sequence[Event], result: Replay) -> None:
    """Each step is on the ledger before its first answer, and its last step is as well."""
    steps: set[tuple[str, int]] = set()
    for one in taped:
        if one.query.claimed:
            continue
        steps.add((one.query.event, one.query.step))
        if one.charges < len(steps):
            result.add("charge first", one.query.event, "noise was drawn before the ledger was charged")
    paid = sum(event.steps for event in _sums(events))
    if paid < len(steps):
        result.add("charge first", "ledger", "fewer steps on the ledger than were answered")


def _check_noise(taped: Sequence[Taped], result: Replay) -> None:
    """Pooled over the run, the noise has the standard deviation that each query states (a chi-square test)."""
    total, count = 0.0, 0
    for one in taped:
        sizes = [part.total.numel() for part in one.query.sums]
        for part, answer in zip(one.query.sums, torch.split(one.answer, sizes), strict=True):
            total += float(((answer - part.total.flatten()) / part.standard_deviation).square().sum())
            count += part.total.numel()
    if count:
        chance = 2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count))
        if not chance > _ALPHA:
            result.add("noise", "all answers", "the noise drawn is not as large as the queries say")


@contextlib.contextmanager
def _double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


if __name__ == "__main__":
    _main(*sys.argv[1:])
