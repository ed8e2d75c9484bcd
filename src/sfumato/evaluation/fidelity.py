"""Distances between two sets of features (FID, KID, precision, recall, density, coverage), with a cache."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from sfumato.evaluation import fidelity
from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.features import FeatureNetwork, extract, features_of, usual_batch
from sfumato.files import cache_folder, private_folder, write_file
from sfumato.privacy.distributed import World

ROWS_KEPT = 10_000
"""KID, precision, recall, density and coverage use at most so many rows, because their cost grows quadratically."""


@dataclass(frozen=True)
class FeatureStatistics:
    """A feature set as the metrics use it: count, mean and covariance of all rows, and the first rows themselves."""

    count: int
    mean: Tensor
    covariance: Tensor
    rows: Tensor


def statistics(features: Tensor) -> FeatureStatistics:
    """Mean and covariance in float64, the covariance divided by N − 1."""
    if len(features) < 2:
        raise ValueError("a covariance needs at least two images")
    mean = features.mean(dim=0, dtype=torch.float64)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=features.device)
    for part in features.split(8 * _CHUNK):
        centred = part.double() - mean
        covariance += centred.T @ centred
    return FeatureStatistics(len(features), mean, covariance / (len(features) - 1), features[:ROWS_KEPT])


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), FID when the features are Inception's (Heusel et al., 2017).

    tr (Σ₁Σ₂)^½ = tr (Σ₁^½ Σ₂ Σ₁^½)^½ is a sum over the eigenvalues of a symmetric matrix, real by construction. With
    fewer rows than dimensions the same trace is the sum of the singular values of the centred rows' products, a smaller
    matrix.
    """
    offset = (first.mean - second.mean).square().sum()
    traces = first.covariance.trace() + second.covariance.trace()
    dimension = len(first.mean)
    if first.count == len(first.rows) < dimension and second.count == len(second.rows) < dimension:
        left = (first.rows.double() - first.mean) / (first.count - 1) ** 0.5
        right = (second.rows.double() - second.mean) / (second.count - 1) ** 0.5
        overlap = torch.linalg.svdvals(left @ right.T).sum()
    else:
        values, vectors = torch.linalg.eigh(first.covariance)
        root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        overlap = torch.linalg.eigvalsh(root @ second.covariance @ root).clamp(min=0).sqrt().sum()
    return float(offset + traces - 2 * overlap)


def kernel_distance(
    reference: FeatureStatistics,
    candidate: FeatureStatistics,
    *,
    subsets: int = 100,
    subset_size: int | None = None,
    seed: int = 0,
) -> tuple[float, float, int]:
    """KID (Bińkowski et al., 2018) by torchmetrics: mean and standard deviation over random subsets, and their size.

    The size is 1,000, or half the smaller set if that is less: subsets as large as the set would all be the set, and
    the deviation zero.
    """
    try:
        from torchmetrics.image.kid import KernelInceptionDistance
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("KID needs torchmetrics: pip install 'sfumato[eval]'") from error
    size = subset_size or min(1000, len(reference.rows) // 2, len(candidate.rows) // 2)
    if size < 2:
        raise ValueError("KID needs at least four images on each side")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(seed)
        metric = KernelInceptionDistance(feature=nn.Identity(), subsets=subsets, subset_size=size)
        metric.update(reference.rows, real=True)
        metric.update(candidate.rows, real=False)
        mean, deviation = metric.compute()
    return float(mean), float(deviation), size


@dataclass(frozen=True)
class Manifold:
    """Precision and recall (Kynkäänniemi et al., 2019), density and coverage (Naeem et al., 2020)."""

    precision: float
    recall: float
    density: float
    coverage: float


def manifold(reference: Tensor, candidate: Tensor, *, neighbours: int = 5) -> Manifold:
    """Precision, recall, density and coverage by balls that reach to each row's k-th nearest neighbour in its set.

    Always finite: identical rows have balls of radius zero, which contain only themselves.
    """
    if min(len(reference), len(candidate)) <= neighbours:
        raise ValueError(f"precision and recall need more than {neighbours} images on each side")
    reference_radius, candidate_radius = _radii(reference, neighbours), _radii(candidate, neighbours)
    inside = balls = 0
    covered = torch.zeros(len(reference), dtype=torch.bool, device=reference.device)
    recalled = torch.zeros_like(covered)
    for part, radius in zip(candidate.split(_CHUNK), candidate_radius.split(_CHUNK), strict=True):
        distances = _distances(part, reference)
        within = distances <= reference_radius
        inside += int(within.any(dim=1).sum())
        balls += int(within.sum())
        covered |= within.any(dim=0)
        recalled |= (distances <= radius[:, None]).any(dim=0)
    return Manifold(
        precision=inside / len(candidate),
        recall=int(recalled.sum()) / len(reference),
        density=balls / (neighbours * len(candidate)),
        coverage=int(covered.sum()) / len(reference),
    )


_CHUNK = 1024


def _distances(first: Tensor, second: Tensor) -> Tensor:
    # float64: the product form of a distance loses half the digits, and near rows are what matters here.
    return torch.cdist(first.double(), second.double())


def _radii(rows: Tensor, neighbours: int) -> Tensor:
    # The nearest row of all is the row itself, hence one more.
    return torch.cat([_distances(part, rows).kthvalue(neighbours + 1, dim=1).values for part in rows.split(_CHUNK)])


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


def default_folder() -> Path:
    """The user's cache folder, outside every run's release."""
    return cache_folder() / "evaluation"


def content_key(pixels: np.ndarray, network: FeatureNetwork) -> str:
    """A hash of the pixels, their shape, and the network that computes their features."""
    digest = hashlib.sha256()
    digest.update(repr(("statistics 1", pixels.shape, str(pixels.dtype), network.hash, network.resize)).encode())
    for start in range(0, len(pixels), 4096):
        digest.update(np.ascontiguousarray(pixels[start : start + 4096]).data)
    return digest.hexdigest()


def cached_statistics(
    network: FeatureNetwork,
    pixels: np.ndarray,
    *,
    folder: Path | None,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> FeatureStatistics:
    """Statistics of these images, from the cache in ``folder`` if they are there; ``None`` uses no cache."""
    device = torch.device(device)
    if folder is None:
        return feature_statistics(network, pixels, device=device, progress=progress)
    path = folder / f"{content_key(pixels, network)}.safetensors"
    if path.exists():
        tensors = {name: tensor.to(device) for name, tensor in load_file(path).items()}
        if "mean" not in tensors:
            return statistics(tensors["rows"])
        return FeatureStatistics(int(tensors["count"]), tensors["mean"], tensors["covariance"], tensors["rows"])
    found = feature_statistics(network, pixels, device=device, progress=progress)
    tensors = {"rows": found.rows}
    if found.count > len(found.rows):
        # Otherwise mean and covariance follow from the rows.
        tensors |= {"mean": found.mean, "covariance": found.covariance, "count": torch.tensor(found.count)}
    private_folder(folder)
    write_file(path, save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}), private=True)
    return found
