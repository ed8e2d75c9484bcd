"""Class features: a feature network that is trained to classify the real data.

ImageNet features describe 28×28 digits poorly; this network separates the classes. It is a new network for every
dataset, so its values compare within one evaluation and with no paper, and results say so.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.features import FeatureNetwork

DIMENSION = 64
EPOCHS = 5
BATCH = 128
TRAINING_IMAGES = 10_000


class ClassFeatures(nn.Module):
    """Three strided convolutions and a linear layer to the features, and a linear classifier on top of them."""

    num_features = DIMENSION

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
            nn.Linear(64 * 16, DIMENSION),
        )
        self.head = nn.Linear(DIMENSION, classes)

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
    for epoch in range(EPOCHS):
        for part in torch.randperm(len(images), generator=order).to(device).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(module.head(F.relu(module(images[part]))), targets[part]).backward()
            optimizer.step()
        progress("class-feature network", epoch + 1, EPOCHS)
    module.eval().requires_grad_(False)
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return FeatureNetwork(
        name="class-feature CNN",
        hash=f"sha256:{digest.hexdigest()}",
        dimension=DIMENSION,
        resize="none",
        trained_on=f"{len(rows)} real training images of this run; compares within this run only",
        module=module,
    )
