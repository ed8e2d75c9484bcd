"""Canaries: planted records, included or not by fair coins, and how well an attacker tells which.

White box: the attacker sees every noisy answer and knows all other records and their coins. The vector of a canary has
the clip norm and a coordinate of its own, which is the worst a real record could do, so on a sound mechanism the attack
is optimal. Coins and noise are drawn by the Curator, and the printed ε is computed from the ledger.

Black box: the attacker sees released images only. This is weak, and a small number means little.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.audit.bounds import Bound, likelihood_ratio, one_run, two_worlds
from sfumato.methods.base import Method
from sfumato.privacy import Budget, Curator, Event, Ledger, PrivateRecords, Step, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.budget import Unit
from sfumato.privacy.mechanism import ClippedSum


def instrumented(
    method: Method, *, curator: type[Curator] = Curator, step: type[Step] = Step, **attributes: object
) -> Method:
    """``method`` with a Curator that derives from ``curator`` and from its own type, and steps likewise.

    The overrides of the method's own Curator (some broken methods have one) still apply, after the audit's.
    ``attributes`` become class attributes of the Curator: the inputs and outputs of the audit.
    """
    own = type(method).curator_type
    step_type = type(step.__name__, _bases(step, own.step_type), {})
    curator_type = type(curator.__name__, _bases(curator, own), {"step_type": step_type, **attributes})
    kind: type[Method] = type(type(method).__name__, (type(method),), {"curator_type": curator_type})
    return kind(**method.parameters())


def _bases(ours: type, own: type) -> tuple[type, ...]:
    return (own,) if issubclass(own, ours) else (ours,) if issubclass(ours, own) else (ours, own)


WHITE_BOX = "sees every noisy answer; knows all other records and their coins"


@dataclass(frozen=True)
class CanaryAudit:
    """A measured lower bound beside the ε that the ledger prints."""

    attack: str
    bound: Bound
    printed: float
    canaries: int
    also: Bound | None = None
    """A sharper bound under more assumptions; it is shown and never decides."""

    @property
    def flagged(self) -> bool:
        """The ε does not hold, with the bound's confidence."""
        return self.bound.epsilon > self.printed

    def __str__(self) -> str:
        percent = f"{100 * self.bound.confidence:g} %"
        also = "" if self.also is None else f"; ≥ {self.also.epsilon:.2f} if Gaussian"
        return f"{self.attack}: measured ≥ {self.bound.epsilon:.2f} ({percent}{also}), printed ε {self.printed:.3g}"

    def to_json(self) -> dict[str, Any]:
        return {
            "attack": self.attack,
            "measured": self.bound.to_json(),
            "printed": self.printed,
            "canaries": self.canaries,
            "also": None if self.also is None else self.also.to_json(),
            "flagged": self.flagged,
        }


@dataclass
class _Watch:
    """Log likelihood ratios of each canary, by step; blocks of one step share a coin."""

    first: int
    count: int
    exponents: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    rates: dict[tuple[str, int], float] = field(default_factory=dict)

    def scores(self) -> np.ndarray:
        total = np.zeros(self.count)
        for key, exponent in self.exponents.items():
            rate = self.rates[key]
            total += exponent if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
        return total


class _CanaryCurator(Curator):
    watch: _Watch


class _WithCanaries(Step):
    """Takes the canaries out of the batch before anything is computed and puts their vectors into the sum."""

    def __init__(self, curator: Curator, event: SubsampledGaussian, index: int) -> None:
        super().__init__(curator, event, index)
        self._watch: _Watch = curator.watch  # type: ignore[attr-defined]
        if event.shards is not None:
            # A canary is a shard with a coin of its own, unless it is excluded.
            coins = curator._randomness.coins(
                self._watch.count, event.sampling_rate, event.name, index, "canaries"
            ).numpy()
            excluded = np.array(sorted(curator._records._masked), dtype=np.int64) - self._watch.first
            self._chosen = np.setdiff1d(coins, excluded)
            return
        chosen = self._batch >= self._watch.first
        self._chosen = self._batch[chosen] - self._watch.first
        self._batch = self._batch[~chosen]

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        watch, planted = self._watch, []
        for part in parts:
            total = part.total.double().clone()
            if len(total) >= watch.count:
                total[self._chosen] += part.clip_norm
            planted.append(replace(part, total=total))
        answer = super()._answer(block, tuple(planted), public)
        key = (self._event.name, self.index)
        exponent = watch.exponents.setdefault(key, np.zeros(watch.count))
        watch.rates[key] = self._event.sampling_rate
        for part, piece in zip(parts, torch.split(answer, [p.total.numel() for p in parts]), strict=True):
            if len(piece) >= watch.count:
                seen = (piece - part.total.flatten().double())[: watch.count].cpu().numpy()
                exponent += (seen * part.clip_norm - part.clip_norm**2 / 2) / part.standard_deviation**2
        return answer


def white_box(
    method: Method,
    private: PrivateRecords,
    *,
    budget: Budget,
    canaries: int = 1000,
    runs: int = 1,
    seed: int | None = None,
    confidence: float = 0.95,
) -> CanaryAudit:
    """One run (or several with canaries of their own each, which pools) with gradient canaries.

    An answer with fewer numbers than canaries carries none of them; the bound stays valid and gets weaker.
    """
    random = np.random.default_rng(seed)
    scores, included = [], []
    events: tuple[Event, ...] = ()
    for run in range(runs):
        coins = random.random(canaries) < 0.5
        data, first = _extended(private, canaries, budget.unit, excluded=np.flatnonzero(~coins))
        watch = _Watch(first, canaries)
        with Ledger(None, budget) as ledger:
            audited = instrumented(method, curator=_CanaryCurator, step=_WithCanaries, watch=watch)
            audited.fit(data, budget, ledger, device="cpu", seed=None if seed is None else seed + run)
            events = ledger.events()
        scores.append(watch.scores())
        included.append(coins)
    score, coin = np.concatenate(scores), np.concatenate(included)
    bound = one_run(score, coin, delta=budget.delta, confidence=confidence, threat=WHITE_BOX)
    # Canaries on different coordinates have independent noise, so each is a small run of its own.
    _, gaussian = two_worlds(score[~coin], score[coin], delta=budget.delta, confidence=confidence, threat=WHITE_BOX)
    assumes = f"{gaussian.assumes}; independent noise on different coordinates"
    also = replace(gaussian, assumes=assumes)
    return CanaryAudit("white box", bound, epsilon(events, budget.delta), canaries * runs, also)


def black_box(
    method: Method,
    private: PrivateRecords,
    *,
    budget: Budget,
    canaries: int = 100,
    samples: int = 2000,
    seed: int | None = None,
    confidence: float = 0.95,
) -> CanaryAudit:
    """One run with conspicuous images among the records; the score is how much any released image looks like one."""
    random = np.random.default_rng(seed)
    coins = random.random(canaries) < 0.5
    images = random.integers(0, 2, (canaries, *private.shape)).astype(np.float32)
    labels = np.arange(canaries) % len(private.classes)
    data, _ = _extended(private, canaries, budget.unit, excluded=np.flatnonzero(~coins), images=images, labels=labels)
    with Ledger(None, budget) as ledger:
        release = method.fit(data, budget, ledger, device="cpu", seed=seed)
        printed = epsilon(ledger.events(), budget.delta)
    drawn, classes = release.sample(samples, seed=0, device="cpu")
    flat = torch.from_numpy(drawn.reshape(samples, -1)).float() / 255 - 0.5
    wanted = torch.from_numpy(images.reshape(canaries, -1)).float() - 0.5
    likeness = wanted @ flat.T
    likeness[torch.from_numpy(labels)[:, None] != torch.from_numpy(classes)[None]] = -math.inf
    bound = one_run(
        likeness.max(1).values.numpy(),
        coins,
        delta=budget.delta,
        confidence=confidence,
        threat="sees released images only",
    )
    return CanaryAudit("black box", bound, printed, canaries)


def ledger_losses(events: Sequence[Event], draws: int, random: np.random.Generator) -> np.ndarray:
    """Draws of the privacy loss of everything on a ledger, for a unit that moves every answer by all it may."""
    losses = np.zeros(draws)
    steps: dict[tuple[float, float], int] = defaultdict(int)
    for event in events:
        if not isinstance(event, SubsampledGaussian):
            raise ValueError("raw access has no likelihood ratio")
        steps[(event.sampling_rate, event.noise_multiplier)] += event.steps
    # For sharded queries, under replace-one: a unit changes the sign of a vector instead of adding one.
    turned = any(isinstance(event, SubsampledGaussian) and event.shards is not None for event in events)
    for (rate, noise), count in steps.items():
        far = 1 / noise
        for _ in range(count):
            seen = far * (random.random(draws) < rate) + random.standard_normal(draws)
            losses += np.log1p(rate * np.expm1(far * seen - far**2 / 2))
            if turned:
                losses -= np.log1p(rate * np.expm1(-far * seen - far**2 / 2))
    return losses


def accountant_check(
    events: Sequence[Event],
    *,
    delta: float,
    printed: float | None = None,
    draws: int = 200_000,
    seed: int | None = None,
    confidence: float = 0.95,
) -> CanaryAudit:
    """The exact likelihood-ratio bound for the ledger's own mechanisms: if it passes ε, the accountant is wrong.

    ``printed`` is the ε to hold it against; by default what the accountant says now.
    """
    losses = ledger_losses(events, draws, np.random.default_rng(seed))
    bound = likelihood_ratio(losses, delta=delta, confidence=confidence, threat=WHITE_BOX)
    printed = epsilon(events, delta) if printed is None else printed
    return CanaryAudit("likelihood ratio of the ledger", bound, printed, 1)


def unit_pixels(private: PrivateRecords) -> np.ndarray:
    """The pixels of a collection in 0..1."""
    scale = 255.0 if private._pixels.dtype == np.uint8 else 1.0
    return np.asarray(private._pixels, dtype=np.float32) / np.float32(scale)


def with_rows(
    private: PrivateRecords, pixels: np.ndarray, labels: np.ndarray, persons: np.ndarray | None
) -> PrivateRecords:
    """A collection of the same classes and declared size with other rows."""
    return PrivateRecords(pixels, labels, classes=private.classes, persons=persons, declared_size=private.declared_size)


def _extended(
    private: PrivateRecords,
    canaries: int,
    unit: Unit,
    *,
    excluded: np.ndarray,
    images: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> tuple[PrivateRecords, int]:
    """The collection with canaries at its end, those in ``excluded`` masked, and the first canary's unit number."""
    own = unit_pixels(private)
    images = np.zeros((canaries, *private.shape), np.float32) if images is None else images
    labels = np.zeros(canaries, np.int64) if labels is None else labels
    first, persons = len(own), None
    if private._persons is not None:
        start = int(np.max(private._persons)) + 1 if len(private._persons) else 0
        persons = np.concatenate([private._persons, start + np.arange(canaries)])
        first = start if unit == "person" else first
    both = np.concatenate([own, images]), np.concatenate([np.asarray(private._labels), labels])
    data = with_rows(private, *both, persons)
    data._masked = private._masked | frozenset((first + excluded).tolist())
    return data, first
