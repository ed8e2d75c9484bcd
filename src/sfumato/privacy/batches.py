"""From coins, units and shards to the batches that a loss is evaluated on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from sfumato.privacy.events import SubsampledGaussian
from sfumato.privacy.gradients.batch import Batch, microbatch_size
from sfumato.privacy.gradients.engine import PROBED
from sfumato.privacy.gradients.performance import Performance, units_multiple
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.sampling import Partition, Units
from sfumato.privacy.state import PrivateState


class Batches:
    """Draws the batch of each step and fetches it in microbatches."""

    def __init__(self, records: PrivateRecords, units: Units, randomness: Randomness, device: torch.device) -> None:
        self._records = records
        self._units = units
        self._randomness = randomness
        self._device = device
        self._partitions: dict[int, Partition] = {}

    def sample(self, event: SubsampledGaussian, index: int) -> np.ndarray:
        """The units, or for a sharded event the shards, that are in the batch of this step."""
        label = (event.name, index)
        if event.shards is None:
            return self._units.sample(self._randomness, event.sampling_rate, *label)
        return self._randomness.coins(event.shards, event.sampling_rate, *label).numpy()

    def expected_units(self, event: SubsampledGaussian) -> float | None:
        """How many units, or shards, a batch is expected to have, as far as that is public."""
        if event.shards is not None:
            return event.sampling_rate * event.shards
        declared = self._records.declared_size
        return None if declared is None else event.sampling_rate * declared

    def units_in_a_pass(self, event: SubsampledGaussian, *, most: int) -> int:
        """Units, or shards, that a function of rows is evaluated on together, from public numbers only."""
        expected = self.expected_units(event)
        expected = Performance().usual_units(self._device) if expected is None else expected
        if event.shards is not None:
            # Few, because shards of every width are filled up to this number.
            return microbatch_size(expected, most=32 if self._device.type == "cuda" else 4)
        return microbatch_size(expected, most=most, multiple=units_multiple(self._device, 1))

    def fetch(
        self,
        event: SubsampledGaussian,
        index: int,
        chosen: np.ndarray,
        *,
        block: str,
        draws: int,
        state: PrivateState | None,
        microbatch_size: int | None,
        padded: bool = False,
    ) -> Iterator[Batch]:
        """The batch in microbatches of units, or of whole shards; an empty batch is one microbatch without units.

        Without a ``microbatch_size`` it comes in one piece, in which every person has the same number of rows.
        With ``padded``, all microbatches of one width have the same number of units, the last ones of weight 0, so
        that the shape in which a unit is computed does not depend on the others; an empty batch is padding alone.

        ``draws`` repeats each row with independent randomness; the weights average over the repetitions.
        """
        label, device = (event.name, index), self._device
        for owners, units, share in self._packed(event, chosen, microbatch_size, padded=padded):
            table, weights = self._units.rows(units.flatten(), self._randomness, *label, widest=microbatch_size is None)
            weights = (weights * share.reshape(-1, 1)).reshape(len(units), units.shape[1] * weights.shape[1])
            rows = table.flatten()
            images, labels = self._records._fetch(rows, device)
            ids = torch.from_numpy(self._units.record_ids(rows)).to(device)
            owner = torch.from_numpy(rows if event.shards is None else owners).to(device)
            memory = None if state is None else state._read(owner, device)
            if memory is not None and len(owner) < len(ids):
                memory = memory.repeat_interleave(len(ids) // len(owner), 0)
            number = torch.arange(draws, device=device).repeat(len(rows))
            weight = torch.from_numpy(weights).to(images) / draws
            if draws > 1:
                images, labels, ids = (t.repeat_interleave(draws, 0) for t in (images, labels, ids))
                memory = None if memory is None else memory.repeat_interleave(draws, 0)
                weight = weight.repeat_interleave(draws, 1)
            batch = Batch(images, labels, self._randomness.draws(ids, number, *label, block), weight, memory, owner)
            if padded and microbatch_size is not None:
                batch = replace(batch.padded(microbatch_size), owners=owner)
            yield batch

    def random(self, draws: int, state: PrivateState | None, *label: str) -> Batch:
        """A batch of random images, to test a loss or function on without touching a record."""
        units = PROBED
        ids = torch.arange(units * draws, device=self._device) // draws
        number = torch.arange(len(ids), device=self._device) % draws
        random = self._randomness.draws(ids, number, "probe", *label)
        images = random.uniform("images", *self._records.shape)
        weights = torch.full((units, draws), 1.0 / draws, device=self._device, dtype=images.dtype)
        memory = None if state is None else random.normal("state", *state.shape)
        return Batch(images, ids % len(self._records.classes), random, weights, memory)

    def _packed(
        self, event: SubsampledGaussian, chosen: np.ndarray, microbatch_size: int | None, *, padded: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Owners, their units as ``[owners, n]``, and each unit's weight in its owner's vector.

        Shards go as many at a time as have ``microbatch_size`` units, or if ``padded`` that many shards.
        """
        if event.shards is not None:
            if event.shards not in self._partitions:
                shard_of = self._units.shard_of(self._randomness, event.shards)
                self._partitions[event.shards] = Partition(shard_of, event.shards, self._units.widths())
            size = microbatch_size or len(chosen)
            yield from self._partitions[event.shards].packs(chosen, size, most=size if padded else None)
            return
        if microbatch_size is None:
            yield chosen, chosen[:, None], np.ones((len(chosen), 1))
            return
        for alike in self._units.by_width(chosen):
            for start in range(0, max(1, len(alike)), microbatch_size):
                units = alike[start : start + microbatch_size]
                yield units, units[:, None], np.ones((len(units), 1))
