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


class Units:
    """The units of privacy, and which rows of the collection belong to each."""

    def __init__(self, records: PrivateRecords, unit: Unit, *, max_images: int) -> None:
        if max_images < 1:
            raise ValueError(f"max_images_per_unit must be at least 1, not {max_images}")
        self._masked = records._masked
        self._max_images = max_images
        self._order: np.ndarray | None = None
        if unit == "image":
            self._count = len(records._labels)
            return
        if records._persons is None:
            raise ValueError("the budget protects persons, but the data names none: give a person column")
        persons = np.asarray(records._persons)
        self._count = int(persons.max()) + 1 if len(persons) else 0
        # The rows of person p are order[starts[p] : starts[p + 1]].
        self._order = np.argsort(persons, kind="stable")
        self._starts = np.searchsorted(persons[self._order], np.arange(self._count + 1))

    def sample(self, randomness: Randomness, rate: float, *label: str | int, device: str = "cpu") -> np.ndarray:
        """The units in the batch of this label. The ``device`` only does the work; the result does not depend on it."""
        chosen = randomness.coins(self._count, rate, *label, device=device).cpu().numpy()
        if self._masked:
            chosen = chosen[~np.isin(chosen, list(self._masked))]
        return chosen

    def shard_of(self, randomness: Randomness, shards: int) -> np.ndarray:
        """Each unit's shard for the whole run, a keyed draw from its own id; -1 for a masked unit."""
        ids = torch.arange(self._count)
        found = randomness.draws(ids, torch.zeros_like(ids), "shards").integers("shard", shards, 1)[:, 0].numpy()
        found[sorted(self._masked)] = -1
        return found

    def by_width(self, units: np.ndarray) -> list[np.ndarray]:
        """The units in groups whose rows are padded to the same width, so that a unit's shape is its own."""
        if self._order is None or not len(units):
            return [units]
        counts = np.minimum(self._starts[units + 1] - self._starts[units], self._max_images)
        widths = np.array([padded_width(int(count)) for count in counts])
        return [units[widths == width] for width in np.unique(widths)]

    def rows(self, units: np.ndarray, randomness: Randomness, *label: str | int) -> tuple[np.ndarray, np.ndarray]:
        """``[units, k]`` row numbers and weights: at most ``max_images`` of a person's images, chosen by keyed draws,
        averaged; persons with fewer are padded with weight 0."""
        if self._order is None:
            return units[:, None], np.ones((len(units), 1))
        lists = []
        for unit in units:
            rows = self._order[self._starts[unit] : self._starts[unit + 1]]
            if len(rows) > self._max_images:
                ids = torch.from_numpy(rows)
                ranks = randomness.draws(ids, torch.zeros_like(ids), "images", *label).uniform("rank", 1)
                rows = rows[np.argsort(ranks[:, 0].numpy(), kind="stable")[: self._max_images]]
            lists.append(rows)
        width = min(self._max_images, padded_width(max((len(rows) for rows in lists), default=0)))
        table = np.zeros((len(units), width), dtype=np.int64)
        weights = np.zeros((len(units), width))
        for index, rows in enumerate(lists):
            # Padding repeats the person's own first row, so that it cannot carry another person's data.
            table[index] = rows[0] if len(rows) else 0
            table[index, : len(rows)] = rows
            weights[index, : len(rows)] = 1.0 / max(1, len(rows))
        return table, weights


class Partition:
    """The units of each shard, from each unit's shard number (-1: in none)."""

    def __init__(self, shard_of: np.ndarray, shards: int) -> None:
        self._order = np.argsort(shard_of, kind="stable")
        self._starts = np.searchsorted(shard_of[self._order], np.arange(shards + 1))

    def packs(self, shards: np.ndarray, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Shard numbers, their units as ``[shards, n]`` and each unit's weight, about ``rows`` units at a time.

        Only shards that are padded to the same width go together: the shape in which a shard is computed is then a
        function of that shard alone. A shard without units has no vector; if no shard has any, one pack without rows
        is returned.
        """
        sizes = self._starts[shards + 1] - self._starts[shards]
        shards, sizes = shards[sizes > 0], sizes[sizes > 0]
        if not len(shards):
            yield shards, np.zeros((0, 1), dtype=np.int64), np.zeros((0, 1))
        widths = np.array([padded_width(int(size)) for size in sizes])
        for width in np.unique(widths)[::-1]:
            alike = shards[widths == width]
            for start in range(0, len(alike), max(1, rows // int(width))):
                yield self._pack(alike[start : start + max(1, rows // int(width))], int(width))

    def _pack(self, shards: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own = (self._starts[shards + 1] - self._starts[shards])[:, None]
        place = np.arange(width)[None, :]
        # Padding repeats the shard's own first unit, so that it cannot carry another shard's data.
        units = self._order[self._starts[shards][:, None] + np.where(place < own, place, 0)]
        return shards, units, (place < own) / own
