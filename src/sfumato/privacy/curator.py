"""The Curator: the door between a method and the private images.

A method never holds pixels. It asks for noisy answers; clip, sum, charge and noise are one call, and what was not
planned is not answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.privacy.accounting import rough_epsilon
from sfumato.privacy.budget import Budget
from sfumato.privacy.clipping import clipped_feature_sum
from sfumato.privacy.events import RawAccess, SubsampledGaussian
from sfumato.privacy.gradients import Batch, Clip, Loss, check, check_rows, check_shards, clipped_sum, groups_of
from sfumato.privacy.gradients.group_terms import Grouped, GroupLoss, Terms
from sfumato.privacy.gradients.noisy_gradient import NoisyGradient
from sfumato.privacy.gradients.shards import Partition, on_shards
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanism import Part, Query, Tape, noisy
from sfumato.privacy.plan import Plan
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.sampling import Units
from sfumato.privacy.state import PrivateState

Features = Callable[..., Tensor]
"""``features(images, labels, random) -> [rows, ...]``: one vector per row, a function of that row alone."""

Item = TypeVar("Item")

_CHUNK = 1 << 24  # numbers in one chunk of images
_SUM_CHUNK = 256  # units in one chunk of feature vectors, which may be long


class AnswerLost(RuntimeError):
    """A question was charged, and a crash took its answer: the run cannot go on, and what it spent stays spent."""


class Progress(Protocol):
    """Told public numbers only: which part, how many of how many, and the ε so far."""

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None: ...


class Checkpoint(Protocol):
    """Where a run keeps what it needs to go on after a crash: released answers and public objects."""

    def restore(self, name: str, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> int: ...
    def save(self, name: str, done: int, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> None: ...
    def answer(self, name: str) -> Tensor | None: ...
    def save_answer(self, name: str, answer: Tensor) -> None: ...


@dataclass(frozen=True)
class Counts:
    """Noisy label counts; units, not images, where a unit is a person."""

    values: Tensor

    @property
    def total(self) -> float:
        """At least one, so that it can be divided by."""
        return max(1.0, float(self.values.sum()))

    @property
    def proportions(self) -> Tensor:
        """Non-negative, adding up to one."""
        values = self.values.clamp(min=0.0)
        return values / values.sum() if float(values.sum()) > 0 else torch.full_like(values, 1 / len(values))


class Curator:
    """Holds the private images, the plan and the ledger, and answers what the plan lists.

    ``shape`` and ``classes`` are public; so is every answer.
    """

    step_type: type[Step]

    def __init__(
        self,
        records: PrivateRecords,
        plan: Plan,
        ledger: Ledger,
        *,
        run: str,
        randomness: Randomness,
        device: str | torch.device = "cpu",
        max_images_per_unit: int = 16,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
        tape: Tape | None = None,
    ) -> None:
        if tape is not None and not randomness.seeded:
            raise ValueError("a tape records what must stay hidden; it goes with seeded test runs only")
        plan.budget.check_delta(records.declared_size)
        self.shape = records.shape
        self.classes = records.classes
        self.plan = plan
        self.device = torch.device(device)
        self._records = records
        self._units = Units(records, plan.budget.unit, max_images=max_images_per_unit)
        self._ledger = ledger
        self._run = run
        self._randomness = randomness
        self._checkpoint = checkpoint
        self._progress = progress
        self._tape = tape
        self._states: list[PrivateState] = []
        self._partitions: dict[int, Partition] = {}
        self._charges = 0
        self._next: dict[str, int] = {}
        self._opened = False
        self._probed: set[tuple[str, str]] = set()
        # Room for the whole plan, or a refusal before the first look at the data.
        left = (event.times(event.steps - paid) for event, paid in self._paid() if paid < event.steps)
        ledger.reserve(tuple(left))

    def _paid(self) -> Iterator[tuple[SubsampledGaussian, int]]:
        for event in self.plan.events:
            yield event, min(event.steps, self._ledger.charged_steps(self._run, event.name))

    # Questions

    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        """The steps of a planned event. ``keep`` names what a resumed run needs back: modules, optimisers.

        After a crash, steps that were charged but are not in the last checkpoint are lost, and still count.
        """
        event, keep = self.plan.event(name), dict(keep or {})
        paid = min(event.steps, self._ledger.charged_steps(self._run, name))
        done = self._checkpoint.restore(name, keep, self._states) if self._checkpoint else 0
        # An index is never used twice under one key: it addresses the step's coins and noise.
        first = max(done, self._next.get(name, 0))
        last = first + event.steps - paid
        shown = -1
        for index in range(first, last):
            self._next[name] = index + 1
            step = self.step_type(self, event, index)
            yield step
            step._finish()
            if self._checkpoint:
                self._checkpoint.save(name, index + 1, keep, self._states)
            if self._progress and (index + 1 == last or 20 * index // last != shown):
                shown = 20 * index // last  # seldom: the ε so far takes a while to compute
                so_far = rough_epsilon(self._ledger.events(self._run), self.plan.budget.delta)
                self._progress.report(name, index + 1, last, so_far)

    def noisy_sum(self, name: str, features: Features, *, bound: float, by_class: bool = False) -> Tensor:
        """The sum over all units of ``features``, each clipped to ``bound``; asked once, outside any step."""
        stored = self._checkpoint.answer(name) if self._checkpoint else None
        if stored is not None:
            return stored.to(self.device, torch.get_default_dtype())
        event = self.plan.event(name)
        if event.sampling_rate != 1 or event.steps != 1 or len(event.blocks) != 1:
            raise ValueError(f"{name!r} is planned as steps; ask inside them")
        for step in self.steps(name):
            answer = step.noisy_sum(event.blocks[0].name, features, bound=bound, by_class=by_class)
            if self._checkpoint:
                self._checkpoint.save_answer(name, answer)
            return answer
        raise AnswerLost(
            f"{name!r} was charged before a crash and its answer is lost; the ledger cannot pay for it twice. "
            "Start a new run with a budget of its own"
        )

    def noisy_histogram(self, name: str) -> Counts:
        """How many units of each class, a unit's row having norm at most 1."""

        def one(images: Tensor, labels: Tensor, random: object) -> Tensor:
            return images.new_ones(len(images), 1)

        return Counts(self.noisy_sum(name, one, bound=1.0, by_class=True)[:, 0])

    def private_state(
        self, name: str, shape: tuple[int, ...], *, fill: float = 0.0, shards: int | None = None
    ) -> PrivateState:
        """Memory that belongs to one record each, or to one of ``shards``; see :class:`PrivateState`.

        A run that goes on after a crash deals its shards anew, so that their memory begins again too.
        """
        state = PrivateState(name, shards or len(self._records._labels), shape, fill, self.device, shards=shards)
        if shards is None:
            self._states.append(state)
        return state

    def _partition(self, shards: int) -> Partition:
        if shards not in self._partitions:
            self._partitions[shards] = Partition(self._units.shard_of(self._randomness, shards), shards)
        return self._partitions[shards]

    # Raw access, for algorithms as published

    def open(self, reason: str) -> tuple[np.ndarray, np.ndarray]:
        """The raw pixels and labels. Possible only under ``NoGuarantee()``; the ledger notes it first."""
        if isinstance(self.plan.budget, Budget):
            raise PermissionError(
                "raw records are not handed out under a guarantee; an algorithm that needs them runs as NoGuarantee()"
            )
        self._ledger.note_raw_access(self._run, RawAccess("raw records", reason))
        self._opened = True
        units = self._units.sample(self._randomness, 1.0, "open")
        table, weights = self._units.rows(units, self._randomness, "open")
        rows = np.sort(table[weights > 0])
        return self._records._pixels[rows], np.asarray(self._records._labels)[rows]

    def claimed_sum(self, name: str, total: Tensor, *, claimed_sensitivity: float, noise_multiplier: float) -> Tensor:
        """Noise on a sum that a published algorithm made from raw records, at the sensitivity its authors claim."""
        if not self._opened:
            raise PermissionError("claimed_sum is for sums made from raw records; open them first")
        step = self._next[name] = self._next.get(name, -1) + 1
        part = Part("total", total.detach().flatten(), claimed_sensitivity, noise_multiplier * claimed_sensitivity)
        question = Query(name, step, name, (part,), {"shape": tuple(total.shape)}, claimed=True)
        return self._exchange(question).view(total.shape).to(total.dtype)

    # For everyone

    def track(self, items: Iterable[Item], name: str, total: int) -> Iterator[Item]:
        """Report progress over public work, such as training on released answers."""
        for done, item in enumerate(items, start=1):
            yield item
            if self._progress and (done == total or done % max(1, total // 50) == 0):
                self._progress.report(name, done, total, None)

    def close(self) -> None:
        """Let go of the data."""
        del self._records, self._units
        self._states.clear()

    def _charge(self, event: SubsampledGaussian) -> None:
        self._ledger.charge(self._run, event.times(1))
        self._charges += 1

    def _exchange(self, question: Query) -> Tensor:
        """The noise, and what a tape makes of it."""
        answer = noisy(question, self._randomness)
        if self._tape is not None:
            answer = self._tape.exchange(question, answer, charges=self._charges).to(answer.device)
        return answer


class Step:
    """One toss of all coins, and the questions of one event about the batch that came up."""

    def __init__(self, curator: Curator, event: SubsampledGaussian, index: int) -> None:
        self.index = index
        self._curator = curator
        self._event = event
        self._answered: set[str] = set()
        self._over = False
        if event.shards is None:
            coins = (curator._randomness, event.sampling_rate, event.name, index)
            self._batch = curator._units.sample(*coins, device=str(curator.device))
        else:
            self._batch = curator._randomness.coins(event.shards, event.sampling_rate, event.name, index).numpy()

    def noisy_gradient(
        self,
        block: str,
        model: nn.Module,
        loss: Loss,
        *,
        clip: Clip,
        draws: int = 1,
        state: PrivateState | None = None,
    ) -> NoisyGradient:
        """The sum over the batch of each unit's clipped gradient, plus noise.

        With G groups of own clip, the noise on group g has standard deviation σ·√G·clip_g: scaled by their clips the
        G pieces of one unit have norm at most √G together. ``draws`` averages a unit's loss over that many
        independent draws before the clip.
        """
        groups = groups_of(model, clip)
        self._probe(block, draws, state, lambda batch: check(model, loss, batch, clip))
        totals: dict[str, Tensor] = {}
        numbers = math.prod(self._curator.shape) * draws
        for batch in self._batches(block, draws, state, max(1, _CHUNK // numbers)):
            for name, part in clipped_sum(model, loss, batch, clip).items():
                totals[name] = totals[name] + part if name in totals else part
        spread = math.sqrt(len(groups)) * self._noise_multiplier(block)
        parts = tuple(
            Part(group or "all", torch.cat([totals[n].flatten() for n in names]), bound, spread * bound)
            for group, (bound, names) in groups.items()
        )
        names = [name for _, members in groups.values() for name in members]
        return self._gradient(block, model, names, parts, {"question": "gradient", "draws": draws})

    def noisy_term_gradient(
        self, block: str, model: nn.Module, sample_loss: Loss | None, group_loss: GroupLoss, *,
        groups: int, clips: tuple[float, float], batch: float, draws: int = 1,
    ) -> NoisyGradient:  # fmt: skip
        """Records' own terms and terms of random groups of records under one noise of σ·(C1/B + 2·C2/b), on the
        average; see :class:`Grouped`. ``batch`` is the public B, ``clips`` are C1 and C2."""
        return self.noisy_terms(block, model, Grouped(sample_loss, group_loss, groups, clips, batch), draws=draws)

    def noisy_terms(self, block: str, model: nn.Module, terms: Terms, *, draws: int = 1) -> NoisyGradient:
        """The average of such terms, with noise for how far one unit moves it."""
        if self._event.shards is not None:
            raise ValueError(f"{self._event.name!r} is asked of shards; terms of several records are asked of units")
        self._probe(block, draws, None, lambda few: terms.check(model, few))
        (whole,) = self._batches(block, draws, None, max(1, len(self._batch)))
        totals = terms.total(model, whole)
        spread = self._noise_multiplier(block) * terms.bound
        parts = (Part("all", torch.cat([total.flatten() for total in totals.values()]), terms.bound, spread),)
        return self._gradient(block, model, list(totals), parts, {"question": "terms", "draws": draws})

    def _gradient(
        self, block: str, model: nn.Module, names: list[str], parts: tuple[Part, ...], public: dict[str, Any]
    ) -> NoisyGradient:
        own = dict(model.named_parameters())
        answer = self._answer(block, parts, {**public, "shapes": {name: tuple(own[name].shape) for name in names}})
        if len({own[name].dtype for name in names}) == 1:
            answer = answer.to(own[names[0]].dtype)  # at once: a device starts slowly and runs fast
        return NoisyGradient(model, tuple(names), answer)

    def noisy_sum(
        self,
        block: str,
        features: Features,
        *,
        bound: float,
        by_class: bool = False,
        state: PrivateState | None = None,
    ) -> Tensor:
        """The sum over the batch of each unit's feature vector clipped to ``bound``, plus noise.

        A unit's vector is the average over its rows. With ``by_class`` a row's features live in the slice of its
        class, and the answer has a first dimension for the classes.
        """
        if not (math.isfinite(bound) and bound > 0):
            raise ValueError(f"the bound must be a positive number, not {bound}")
        self._probe(block, 1, state, lambda batch: check_rows(features, batch))
        classes = len(self._curator.classes) if by_class else 1
        total, shape = None, None
        for batch in self._batches(block, 1, state, _SUM_CHUNK):
            arguments = (batch.images, batch.labels, batch.random)
            with torch.no_grad():
                values = features(*arguments) if batch.state is None else features(*arguments, batch.state)
            shape = tuple(values.shape[1:])
            clipped = clipped_feature_sum(values.flatten(1), batch, bound, classes if by_class else None)
            total = clipped if total is None else total + clipped
        if total is None or shape is None:
            raise RuntimeError("a step without a batch")
        deviation = self._noise_multiplier(block) * bound
        shape = (classes, *shape) if by_class else shape
        part = Part("sum", total.flatten(), bound, deviation)
        answer = self._answer(block, (part,), {"question": "sum", "shape": shape})
        return answer.view(shape).to(torch.get_default_dtype())

    def update(self, state: PrivateState, function: Callable[..., Tensor]) -> None:
        """``state = function(images, labels, random, state)`` for the batch's records, each from its own row alone.

        Of shards, ``state = function(images, labels, weights, random, state)``: ``[shards, rows, ...]``, rows that only
        fill up having weight 0, and ``[shards, ...]`` for the state.
        """
        if self._over:
            raise RuntimeError("this step is over; its batch may no longer be asked about")
        name, chunk = f"update {state.name}", max(1, _CHUNK // math.prod(self._curator.shape))
        if self._event.shards is not None:
            self._probe(name, 3, state, lambda batch: check_shards(function, batch))
            for batch in self._batches(name, 1, state, chunk):
                if batch.owners is not None:
                    state._write(batch.owners, on_shards(function, batch))
            return
        self._probe(name, 1, state, lambda batch: check_rows(function, batch))
        for batch in self._batches(name, 1, state, chunk):
            values = function(batch.images, batch.labels, batch.random, batch.state)
            real = batch.weights.flatten() > 0
            state._write(batch.random.rows[real], values[real])

    def _noise_multiplier(self, block: str) -> float:
        for planned in self._event.blocks:
            if planned.name == block:
                if planned.sensitivity != 1:
                    raise ValueError(
                        f"block {block!r} is planned to move by {planned.sensitivity:g}; this one moves by 1"
                    )
                return planned.noise_multiplier
        raise LookupError(
            f"block {block!r} is not planned for {self._event.name!r}, which has {[b.name for b in self._event.blocks]}"
        )

    def _answer(self, block: str, parts: tuple[Part, ...], public: Mapping[str, Any]) -> Tensor:
        if self._over:
            raise RuntimeError("this step is over; its batch may no longer be asked about")
        if block in self._answered:
            raise RuntimeError(f"block {block!r} was answered in this step; a second answer would need its own noise")
        if not self._answered:
            self._curator._charge(self._event)
        self._answered.add(block)
        return self._curator._exchange(Query(self._event.name, self.index, block, parts, public))

    def _probe(self, what: str, draws: int, state: PrivateState | None, ask: Callable[[Batch], None]) -> None:
        """Once for each block: does what the method gave us keep its contract? Asked on random images, so that nothing
        private can show in the refusal."""
        curator, key = self._curator, (self._event.name, what)
        if key in curator._probed:
            return
        curator._probed.add(key)
        ids = torch.arange(6 * draws, device=curator.device) // draws
        random = curator._randomness.draws(ids, torch.arange(len(ids), device=curator.device) % draws, "probe", *key)
        images = random.uniform("images", *curator.shape)
        weights = torch.full((6, draws), 1.0 / draws, device=curator.device, dtype=images.dtype)
        memory = None if state is None else random.normal("state", *state.shape)
        ask(Batch(images, ids % len(curator.classes), random, weights, memory))

    def _finish(self) -> None:
        self._over = True

    def _batches(self, block: str, draws: int, state: PrivateState | None, chunk: int) -> Iterator[Batch]:
        """The batch in chunks of units, or of shards; an empty batch is one chunk without rows."""
        curator, label = self._curator, (self._event.name, self.index)
        if state is not None and state.shards != self._event.shards:
            raise ValueError(f"state {state.name!r} belongs to other owners than {self._event.name!r} asks")
        for owners, units, share in self._packs(chunk):
            table, weights = curator._units.rows(units.flatten(), curator._randomness, *label)
            weights = (weights * share.reshape(-1, 1)).reshape(len(units), units.shape[1] * weights.shape[1])
            rows = table.flatten()
            images, labels = curator._records._fetch(rows, curator.device)
            ids = torch.from_numpy(rows).to(curator.device)
            owner = ids if self._event.shards is None else torch.from_numpy(owners).to(curator.device)
            memory = None if state is None else state._read(owner, curator.device)
            if memory is not None and len(owner) < len(ids):
                memory = memory.repeat_interleave(len(ids) // len(owner), 0)
            number = torch.arange(draws, device=curator.device).repeat(len(rows))
            weight = torch.from_numpy(weights).to(images) / draws
            if draws > 1:
                images, labels, ids = (t.repeat_interleave(draws, 0) for t in (images, labels, ids))
                memory = None if memory is None else memory.repeat_interleave(draws, 0)
                weight = weight.repeat_interleave(draws, 1)
            yield Batch(images, labels, curator._randomness.draws(ids, number, *label, block), weight, memory, owner)

    def _packs(self, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Owners, ``[owners, n]`` units of theirs, and each one's share in its owner's vector."""
        if self._event.shards is not None:
            yield from self._curator._partition(self._event.shards).packs(self._batch, chunk)
            return
        for start in range(0, max(1, len(self._batch)), chunk):
            units = self._batch[start : start + chunk]
            yield units, units[:, None], np.ones((len(units), 1))


Curator.step_type = Step
