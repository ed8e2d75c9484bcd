"""Poisson sampling of units, and the division of units into shards. Empty batches occur and count."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from sfumato.privacy.budget import Unit
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords


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
    """The units of each shard, from each unit's shard number (-1: in none) and the rows that it is padded to."""

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
