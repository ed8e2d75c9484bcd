"""Poisson sampling of units and shards, and the batches that a loss is evaluated on. Empty batches occur and count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from sfumato.privacy.budget import Unit
from sfumato.privacy.events import SubsampledGaussian
from sfumato.privacy.gradients.batch import Batch, microbatch_size
from sfumato.privacy.gradients.engine import PROBED
from sfumato.privacy.gradients.performance import Performance, units_multiple
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords, PrivateState


def padded_width(count: int) -> int:
    """The number of rows that this many are padded to: at most a quarter more, and one of few shapes."""
    step = max(1, 1 << (max(1, count).bit_length() - 3)) if count > 4 else 1
    return max(1, -(-count // step) * step)


def check_units(records: PrivateRecords, unit: Unit, max_images: int) -> None:
    """Refuse units that the collection does not name, and persons without images."""
    if max_images < 1:
        raise ValueError(f"max_images_per_unit must be at least 1, not {max_images}")
    if unit == "person" and records._persons is None:
        raise ValueError("the budget protects persons, but the data names none: give a person column")


class Units:
    """The units of privacy: which ids exist, and which rows of the collection belong to each."""

    def __init__(self, records: PrivateRecords, unit: Unit, *, max_images: int) -> None:
        check_units(records, unit, max_images)
        self._max_images = max_images
        self._masked = np.array(sorted(records._masked), dtype=np.int64)
        self._persons = unit == "person"
        self._order: np.ndarray | None = None
        owners = records._persons if self._persons else records._ids
        if owners is None:
            self._space = len(records._labels)
            return
        owners = np.asarray(owners)
        self._space = int(owners.max()) + 1 if len(owners) else 0
        # The rows of the unit with the k-th smallest id are order[starts[k] : starts[k + 1]].
        self._order = np.argsort(owners, kind="stable")
        self._known, starts = np.unique(owners[self._order], return_index=True)
        self._starts = np.append(starts, len(owners))
        self._ids = None if records._ids is None else np.asarray(records._ids)

    @property
    def most_rows(self) -> int:
        """Images of one unit in a step, at most; a public number."""
        return self._max_images if self._persons else 1

    def sample(self, randomness: Randomness, rate: float, *label: str | int) -> np.ndarray:
        """The ids of the units in the batch of this label: each unit independently with probability ``rate``."""
        return self._existing(randomness.coins(self._space, rate, *label).numpy())

    def _existing(self, ids: np.ndarray) -> np.ndarray:
        if self._order is not None:
            ids = ids[np.isin(ids, self._known, assume_unique=True)]
        return ids[~np.isin(ids, self._masked)] if len(self._masked) else ids

    def shard_of(self, randomness: Randomness, shards: int) -> np.ndarray:
        """The shard of every id for the whole run, a keyed draw from the id; -1 where no unit has this id."""
        ids = torch.arange(self._space)
        drawn = randomness.draws(ids, torch.zeros_like(ids), "shards").integers("shard", shards, 1)[:, 0].numpy()
        found = np.full(self._space, -1, dtype=np.int64)
        existing = self._existing(ids.numpy())
        found[existing] = drawn[existing]
        return found

    def by_width(self, units: np.ndarray) -> list[np.ndarray]:
        """The units in groups whose rows are padded to the same width, so that a unit's shape is its own."""
        if self._order is None or not self._persons or not len(units):
            return [units]
        widths = self._widths(units)
        return [units[widths == width] for width in np.unique(widths)]

    def widths(self) -> np.ndarray:
        """The number of rows to which the unit of every id is padded; 1 where no unit has this id."""
        found = np.ones(self._space, dtype=np.int64)
        if self._order is not None and self._persons:
            found[self._known] = self._widths(self._known)
        return found

    def _widths(self, units: np.ndarray) -> np.ndarray:
        places = np.searchsorted(self._known, units)
        counts = np.minimum(self._starts[places + 1] - self._starts[places], self._max_images)
        return np.array([padded_width(int(count)) for count in counts], dtype=np.int64)

    def record_ids(self, rows: np.ndarray) -> np.ndarray:
        """The ids of the records in these rows, by which their draws are keyed."""
        return rows if self._order is None or self._ids is None else self._ids[rows]

    def rows(
        self, units: np.ndarray, randomness: Randomness, *label: str | int, widest: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """``[units, k]`` row numbers and weights; ``widest`` pads every person to ``max_images`` rows.

        A person's vector is the average over at most ``max_images`` images, chosen by keyed draws; persons with fewer
        are padded with rows of weight 0.

        Guarantee. The rows and weights of a unit are functions of its own images, the key and the label.
        """
        if self._order is None:
            return units[:, None], np.ones((len(units), 1))
        places = np.searchsorted(self._known, units)
        if not self._persons:
            return self._order[self._starts[places]][:, None], np.ones((len(units), 1))
        lists = [self._chosen(self._order[self._starts[k] : self._starts[k + 1]], randomness, *label) for k in places]
        longest = self._max_images if widest else max((len(rows) for rows in lists), default=1)
        width = min(self._max_images, padded_width(longest))
        table = np.zeros((len(units), width), dtype=np.int64)
        weights = np.zeros((len(units), width))
        for index, rows in enumerate(lists):
            # Padding repeats the person's own first row, so that it cannot carry another person's data.
            table[index] = rows[0]
            table[index, : len(rows)] = rows
            weights[index, : len(rows)] = 1.0 / len(rows)
        return table, weights

    def _chosen(self, rows: np.ndarray, randomness: Randomness, *label: str | int) -> np.ndarray:
        """At most ``max_images`` of a person's rows."""
        if len(rows) <= self._max_images:
            return rows
        ids = torch.from_numpy(self.record_ids(rows))
        ranks = randomness.draws(ids, torch.zeros_like(ids), "images", *label).uniform("rank", 1)
        return rows[np.argsort(ranks[:, 0].numpy(), kind="stable")[: self._max_images]]


class Partition:
    """The units of each shard, from each unit's shard number (-1: in none) and the rows that it is padded to.

    Guarantee. Rows, weights and shape of a shard are functions of its own units.
    """

    def __init__(self, shard_of: np.ndarray, shards: int, widths: np.ndarray) -> None:
        self._order = np.argsort(shard_of, kind="stable")
        self._starts = np.searchsorted(shard_of[self._order], np.arange(shards + 1))
        # Every unit of a shard gets as many rows as the shard's widest one.
        self._widest = np.ones(shards, dtype=np.int64)
        np.maximum.at(self._widest, shard_of[shard_of >= 0], widths[shard_of >= 0])

    def packs(
        self, shards: np.ndarray, rows: int, *, most: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Shard numbers, their units as ``[shards, n]`` and each unit's weight.

        They come about ``rows`` units at a time, or ``most`` shards at a time.

        Only shards that are padded to as many units, of as many rows each, go together: the shape in which a shard is
        computed is then a function of that shard alone. A shard without units has no vector; if no shard has any, one
        pack without rows is returned.
        """
        sizes = self._starts[shards + 1] - self._starts[shards]
        shards, sizes = shards[sizes > 0], sizes[sizes > 0]
        if not len(shards):
            yield shards, np.zeros((0, 1), dtype=np.int64), np.zeros((0, 1))
        widths = (padded_width(int(size)) for size in sizes)
        shapes = list(zip(widths, self._widest[shards].tolist(), strict=True))
        for shape in sorted(set(shapes), reverse=True):
            alike = shards[[one == shape for one in shapes]]
            at_once = most or max(1, rows // shape[0])
            for start in range(0, len(alike), at_once):
                yield self._pack(alike[start : start + at_once], shape[0])

    def _pack(self, shards: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own = (self._starts[shards + 1] - self._starts[shards])[:, None]
        place = np.arange(width)[None, :]
        # Padding repeats the shard's own first unit, so that it cannot carry another shard's data.
        units = self._order[self._starts[shards][:, None] + np.where(place < own, place, 0)]
        return shards, units, (place < own) / own


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
