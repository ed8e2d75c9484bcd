"""The networks that steps are timed on. Each returns the loss of every row, so that any wrapper can take it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Coupling(nn.Module):
    """An affine coupling on a code of ``width``, every other place kept."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 * width)
        )
        self.register_buffer("mask", (torch.arange(width) % 2).float())
        self.register_buffer("order", torch.randperm(width, generator=torch.Generator().manual_seed(hidden)))

    def forward(self, code: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.network(code * self.mask).chunk(2, dim=1)
        scale = torch.tanh(scale) * (1 - self.mask)
        code = code * torch.exp(scale) + shift * (1 - self.mask)
        return code[:, self.order], scale.sum(1)


class LatentFlow(nn.Module):
    """DP-LFlow for 28×28 grey images: an autoencoder and nine couplings on its code. Returns the loss of each row."""

    shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, 1, bias=False), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 49, 20),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(20, 64 * 49), nn.ReLU(), nn.Unflatten(1, (64, 7, 7)),
            nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 3, 2, 1, 1),
        )  # fmt: skip
        self.flow = nn.ModuleList(Coupling(20, 200) for _ in range(9))

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        code = self.encoder(images)
        bce = functional.binary_cross_entropy_with_logits(self.decoder(code), images, reduction="none")
        volume = torch.zeros_like(code[:, 0])
        for coupling in self.flow:
            code, change = coupling(code)
            volume = volume + change
        return 1e5 * bce.flatten(1).mean(1) + 0.5 * code.square().sum(1) - volume


class Discriminator(nn.Module):
    """A 64×64 colour discriminator of 2.8 M parameters, hinge loss."""

    shape = (3, 64, 64)

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 64), (64, 128), (128, 256), (256, 512)):
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(512, 1, 4))

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        return functional.relu(1.0 - self.layers(images).flatten())


class Block(nn.Module):
    """Two convolutions with group normalisation, told the noise level in between."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.normal, self.again = nn.GroupNorm(8, after), nn.GroupNorm(8, after)
        self.level = nn.Linear(32, after)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        x = functional.silu(self.normal(self.first(x))) + self.level(level)[:, :, None, None]
        return functional.silu(self.again(self.second(x)))


class UNet(nn.Module):
    """A 28×28 denoiser of 0.9 M parameters, squared error at a random noise level."""

    shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(1, 32), Block(64, 64), Block(128, 128), Block(128, 64), Block(64, 32)])
        self.down = nn.ModuleList([nn.Conv2d(32, 64, 3, 2, 1), nn.Conv2d(64, 128, 3, 2, 1)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ConvTranspose2d(64, 32, 4, 2, 1)])
        self.last = nn.Conv2d(32, 1, 3, 1, 1)

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        noise, place = noise[:, :-1].view_as(images), noise[:, -1:]
        sigma = torch.exp(place)
        level = torch.sin(place * torch.arange(1, 33, device=images.device, dtype=images.dtype))
        high = self.blocks[0](images + sigma[:, :, None, None] * noise, level)
        middle = self.blocks[1](self.down[0](high), level)
        low = self.blocks[2](self.down[1](middle), level)
        middle = self.blocks[3](torch.cat([middle, self.up[0](low)], 1), level)
        high = self.blocks[4](torch.cat([high, self.up[1](middle)], 1), level)
        return (self.last(high) - noise).square().flatten(1).mean(1)


MODELS: dict[str, Callable[[], nn.Module]] = {"flow": LatentFlow, "discriminator": Discriminator, "unet": UNet}
