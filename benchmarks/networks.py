"""The networks that steps are timed on. Each returns the loss of every row, so that any wrapper can take it."""

from __future__ import annotations

import itertools
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

    def __init__(self, *, side: int = 28, width: int = 32, hidden: int = 200, couplings: int = 9) -> None:
        super().__init__()
        self.shape = (1, side, side)
        low = side // 4
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), nn.ReLU(),
            nn.Flatten(), nn.Linear(2 * width * low * low, 20),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(20, 2 * width * low * low), nn.ReLU(), nn.Unflatten(1, (2 * width, low, low)),
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(width, 1, 3, 2, 1, 1),
        )  # fmt: skip
        self.flow = nn.ModuleList(Coupling(20, hidden) for _ in range(couplings))

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

    def __init__(self, *, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.shape = (3, 4 << len(widths), 4 << len(widths))
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise((3, *widths)):
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4))

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
    """A 28×28 denoiser of 0.8 M parameters, squared error at a random noise level."""

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


SMALL_MODELS: dict[str, Callable[[], nn.Module]] = {
    "flow": lambda: LatentFlow(side=12, width=8, hidden=16, couplings=2),
    "discriminator": lambda: Discriminator(widths=(8, 16)),
}
MODELS: dict[str, Callable[[], nn.Module]] = {"flow": LatentFlow, "discriminator": Discriminator, "unet": UNet}
