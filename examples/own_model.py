"""Train your own model on your own DataLoader, with a guarantee: a U-Net, a flow and a loss over the batch.

    python examples/own_model.py

Three small methods, each the size of a training loop. Model, optimiser and loss are yours; batch, clip, noise and ledger
are not, because ε depends on them. A DataLoader is read once, into a ``PrivateImages``: from then on records are sampled
independently in each step, which is what the accounting assumes and what a shuffling DataLoader does not do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sfumato as sf
from sfumato.methods.base import Method
from sfumato.privacy import Block, Curator, SubsampledGaussian
from sfumato.privacy.gradients.terms import Grouped
from sfumato.privacy.randomness import Draws

Shape = tuple[int, int, int]


def private_images(loader: DataLoader[Any], *, classes: int) -> sf.PrivateImages:
    """Everything that a DataLoader yields, behind the Curator. Pixels in 0..1 or bytes."""
    batches = [(images.numpy(), labels.numpy()) for images, labels in loader]
    pixels, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return sf.PrivateImages.from_arrays(pixels, labels, classes=classes)


# 1. A U-Net that removes noise


class SmallUNet(nn.Module):
    """Two scales with a skip connection. GroupNorm, because batch normalisation mixes records and is refused."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.label = nn.Embedding(classes, width)
        self.enter = nn.Conv2d(channels + 1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.leave = nn.Conv2d(2 * width, channels, 3, padding=1)

    def forward(self, images: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        level = sigma[:, None, None, None].expand(-1, 1, *images.shape[2:])
        first = torch.relu(self.enter(torch.cat([images, level], 1)) + self.label(labels)[:, :, None, None])
        second = torch.relu(self.norm(self.down(first)))
        return self.leave(torch.cat([first, torch.relu(self.up(second))], 1))


@dataclass(frozen=True)
class Denoiser(Method):
    """A denoising U-Net by DP-SGD, four noise levels of each record before the clip."""

    name: ClassVar[str] = "own-unet"
    paper: ClassVar[str] = "none"
    sampling_rate: float = 0.2
    steps: int = 20
    draws: int = 4

    @classmethod
    def small(cls, variant: str = "certified") -> Denoiser:
        return cls(variant=variant, sampling_rate=0.5, steps=2, draws=2)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return (SubsampledGaussian("train", (Block("gradient"),), sampling_rate=self.sampling_rate, steps=self.steps),)

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return SmallUNet(shape[0], classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for step in curator.steps("train", keep={"model": model, "optimizer": optimizer}):
            gradient = step.noisy_gradient("gradient", model, self.loss, clip_norm=1.0, draws=self.draws)
            (gradient / 100).apply(optimizer)  # a public divisor, never the size of the batch
        return model, None

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        sigma = random.uniform("level", 1).flatten()
        noise = random.normal("noise", *images.shape[1:])
        found = model(images + sigma[:, None, None, None] * noise, sigma, labels)
        return (found - images).square().flatten(1).mean(1)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        images = torch.randn(len(labels), 1, 28, 28, device=labels.device)
        for level in (1.0, 0.6, 0.3, 0.1):
            sigma = torch.full((len(labels),), level, device=labels.device)
            images = model(images, sigma, labels) + 0.5 * level * torch.randn_like(images)
        return images.clamp(0, 1)


# 2. A flow on a random projection of the pixels


class SmallFlow(nn.Module):
    """Two affine couplings between the halves of a vector, behind a fixed projection."""

    def __init__(self, shape: Shape, dimensions: int = 16) -> None:
        super().__init__()
        pixels = shape[0] * shape[1] * shape[2]
        self.shape, self.half = shape, dimensions // 2
        self.register_buffer("projection", torch.linalg.qr(torch.randn(pixels, dimensions))[0])
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(self.half, 32), nn.Tanh(), nn.Linear(32, dimensions)) for _ in range(2)
        )

    def log_density(self, images: Tensor) -> Tensor:
        codes = images.flatten(1) @ self.projection
        left, right = codes[:, : self.half], codes[:, self.half :]
        total = torch.zeros(len(images), device=images.device)
        for net in self.nets:
            scale, shift = net(left).chunk(2, 1)
            right = right * torch.tanh(scale).exp() + shift
            total = total + torch.tanh(scale).sum(1)
            left, right = right, left
        return total - 0.5 * torch.cat([left, right], 1).square().sum(1)

    def inverse(self, codes: Tensor) -> Tensor:
        left, right = codes[:, : self.half], codes[:, self.half :]
        for net in reversed(list(self.nets)):
            left, right = right, left
            scale, shift = net(left).chunk(2, 1)
            right = (right - shift) * (-torch.tanh(scale)).exp()
        return (torch.cat([left, right], 1) @ self.projection.T).reshape(-1, *self.shape)


@dataclass(frozen=True)
class Flow(Denoiser):
    """Maximum likelihood of a flow by DP-SGD."""

    name: ClassVar[str] = "own-flow"
    draws: int = 1

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return SmallFlow(shape)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return -model.log_density(images)  # type: ignore[operator]

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        codes = torch.randn(len(labels), 16, device=labels.device)
        return model.inverse(codes).clamp(0, 1)  # type: ignore[operator]


# 3. A loss over the batch: DP-SGD cannot train it as it is, groups can


class Codes(nn.Module):
    """A linear autoencoder."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        pixels = shape[0] * shape[1] * shape[2]
        self.encode, self.decode = nn.Linear(pixels, 8), nn.Linear(8, pixels)


@dataclass(frozen=True)
class Whitened(Denoiser):
    """An autoencoder whose codes are to be uncorrelated, which is a property of many records together."""

    name: ClassVar[str] = "own-batch-loss"
    batch: float = 60.0  # public

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return Codes(shape)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        terms = Grouped(self.loss, self.group_loss, groups=4, clip_norms=(1.0, 0.02), batch=self.batch)
        for step in curator.steps("train", keep={"model": model, "optimizer": optimizer}):
            step.noisy_terms("gradient", model, terms).apply(optimizer)
        return model, None

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        flat = images.flatten(1)
        return (model.decode(model.encode(flat)) - flat).square().sum(1)  # type: ignore[operator]

    def group_loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        codes = model.encode(images.flatten(1))  # type: ignore[operator]
        moments = codes.T @ codes / 10.0
        return (moments - torch.eye(8, device=codes.device)).square().sum()

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        codes = torch.randn(len(labels), 8, device=labels.device)
        return model.decode(codes).reshape(-1, *model.shape).clamp(0, 1)  # type: ignore[operator]


def main() -> None:
    """Train the three on drawn digits that come from a DataLoader."""
    from sfumato.data.digits import draw_digits

    digits = draw_digits(300, seed=1)
    pixels = torch.as_tensor(np.asarray(digits.pixels)).float() / 255
    loader = DataLoader(TensorDataset(pixels, torch.as_tensor(np.asarray(digits.labels))), batch_size=64)
    private = private_images(loader, classes=10)
    for method in (Denoiser(), Flow(), Whitened()):
        release = method.fit(private, sf.Budget(epsilon=10, delta=1e-5), device="cpu")
        print(f"{method.name}: {release.card.guarantee}, ε = {release.card.epsilon}, {release.sample(10).images.shape}")


if __name__ == "__main__":
    main()
