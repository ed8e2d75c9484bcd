"""Broken methods whose own Curator or Step clips, samples, charges or draws noise in a wrong way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from broken_methods.controls import ControlMethod
from sfumato.privacy import Curator, Step, SubsampledGaussian
from sfumato.privacy.mechanism import ClippedSum, Query, add_noise


class _NoiseOfOneClip(Step):
    """Two clip groups, each with the noise of a single clip."""

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        narrow = tuple(replace(part, standard_deviation=part.standard_deviation / len(parts) ** 0.5) for part in parts)
        return super()._answer(block, narrow, public)


class _Unclipped(Step):
    """The clip norm of the sum is a thousand times the one that the noise is scaled to."""

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        wrong = tuple(
            replace(p, clip_norm=p.clip_norm / 1000, standard_deviation=p.standard_deviation / 1000) for p in parts
        )
        return super()._answer(block, wrong, public)


class _ChargesAfter(Step):
    """Draws the noise first and charges afterwards: after a crash in between the answer is free."""

    def _over_processes(self, block: str, numbers: Tensor) -> Tensor:
        curator = self._curator
        charge = curator._charge
        curator._charge = lambda event: None  # type: ignore[method-assign]
        try:
            return super()._over_processes(block, numbers)
        finally:
            curator._charge = charge  # type: ignore[method-assign]

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        answer = super()._answer(block, parts, public)
        self._curator._charge(self._event)
        return answer


class _Shuffled(Step):
    """Epochs are permutations cut into batches of one size, accounted as independent coins."""

    def __init__(self, curator: Curator, event: SubsampledGaussian, index: int) -> None:
        super().__init__(curator, event, index)
        everyone = curator._units.sample(curator._randomness, 1.0, "everyone")
        batches = max(1, round(1 / event.sampling_rate))
        key = curator._randomness._stream("shuffle", index // batches)
        order = np.random.default_rng(key).permutation(everyone)
        self._batch = np.sort(np.array_split(order, batches)[index % batches])


def taped(curator: Curator, query: Query, answer: Tensor) -> Tensor:
    """Pass the answer through the tape, as a Curator does, for those that draw their own noise."""
    tape = curator._tape
    return answer if tape is None else tape.exchange(query, answer, charges=curator._charges)


class _HalvedNoise(Curator):
    """The noise is half of what the query states."""

    def _release(self, query: Query) -> Tensor:
        parts = tuple(replace(part, standard_deviation=part.standard_deviation / 2) for part in query.sums)
        answer = add_noise(replace(query, sums=parts), self._randomness)
        return taped(self, query, answer)


class _SeededNoise(Curator):
    """The noise comes from a seeded generator: the same in every run and every step."""

    def _release(self, query: Query) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        pieces = []
        for part in query.sums:
            noise = torch.randn(part.total.numel(), generator=generator, dtype=torch.float64)
            pieces.append(part.total.flatten().double() + part.standard_deviation * noise)
        return taped(self, query, torch.cat(pieces))


class _OffGrid(Curator):
    """The right noise without rounding to the grid: the last bits of an answer tell which sums were possible."""

    def _release(self, query: Query) -> Tensor:
        count = sum(part.total.numel() for part in query.sums)
        label = (query.event, query.step, query.block)
        noise = self._randomness.gaussian(count, self.device, *label)
        draws = torch.split(noise, [part.total.numel() for part in query.sums])
        pieces = [p.total.flatten() + p.standard_deviation * n for p, n in zip(query.sums, draws, strict=True)]
        return taped(self, query, torch.cat(pieces))


class _NoiseOfOneClipCurator(Curator):
    step_type = _NoiseOfOneClip


class _ShuffledCurator(Curator):
    step_type = _Shuffled


class _UnclippedCurator(Curator):
    step_type = _Unclipped


class _ChargesAfterCurator(Curator):
    step_type = _ChargesAfter


class _SkipsEmptyCurator(Curator):
    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        for step in super().steps(name, keep=keep):
            if len(step._batch):
                yield step


@dataclass(frozen=True)
class TwoClips(ControlMethod):
    """two clips for one entry"""

    curator_type: ClassVar[type[Curator]] = _NoiseOfOneClipCurator


@dataclass(frozen=True)
class NoClip(ControlMethod):
    """no clip"""

    curator_type: ClassVar[type[Curator]] = _UnclippedCurator


@dataclass(frozen=True)
class ChargedAfter(ControlMethod):
    """a step charged after its noise"""

    curator_type: ClassVar[type[Curator]] = _ChargesAfterCurator


@dataclass(frozen=True)
class SkipsEmpty(ControlMethod):
    """skipped empty batches"""

    curator_type: ClassVar[type[Curator]] = _SkipsEmptyCurator
    sampling_rate: float = 0.03
    steps: int = 10


@dataclass(frozen=True)
class Shuffled(ControlMethod):
    """shuffled batches"""

    curator_type: ClassVar[type[Curator]] = _ShuffledCurator


@dataclass(frozen=True)
class HalvedNoise(ControlMethod):
    """halved noise"""

    curator_type: ClassVar[type[Curator]] = _HalvedNoise


@dataclass(frozen=True)
class SeededNoise(ControlMethod):
    """seeded noise"""

    curator_type: ClassVar[type[Curator]] = _SeededNoise


@dataclass(frozen=True)
class OffGrid(ControlMethod):
    """answers left in floating point"""

    curator_type: ClassVar[type[Curator]] = _OffGrid
