"""The Curator holds the private records and answers the queries of a plan.

A method never holds pixels. It asks for noisy answers; clip, sum, ledger entry and noise are one call, and a query that
was not planned is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy.accounting import Plan, rough_epsilon
from sfumato.privacy.budget import Budget
from sfumato.privacy.distributed import World
from sfumato.privacy.events import RawAccess, SubsampledGaussian
from sfumato.privacy.gradients.engine import RowPasses
from sfumato.privacy.interfaces import Checkpoint, Progress, PublicInput, Tape
from sfumato.privacy.ledger import Ledger, RunRefused
from sfumato.privacy.mechanism import ClippedSum, Query, add_noise, described
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords, PrivateState
from sfumato.privacy.sampling import Batches, Units, check_units
from sfumato.privacy.step import Features, Step, on_private_rows

Item = TypeVar("Item")


_LOST = (
    "{0!r} was charged before a crash and its answer is lost; the ledger cannot pay for it twice. "
    "Start a new run with a budget of its own"
)


class AnswerLost(RuntimeError):
    """A query was charged and a crash took its answer: the run cannot go on, and its charges stay."""


@dataclass(frozen=True)
class Counts:
    """Noisy label counts; of units, not images, where a unit is a person."""

    values: Tensor

    @property
    def total(self) -> float:
        """The number of units, at least 1, so that it can be a divisor."""
        return max(1.0, float(self.values.sum()))

    @property
    def proportions(self) -> Tensor:
        """The classes' shares, non-negative and adding up to one."""
        values = self.values.clamp(min=0.0)
        return values / values.sum() if float(values.sum()) > 0 else torch.full_like(values, 1 / len(values))


class Curator:
    """Holds the private records, the plan and the ledger, and answers the queries that the plan lists.

    ``shape`` and ``classes`` are public; so is every answer.
    """

    step_type: type[Step] = Step

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
        internal: bool = False,
        world: World | None = None,
    ) -> None:
        if tape is not None and not randomness.seeded:
            raise ValueError("a tape records exact sums; it is accepted in seeded test runs only")
        plan.budget.check_delta(records.declared_size)
        self.shape = records.shape
        self.classes = records.classes
        self.plan = plan
        self.device = torch.device(device)
        self._records = records
        check_units(records, plan.budget.unit, max_images_per_unit)
        units = partial(Units, records, plan.budget.unit, max_images=max_images_per_unit)
        # An allocation that fails says how many bytes were asked for.
        self._units = on_private_rows(units, internal=internal)
        self._batches = Batches(records, self._units, randomness, self.device)
        self._ledger = ledger
        self._run = run
        self._randomness = randomness
        self._checkpoint = checkpoint
        self._world = world or World()
        self._progress = progress if self._world.first else None
        self._tape = tape
        self._states: list[PrivateState] = []
        self._internal = internal
        self._charges = 0
        self._shown: tuple[int, float] | None = None
        self._answers: dict[str, int] = {}
        self._unwritten: list[dict[str, Any]] = []
        self._next: dict[str, int] = {}
        self._opened = False
        self._probed: set[tuple[str, ...]] = set()
        self._shapes: dict[tuple[str, str], tuple[int, ...]] = {}
        self._row_passes = RowPasses()
        # The whole plan is reserved, or refused before the first access to the data.
        remaining = ((event, event.steps - self._paid(event)) for event in plan.events)
        ledger.reserve(run, tuple(event.times(steps) for event, steps in remaining if steps))

    def _paid(self, event: SubsampledGaussian) -> int:
        return min(event.steps, self._ledger.charged_steps(self._run, event.name))

    # Queries

    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        """The steps of a planned event. ``keep`` names what a resumed run needs back: modules, optimisers.

        After a crash, steps that were charged but are not in the last checkpoint are lost, and still count. Where no
        step is left, and none was kept, there is nothing to go on with.

        Guarantee. No index of an event is used twice under one key, and no more steps are taken than are paid for.
        """
        event, keep = self.plan.event(name), dict(keep or {})
        paid = self._paid(event)
        done = self._checkpoint.restore(name, keep, self._states) if self._checkpoint else 0
        self._use(name, done)
        if paid == event.steps and not done and name not in self._next:
            raise AnswerLost(_LOST.format(name))
        # An index is never used twice under one key: it addresses the step's coins and noise.
        first = max(done, self._next.get(name, 0))
        last = first + event.steps - paid
        shown = -1
        for index in range(first, last):
            self._next[name] = index + 1
            step = type(self).step_type(self, event, index)  # of the class, which the ledger notes if it is not ours
            yield step
            step._finish()
            if self._checkpoint:
                self._checkpoint.save(name, index + 1, keep, self._states, last=index + 1 == last)
            if index + 1 == last or 20 * index // last != shown:
                shown = 20 * index // last  # seldom: the ε so far takes a while to compute
                self._report(name, index + 1, last)

    def noisy_sum(self, name: str, features: Features, *, clip_norm: float, by_class: bool = False) -> Tensor:
        """The sum over all units of ``features``, each clipped to ``clip_norm``; a query of one step at rate 1."""
        return self._single(
            name, lambda step, block: step.noisy_sum(block, features, clip_norm=clip_norm, by_class=by_class)
        )

    def noisy_second_moments(
        self, name: str, features: Features, *, clip_norm: float, by_class: bool = False
    ) -> Tensor:
        """The sum over all units of outer products of ``features``; a query of one step at rate 1."""
        return self._single(
            name, lambda step, block: step.noisy_second_moments(block, features, clip_norm=clip_norm, by_class=by_class)
        )

    def _single(self, name: str, ask: Callable[[Step, str], Tensor]) -> Tensor:
        """The answer to the only block of the only step of an event at rate 1, or the one that was kept."""
        stored = self._checkpoint.answer(name) if self._checkpoint else None
        if stored is not None:
            self._use(name, 1)
            return stored.to(self.device, torch.get_default_dtype())
        event = self.plan.event(name)
        if event.sampling_rate != 1 or event.steps != 1 or len(event.blocks) != 1:
            raise ValueError(f"{name!r} is planned as steps; query it inside them")
        for step in self.steps(name):
            answer = ask(step, event.blocks[0].name)
            if self._checkpoint:
                self._checkpoint.save_answer(name, answer)
            return answer
        raise AnswerLost(_LOST.format(name))

    def noisy_histogram(self, name: str) -> Counts:
        """Noisy number of units of each class; a unit's row of the histogram has norm at most 1."""

        def one(images: Tensor, labels: Tensor, random: object) -> Tensor:
            return images.new_ones(len(images), 1)

        return Counts(self.noisy_sum(name, one, clip_norm=1.0, by_class=True)[:, 0])

    def private_state(
        self, name: str, shape: tuple[int, ...], *, fill: float = 0.0, shards: int | None = None
    ) -> PrivateState:
        """State of each record, or of each of ``shards``; see :class:`PrivateState`.

        A resumed run has another key and other shards, so that the shards' state starts again.
        """
        owners, digest = shards or len(self._records._labels), self._records._digest
        make = partial(PrivateState, name, owners, shape, fill, self.device, shards=shards, digest=digest)
        state = on_private_rows(make, internal=self._internal)
        if shards is None:
            self._states.append(state)
        return state

    # Raw access, for algorithms as published

    def open(self, reason: str) -> tuple[np.ndarray, np.ndarray]:
        """The raw pixels and labels. Only under ``NoGuarantee()``; the ledger notes the access first."""
        if isinstance(self.plan.budget, Budget):
            raise PermissionError(
                "raw records are not handed out under a guarantee; an algorithm that needs them runs as NoGuarantee()"
            )
        if self._world.size > 1:
            raise PermissionError("an algorithm on raw records is not divided over processes; run it in one process")
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
        deviation = noise_multiplier * claimed_sensitivity
        claimed = ClippedSum("total", total.detach().flatten(), claimed_sensitivity, deviation)
        query = Query(name, step, name, (claimed,), {"shape": tuple(total.shape)}, claimed=True)
        return self._release(query).view(total.shape).to(total.dtype)

    # For every method

    def track(
        self, items: Iterable[Item], name: str, total: int, *, keep: Mapping[str, Any] | None = None
    ) -> Iterator[Item]:
        """Public work, such as training on released answers, with its progress.

        ``keep`` names what a resumed run needs back, as in ``steps``; without it the work starts again.
        """
        keep = dict(keep or {})
        kept = self._checkpoint.restore(name, keep, ()) if self._checkpoint and keep else 0
        for done, item in enumerate(items, start=1):
            if done <= kept:
                continue
            yield item
            if self._checkpoint:
                self._checkpoint.save(name, done, keep, (), last=False)
            if done == total or done % max(1, total // 50) == 0:
                self._report(name, done, total)

    def treat_as_public(self, public: PublicInput) -> None:
        """Write a public collection on the ledger, and what it has cost, before anything is learnt from it."""
        if public.place is not None and self._records.lies_in(public.place):
            raise ValueError(
                f"{public.name!r} is, or holds, files of the private collection itself: it is not public. Name a "
                "collection that shares no record with the private one"
            )
        self._ledger.note_public(self._run, public)

    def close(self) -> None:
        """Drop the references to the data, and check that every answer in use is on the ledger."""
        for name, count in self._answers.items():
            check_charged(self._ledger, self._run, name, count)
        del self._records, self._units, self._batches
        self._states.clear()

    def note_own_code(self, name: str) -> None:
        """Write on the ledger that a class outside the trusted base takes part in the answers."""
        self._ledger.note_own_code(self._run, name)

    def _charge(self, event: SubsampledGaussian) -> None:
        self._ledger.charge(self._run, event.times(1), answered=self.unwritten_answers())
        if self._checkpoint:
            self._checkpoint.charged(*self._ledger.head)
        self._charges += 1
        self._answers[event.name] = self._answers.get(event.name, 0) + 1

    def unwritten_answers(self) -> list[dict[str, Any]]:
        """Descriptions of the answers since the last entry on the ledger, for the next one."""
        found, self._unwritten = self._unwritten, []
        return found

    def _report(self, name: str, done: int, total: int) -> None:
        """Show progress with the ε so far, which is computed again only after another charge."""
        if self._progress:
            if self._shown is None or self._shown[0] != self._charges:
                so_far = rough_epsilon(self._ledger.events(self._run), self.plan.budget.delta)
                self._shown = (self._charges, so_far)
            self._progress.report(name, done, total, self._shown[1])

    def _use(self, name: str, steps: int) -> None:
        """Take over the answers of ``steps`` steps from a checkpoint."""
        check_charged(self._ledger, self._run, name, steps)
        self._answers[name] = max(steps, self._answers.get(name, 0))

    def _release(self, query: Query) -> Tensor:
        """The noisy answer; with a tape, the answer that the tape returns for it."""
        answer = add_noise(query, self._randomness)
        if not query.claimed:
            self._unwritten.append(described(query, answer))
        if self._tape is not None:
            answer = self._tape.exchange(query, answer, charges=self._charges).to(answer.device)
        return answer


def check_charged(ledger: Ledger, run: str, name: str, steps: int) -> None:
    """Refuse answers that are in use and not on the ledger."""
    charged = ledger.charged_steps(run, name)
    if steps > charged:
        raise RunRefused(
            f"{steps} answers of {name!r} are in use and {charged} are charged on this ledger: it is an older "
            "copy, or the checkpoint belongs to another ledger. Go on with the ledger that has charged them all, "
            "or start a new run"
        )
