"""Generators from a latent code and a label to an image, and their critics: a small pair, and the DCGAN of DPAF."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape, valid_pixels


class ConvGenerator(nn.Module):
    """Latent code and one-hot label, two linear layers, two upsamplings with convolutions, pixels in 0..1.

    The code is drawn inside, with torch's global generator.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, latent_dim: int = 5, width: int = 16) -> None:
        super().__init__()
        channels, height, width_pixels = shape
        if height % 4 or width_pixels % 4:
            raise ValueError(f"the image size must be a multiple of 4, not {height}×{width_pixels}; use --size")
        self.classes, self.latent_dim = classes, latent_dim
        self.seed = (2 * width, height // 4, width_pixels // 4)
        flat = self.seed[0] * self.seed[1] * self.seed[2]
        self.linear = nn.Sequential(
            nn.Linear(latent_dim + classes, 200), nn.LayerNorm(200), nn.ReLU(), nn.Linear(200, flat), nn.ReLU()
        )
        self.first = nn.Conv2d(2 * width, width, 5, padding=2)
        self.second = nn.Conv2d(width, channels, 5, padding=2)

    def forward(self, labels: Tensor) -> Tensor:
        weight = self.second.weight
        code = torch.randn(len(labels), self.latent_dim, device=weight.device, dtype=weight.dtype)
        one_hot = F.one_hot(labels, self.classes).to(weight)
        hidden = self.linear(torch.cat([code, one_hot], dim=1)).view(-1, *self.seed)
        hidden = torch.relu(self.first(F.interpolate(hidden, scale_factor=2.0, mode="bilinear")))
        return torch.sigmoid(self.second(F.interpolate(hidden, scale_factor=2.0, mode="bilinear")))


class Critic(nn.Module):
    """Two convolutions of stride 2, and a linear layer with one output for each class beside one for all.

    There is no normalisation, because the gradient penalty is a function of each image by itself.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], width, 5, stride=2, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 5, stride=2, padding=2)
        size = [-(-pixels // 4) for pixels in shape[1:]]
        self.last = nn.Linear(2 * width * size[0] * size[1], 1 + classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        maps = F.leaky_relu(self.first(2.0 * images - 1.0), 0.2)
        values = self.last(F.leaky_relu(self.second(maps), 0.2).flatten(1))
        return values[:, 0] + torch.gather(values, 1, 1 + labels[:, None])[:, 0]


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky relu": lambda values: F.leaky_relu(values, 0.2),
    "tanh": torch.tanh,
}
"""The tempered sigmoid of the paper's ablation is tanh."""


def simplified_instance_norm(maps: Tensor, *, eps: float = 0.01) -> Tensor:
    """Each p×p map less its mean, divided by its standard deviation: a vector of norm at most p.

    ``eps`` under the root makes a constant map zero instead of NaN, and keeps the gradient at nearly constant maps
    small: the images of an untrained generator are grey.
    """
    centred = maps - maps.mean((2, 3), keepdim=True)
    return centred / torch.sqrt(centred.square().mean((2, 3), keepdim=True) + eps)


def split_of(text: str) -> tuple[int, int, int]:
    """``C2-C2-C1`` → (2, 2, 1); ``x`` is a part without layers.

    >>> split_of("C3-C1-x")
    (3, 1, 0)
    """
    parts = text.replace("×", "x").split("-")
    if len(parts) != 3 or not all(re.fullmatch(r"C[1-9]|x", part) for part in parts):
        raise ValueError(f"a layer split is written like C2-C2-C1 or C3-C1-x, not {text!r}")
    first, second, third = (0 if part == "x" else int(part[1:]) for part in parts)
    if first + second == 0:
        raise ValueError(f"the split {text!r} has no layer in front of the sum; there would be nothing to aggregate")
    return first, second, third


def _centred(images: Tensor) -> Tensor:
    """Valid pixels in −1..1."""
    return 2.0 * valid_pixels(images) - 1.0


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 2), -(-size[1] // 2)


class Layer(nn.Module):
    """A convolution of stride 2; with ``classes`` > 0 a plane looked up by label is one more input channel."""

    def __init__(self, inputs: int, outputs: int, size: tuple[int, int], classes: int, activation: str) -> None:
        super().__init__()
        self.size, self.activation = size, activation
        self.plane = nn.Embedding(classes, size[0] * size[1]) if classes else None
        self.convolution = nn.Conv2d(inputs + bool(classes), outputs, 5, stride=2, padding=2)
        nn.init.kaiming_normal_(self.convolution.weight, 0.2)
        self.convolution.bias = nn.Parameter(0.5 * torch.randn(outputs))

    def forward(self, maps: Tensor, labels: Tensor) -> Tensor:
        if self.plane is not None:
            maps = torch.cat([maps, self.plane(labels).view(-1, 1, *self.size)], dim=1)
        return ACTIVATIONS[self.activation](self.convolution(maps))


class Front(nn.Module):
    """The layers in front of the sum: ``first`` (conv1) and ``second`` (conv2*), and the feature vector of each image.

    The feature vector of a row has norm at most 1. Its parts are

    - the normalised feature maps of the last ``feature_layers`` layers; the paper has 1;
    - with ``thumbnail_size`` > 0 the image at that many pixels a side, because normalised maps lose the brightness;
    - with ``second_moment_size`` > 0 the products of all pairs of pixels of a still smaller
      thumbnail, so that the sum holds second moments as well as means;
    - a constant, by which the sum counts its rows.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        layers: tuple[int, int],
        width: int,
        feature_maps: int,
        feature_layers: int = 1,
        thumbnail_size: int = 0,
        second_moment_size: int = 0,
        second_moment_share: float = 0.5,
        label_plane: bool = True,
        activation: str = "leaky relu",
        count_share: float = 0.1,
    ) -> None:
        super().__init__()
        self.shape, self.feature_layers = shape, feature_layers
        self.thumbnail_size, self.second_moment_size = thumbnail_size, second_moment_size
        total, size, inputs = sum(layers), (shape[1], shape[2]), shape[0]
        if not 1 <= feature_layers <= total:
            raise ValueError(
                f"feature_layers must be 1 to {total}, the layers in front of the sum, not {feature_layers}"
            )
        built, self.sizes = [], []
        for place in range(total):
            outputs = feature_maps if place == total - 1 else width * 2**place
            built.append(Layer(inputs, outputs, size, classes if label_plane and place == 1 else 0, activation))
            inputs, size = outputs, _halved(size)
            self.sizes.append((outputs, *size))
        if min(size) < 2:
            raise ValueError(
                f"{total} layers in front of the sum leave maps of {size[0]}×{size[1]}, which the normalisation makes "
                f"zero; images of {shape[1]}×{shape[2]} allow fewer"
            )
        self.first, self.second = nn.ModuleList(built[: layers[0]]), nn.ModuleList(built[layers[0] :])
        self.length = sum(math.prod(size) for size in self.sizes[-feature_layers:]) + shape[0] * thumbnail_size**2 + 1
        # Both halves of the symmetric matrix: their average has the noise that one half alone would have had.
        self.length += (shape[0] * second_moment_size**2) ** 2
        self.count_value = math.sqrt(count_share)
        paired = second_moment_share if second_moment_size else 0.0
        self.second_moment_scale = math.sqrt(paired * (1.0 - count_share))
        self.feature_scale = math.sqrt((1.0 - paired) * (1.0 - count_share) / (1 + bool(thumbnail_size)))

    def layers(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        maps = _centred(images)
        found = []
        for layer in (*self.first, *self.second):
            maps = layer(maps, labels)
            found.append(simplified_instance_norm(maps))
        return found

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Feature vectors ``[B, length]`` of norm at most 1; the last layer's maps come first."""
        found = self.layers(images, labels)
        scale = self.feature_scale / math.sqrt(self.feature_layers)
        parts = [
            scale * maps.flatten(1) / math.sqrt(maps.shape[1:].numel())
            for maps in reversed(found[-self.feature_layers :])
        ]
        if self.thumbnail_size:
            values = F.adaptive_avg_pool2d(_centred(images), self.thumbnail_size).flatten(1)
            parts.append(self.feature_scale * values / math.sqrt(values.shape[1]))
        if self.second_moment_size:
            values = F.adaptive_avg_pool2d(_centred(images), self.second_moment_size).flatten(1)
            # Divided by more than the norm, which is 0 at a grey image, where the gradient would not exist.
            values = values / torch.sqrt(values.square().sum(1, keepdim=True) + 0.1 * values.shape[1])
            parts.append(self.second_moment_scale * (values[:, :, None] * values[:, None, :]).flatten(1))
        parts.append(torch.full_like(parts[0][:, :1], self.count_value))
        return torch.cat(parts, dim=1)

    def last_maps(self, vectors: Tensor) -> Tensor:
        """The last layer's normalised maps, taken from feature vectors or from means of them."""
        numbers = math.prod(self.sizes[-1])
        return vectors[:, :numbers].view(-1, *self.sizes[-1]) * (
            math.sqrt(self.feature_layers * numbers) / self.feature_scale
        )


class Back(nn.Module):
    """The layers behind the sum: ``conv3*`` and the two ``FC*`` layers. ``outputs`` numbers for each aggregate.

    A map looked up by the classes' shares in the aggregate is one more input. Zero shares hide the classes.
    """

    def __init__(
        self,
        size: tuple[int, int, int],
        classes: int,
        *,
        layers: int,
        width: int,
        activation: str = "leaky relu",
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.activation = activation
        inputs, place = size[0], (size[1], size[2])
        self.plane = nn.Embedding(classes, place[0] * place[1])
        built = []
        for layer in range(layers):
            built.append(Layer(inputs + (layer == 0), 4 * width, place, 0, activation))
            inputs, place = 4 * width, _halved(place)
        self.convolutions = nn.ModuleList(built)
        self.hidden = nn.Linear((inputs + (not layers)) * place[0] * place[1], 4 * width)
        self.last = nn.Linear(4 * width, outputs)

    def forward(self, maps: Tensor, shares: Tensor) -> Tensor:
        plane = (shares.to(maps) @ self.plane.weight).view(-1, 1, *maps.shape[2:])
        maps = torch.cat([maps, plane], dim=1)
        for layer in self.convolutions:
            maps = layer(maps, shares)
        output: Tensor = self.last(ACTIVATIONS[self.activation](self.hidden(maps.flatten(1))))
        return output


class Generator(nn.Module):
    """A label to an image: latent code and one-hot label, a linear layer, then upsamplings with convolutions.

    Label planes enter at the second convolution. The code is drawn inside, with torch's global generator. Batch
    normalisation is harmless here, because the generator sees no record.
    """

    PLANES = 4

    def __init__(self, shape: Shape, classes: int, *, latent_dim: int = 100, width: int = 32) -> None:
        super().__init__()
        self.latent_dim, self.classes = latent_dim, classes
        sizes = [(shape[1], shape[2])]
        while min(sizes[-1]) > 4:
            sizes.append(_halved(sizes[-1]))
        if len(sizes) < 2:
            raise ValueError(f"images must be at least 5×5 pixels, not {shape[1]}×{shape[2]}")
        self.sizes = sizes[::-1]
        widths = [width * 2 ** min(place, 3) for place in reversed(range(len(sizes) - 1))]
        self.start = (widths[0], *self.sizes[0])
        self.linear = nn.Linear(latent_dim + classes, math.prod(self.start))
        self.second = min(1, len(widths) - 1)
        self.planes = nn.Embedding(classes, self.PLANES * math.prod(self.sizes[self.second]))
        inputs = [size + self.PLANES * (place == self.second) for place, size in enumerate(widths)]
        outputs = [*widths[1:], shape[0]]
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in zip(inputs, outputs, strict=True))
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in widths)

    def forward(self, labels: Tensor) -> Tensor:
        weight = self.linear.weight
        code = torch.randn(len(labels), self.latent_dim, device=weight.device, dtype=weight.dtype)
        one_hot = F.one_hot(labels, self.classes).to(weight)
        maps = self.linear(torch.cat([code, one_hot], dim=1)).view(-1, *self.start)
        for place, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            maps = torch.relu(norm(maps))
            if place == self.second:
                maps = torch.cat([maps, self.planes(labels).view(-1, self.PLANES, *maps.shape[2:])], dim=1)
            # Nearest-neighbour upsampling avoids the chequerboard artefacts of transposed convolutions.
            maps = convolution(F.interpolate(maps, size=self.sizes[place + 1]))
        return torch.sigmoid(maps)
