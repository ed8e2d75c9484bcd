"""Poisson sampling of units, and the division of units into shards. Empty batches occur and count."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from sfumato.privacy.budget import Unit
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords


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
        width = max((len(rows) for rows in lists), default=0) or 1
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

        The largest shards come first, so that shards of similar size are padded together. A shard without units has
        no vector; if no shard has any, one pack without rows is returned.
        """
        sizes = self._starts[shards + 1] - self._starts[shards]
        largest_first = np.argsort(-sizes, kind="stable")
        shards, sizes = shards[largest_first], sizes[largest_first]
        present = int((sizes > 0).sum())
        start = 0
        while start == 0 or start < present:
            width = int(sizes[start]) if start < present else 1
            stop = min(present, start + max(1, rows // width))
            own = sizes[start:stop, None]
            place = np.arange(width)[None, :]
            # Padding repeats the shard's own first unit, so that it cannot carry another shard's data.
            units = self._order[self._starts[shards[start:stop]][:, None] + np.where(place < own, place, 0)]
            yield shards[start:stop], units, (place < own) / np.maximum(own, 1)
            start = max(stop, 1)
