"""Mean and covariance of the features of any number of images, in memory that does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from sfumato.evaluation import fidelity
from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.features import FeatureNetwork, extract, features_of, usual_batch
from sfumato.privacy.distributed import World

_PARTS = 64
"""Parts of a collection. They are added in their order, whoever has computed them, so that the sums have the same bits
with any number of processes; more processes than parts bring nothing."""
_BATCHES = 16  # of which the features are held at a time


@dataclass
class RunningStatistics:
    """Number, mean and scatter matrix (the sum of outer products about the mean) of the rows so far, in float64."""

    count: int
    mean: Tensor
    scatter: Tensor

    @classmethod
    def empty(cls, dimension: int, device: torch.device) -> Self:
        """The statistics of no rows."""
        zeros = torch.zeros(dimension, dimension, dtype=torch.float64, device=device)
        return cls(0, zeros[0].clone(), zeros)

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """The statistics of these rows alone."""
        mean = rows.mean(dim=0, dtype=torch.float64)
        centred = rows.double() - mean
        return cls(len(rows), mean, centred.T @ centred)

    def add(self, other: RunningStatistics) -> None:
        """Join the statistics of other rows (Chan, Golub and LeVeque, 1983)."""
        if not other.count:
            return
        count = self.count + other.count
        offset = other.mean - self.mean
        self.mean += offset * (other.count / count)
        self.scatter += other.scatter
        self.scatter.addr_(offset, offset, alpha=self.count * other.count / count)
        self.count = count

    def sent(self, world: World, sender: int, count: int) -> RunningStatistics:
        """The statistics that the process ``sender`` has, of ``count`` rows, in every process."""
        own = torch.cat([self.mean[:, None], self.scatter], dim=1)
        # The bits of one process, and zeros of the others.
        bits = own.view(torch.int64) if world.rank == sender else torch.zeros_like(own, dtype=torch.int64)
        both = world.all_reduce(bits).view(torch.float64)
        return RunningStatistics(count, both[:, 0], both[:, 1:])


def feature_statistics(
    network: FeatureNetwork,
    pixels: np.ndarray,
    *,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> fidelity.FeatureStatistics:
    """Statistics of the features of these images. Where several processes evaluate together, each takes some parts."""
    device, count, kept = torch.device(device), len(pixels), fidelity.ROWS_KEPT
    if count <= kept:
        return fidelity.statistics(extract(network, pixels, device=device, progress=progress))
    world, batch = World.current(), usual_batch(device)
    rows = torch.zeros(kept, network.dimension, device=device)
    total = RunningStatistics.empty(network.dimension, device)
    size = -(-count // (_PARTS * batch)) * batch
    parts = [range(start, min(start + size, count)) for start in range(0, count, size)]
    done = 0
    for first in range(0, len(parts), world.size):
        own = RunningStatistics.empty(network.dimension, device)
        for starts in _chunks(parts, first + world.rank, batch):
            features = torch.cat([features_of(network, pixels[at : at + batch], device) for at in starts])
            own.add(RunningStatistics.of(features))
            rows[starts[0] : starts[0] + len(features)] = features[: max(0, kept - starts[0])]
            done += len(features)
            progress(network.task, min(done * world.size, count), count)
        for sender, part in enumerate(parts[first : first + world.size]):
            total.add(own.sent(world, sender, len(part)))
    # Every row has the bits of one process, and zeros of the others.
    rows = world.all_reduce(rows.view(torch.int32)).view(torch.float32)
    return fidelity.FeatureStatistics(count, total.mean, total.scatter / (count - 1), rows)


def _chunks(parts: list[range], number: int, batch: int) -> list[range]:
    """Where the batches of a part begin, a few at a time; none behind the last part."""
    if number >= len(parts):
        return []
    starts = range(parts[number].start, parts[number].stop, batch)
    return [starts[place : place + _BATCHES] for place in range(0, len(starts), _BATCHES)]
