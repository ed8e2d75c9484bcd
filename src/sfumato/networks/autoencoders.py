"""Convolutional autoencoders whose depth follows from the image size, without layers that mix the rows of a batch."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape

_SMALLEST, _LARGEST = 8, 256
_SEED = 7  # pixels: the side at which halving stops
# Channels of the first convolution by the number of halvings: 28², 32², 64², 128² and 256² pixels.
_WIDTHS = {1: 32, 2: 32, 3: 64, 4: 32, 5: 32, 6: 16}


def halvings(shape: Shape) -> list[tuple[int, int]]:
    """The image size after each strided convolution, from the whole image down to at most 7 pixels a side."""
    _, height, width = shape
    if min(height, width) < _SMALLEST or max(height, width) > _LARGEST:
        raise ValueError(
            f"an image must have between {_SMALLEST} and {_LARGEST} pixels a side, not {height}×{width}; use --size"
        )
    sizes = [(height, width)]
    while max(sizes[-1]) > _SEED:
        sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
    return sizes


class Autoencoder(nn.Module):
    """Strided 3×3 convolutions down to a latent code, and transposed ones back to the logits of the pixels.

    28×28 has two convolutions, 32×32 three, 256×256 six; each has twice the channels of the one before. ``width`` is
    the number of channels of the first; 0 takes it from the image size.

    >>> [layer.out_channels for layer in Autoencoder((3, 32, 32), latent_dim=32).down]
    [64, 128, 256]
    """

    def __init__(self, shape: Shape, *, latent_dim: int, width: int = 0) -> None:
        super().__init__()
        if latent_dim < 1 or width < 0:
            raise ValueError(f"latent_dim must be at least 1 and width at least 0, not {latent_dim} and {width}")
        sizes = halvings(shape)
        width = width or _WIDTHS[len(sizes) - 1]
        channels = [shape[0], *(width << level for level in range(len(sizes) - 1))]
        self.seed = (channels[-1], *sizes[-1])
        flat = self.seed[0] * self.seed[1] * self.seed[2]
        pairs = list(pairwise(channels))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False) for a, b in pairs)
        self.encode_last = nn.Linear(flat, latent_dim)
        self.decode_first = nn.Linear(latent_dim, flat)
        self.up = nn.ModuleList(
            # An odd size was rounded up by the encoder and needs one pixel less here.
            nn.ConvTranspose2d(b, a, 3, stride=2, padding=1, output_padding=((h + 1) % 2, (w + 1) % 2))
            for (a, b), (h, w) in reversed(list(zip(pairs, sizes, strict=False)))
        )

    def features(self, images: Tensor) -> Tensor:
        """Features of images ``[B, C, H, W]`` in 0..1, from which the code is computed."""
        hidden = images
        for layer in self.down:
            hidden = F.relu(layer(hidden))
        return hidden.flatten(1)

    def encode(self, images: Tensor) -> Tensor:
        """Latent codes ``[B, latent_dim]`` of images in 0..1."""
        code: Tensor = self.encode_last(self.features(images))
        return code

    def decode(self, code: Tensor) -> Tensor:
        """Logits of the pixels of codes ``[B, latent_dim]``; a sigmoid makes images of them."""
        hidden = F.relu(self.decode_first(code)).unflatten(1, self.seed)
        for place, layer in enumerate(self.up):
            hidden = layer(F.relu(hidden) if place else hidden)
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))
