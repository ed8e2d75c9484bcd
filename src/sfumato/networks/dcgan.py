"""The conditional DCGAN of DPAF: a generator, and a discriminator cut in two where a batch is summed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, int, int]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky relu": lambda values: F.leaky_relu(values, 0.2),
    "tanh": torch.tanh,
}
"""The tempered sigmoid of the paper's ablation is tanh."""


def simplified_instance_norm(maps: Tensor, *, least: float = 0.01) -> Tensor:
    """Each p×p map less its mean, divided by its deviation: a vector of norm at most p.

    ``least`` under the root is what makes a constant map zeros; rounding would make it anything, or NaN. It also keeps
    the slope at a nearly constant map small: a young generator's images are all grey, and must find their way out.
    """
    centred = maps - maps.mean((2, 3), keepdim=True)
    return centred / torch.sqrt(centred.square().mean((2, 3), keepdim=True) + least)


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


def _halved(size: tuple[int, int]) -> tuple[int, int]:
    return -(-size[0] // 2), -(-size[1] // 2)


class Layer(nn.Module):
    """A convolution of stride 2; where it is ``labelled``, a plane looked up by label is one more channel of input."""

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
    """What every image goes through by itself: ``first`` (conv1) and ``second`` (conv2*), and a vector to be summed.

    The vector of a row has norm at most 1. Its parts:

    - the normalised maps of the last ``taps`` layers; 1 is the paper;
    - with ``coarse`` > 0 the image itself at that many pixels a side, which knows the brightness that normalised maps
      have lost;
    - with ``pairs`` > 0 the products of all pairs of numbers in a still coarser image of ``pairs`` pixels a side, so
      that the sum knows how pixels vary together and not only their mean;
    - a constant, by which the sum counts its rows.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        layers: tuple[int, int],
        width: int,
        maps: int,
        taps: int = 1,
        coarse: int = 0,
        pairs: int = 0,
        pair_share: float = 0.5,
        labelled: bool = True,
        activation: str = "leaky relu",
        count_share: float = 0.1,
    ) -> None:
        super().__init__()
        self.shape, self.taps, self.coarse, self.pairs = shape, taps, coarse, pairs
        total, size, inputs = sum(layers), (shape[1], shape[2]), shape[0]
        if not 1 <= taps <= total:
            raise ValueError(f"taps must lie between 1 and the {total} layers in front of the sum, not {taps}")
        built, self.sizes = [], []
        for place in range(total):
            outputs = maps if place == total - 1 else width * 2**place
            built.append(Layer(inputs, outputs, size, classes if labelled and place == 1 else 0, activation))
            inputs, size = outputs, _halved(size)
            self.sizes.append((outputs, *size))
        if min(size) < 2:
            raise ValueError(
                f"{total} layers in front of the sum leave maps of {size[0]}×{size[1]}, which the normalisation makes "
                f"zero; images of {shape[1]}×{shape[2]} allow fewer"
            )
        self.first, self.second = nn.ModuleList(built[: layers[0]]), nn.ModuleList(built[layers[0] :])
        self.length = sum(math.prod(size) for size in self.sizes[-taps:]) + shape[0] * coarse**2 + 1
        # Both halves of the symmetric table: their average has the noise that one half alone would have had.
        self.length += (shape[0] * pairs**2) ** 2
        self.count = math.sqrt(count_share)
        paired = pair_share if pairs else 0.0
        self.pair_part = math.sqrt(paired * (1.0 - count_share))
        self.part = math.sqrt((1.0 - paired) * (1.0 - count_share) / (1 + bool(coarse)))

    def layers(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        """The normalised maps of every layer."""
        maps = _pixels(images)
        found = []
        for layer in (*self.first, *self.second):
            maps = layer(maps, labels)
            found.append(simplified_instance_norm(maps))
        return found

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """``[rows, length]``, each of norm at most 1; the last maps stand first."""
        found = self.layers(images, labels)
        scale = self.part / math.sqrt(self.taps)
        parts = [scale * maps.flatten(1) / math.sqrt(maps.shape[1:].numel()) for maps in reversed(found[-self.taps :])]
        if self.coarse:
            values = F.adaptive_avg_pool2d(_pixels(images), self.coarse).flatten(1)
            parts.append(self.part * values / math.sqrt(values.shape[1]))
        if self.pairs:
            values = F.adaptive_avg_pool2d(_pixels(images), self.pairs).flatten(1)
            # Not divided by their norm alone: at a grey image, where it is 0, there would be no slope to follow.
            values = values / torch.sqrt(values.square().sum(1, keepdim=True) + 0.1 * values.shape[1])
            parts.append(self.pair_part * (values[:, :, None] * values[:, None, :]).flatten(1))
        parts.append(torch.full_like(parts[0][:, :1], self.count))
        return torch.cat(parts, dim=1)

    def last_maps(self, vectors: Tensor) -> Tensor:
        """The last layer's normalised maps, taken out of vectors or of means of vectors."""
        numbers = math.prod(self.sizes[-1])
        return vectors[:, :numbers].view(-1, *self.sizes[-1]) * (math.sqrt(self.taps * numbers) / self.part)


def _pixels(images: Tensor) -> Tensor:
    """In -1..1. What is no pixel value is made one, so that no row is lost to an overflow."""
    return 2.0 * torch.nan_to_num(images).clamp(0.0, 1.0) - 1.0


class Back(nn.Module):
    """What the sum goes through: ``conv3*`` and the two ``FC*`` layers, with the label as one more map. One logit."""

    def __init__(
        self, size: tuple[int, int, int], classes: int, *, layers: int, width: int, activation: str = "leaky relu"
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
        self.logit = nn.Linear(4 * width, 1)

    def forward(self, maps: Tensor, labels: Tensor) -> Tensor:
        maps = torch.cat([maps, self.plane(labels).view(-1, 1, *maps.shape[2:])], dim=1)
        for layer in self.convolutions:
            maps = layer(maps, labels)
        hidden = ACTIVATIONS[self.activation](self.hidden(maps.flatten(1)))
        return self.logit(hidden)[:, 0]


class Generator(nn.Module):
    """Normal code and label → linear → doublings with convolutions, planes of the label entering at the second.

    The code is drawn inside, with torch's global generator. Batch normalisation is harmless here: the generator sees
    no record.
    """

    PLANES = 4

    def __init__(self, shape: Shape, classes: int, *, code: int = 100, width: int = 32) -> None:
        super().__init__()
        self.code, self.classes = code, classes
        sizes = [(shape[1], shape[2])]
        while min(sizes[-1]) > 4:
            sizes.append(_halved(sizes[-1]))
        if len(sizes) < 2:
            raise ValueError(f"images must be at least 5×5 pixels, not {shape[1]}×{shape[2]}")
        self.sizes = sizes[::-1]
        widths = [width * 2 ** min(place, 3) for place in reversed(range(len(sizes) - 1))]
        self.start = (widths[0], *self.sizes[0])
        self.linear = nn.Linear(code + classes, math.prod(self.start))
        self.second = min(1, len(widths) - 1)
        self.planes = nn.Embedding(classes, self.PLANES * math.prod(self.sizes[self.second]))
        inputs = [size + self.PLANES * (place == self.second) for place, size in enumerate(widths)]
        outputs = [*widths[1:], shape[0]]
        self.convolutions = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in zip(inputs, outputs, strict=True))
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in widths)

    def forward(self, labels: Tensor) -> Tensor:
        weight = self.linear.weight
        code = torch.randn(len(labels), self.code, device=weight.device, dtype=weight.dtype)
        one_hot = F.one_hot(labels, self.classes).to(weight)
        maps = self.linear(torch.cat([code, one_hot], dim=1)).view(-1, *self.start)
        for place, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            maps = torch.relu(norm(maps))
            if place == self.second:
                maps = torch.cat([maps, self.planes(labels).view(-1, self.PLANES, *maps.shape[2:])], dim=1)
            # Repeated pixels leave none of the chequered traces that transposed convolutions do.
            maps = convolution(F.interpolate(maps, size=self.sizes[place + 1]))
        return torch.sigmoid(maps)
