"""Pre-training on public images: features that separate their classes, and a generator of such images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.parts.feature_aggregate import mean_distance
from sfumato.networks.dcgan import Front, Generator
from sfumato.privacy import Curator
from sfumato.release.public_input import read_public


def pretrain_on_public_images(
    curator: Curator,
    path: str,
    front: Front,
    generator: Generator | None,
    *,
    batch: int,
    iterations: int,
    learning_rate: float = 0.001,
) -> None:
    """Train ``front`` as a classifier of the public classes, then ``generator`` on their mean features.

    Nothing private is touched. The public labels have no relation to the private classes, so all labels of the
    generator start alike.

    Args:
        curator: Writes the collection on the ledger before anything is learnt from it.
        path: A folder or file of public images.
        front: The feature extractor; it is changed in place.
        generator: The generator, or None to leave it as it is.
        batch: Images in a batch.
        iterations: Steps of each of the two trainings.
        learning_rate: The learning rate of Adam.
    """
    batches = _Batches(curator, path, front, batch)
    linear = nn.Linear(math.prod(front.sizes[-1]), batches.classes).to(batches.device)
    optimizer = torch.optim.Adam([*front.parameters(), *linear.parameters()], lr=learning_rate)
    for _ in range(iterations):
        images, labels = batches.draw()
        loss = F.cross_entropy(linear(front.layers(images, torch.zeros_like(labels))[-1].flatten(1)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if generator is not None:
        _match_means(front, generator, batches, iterations=iterations, learning_rate=learning_rate)


class _Batches:
    """Random batches of public images."""

    def __init__(self, curator: Curator, path: str, front: Front, size: int) -> None:
        channels, height, width = front.shape
        public, entry = read_public(path, size=(height, width), colour="grey" if channels == 1 else "rgb")
        curator.treat_as_public(entry)
        first = next(front.parameters())
        self.device, self.dtype, self.size, self.classes = first.device, first.dtype, size, len(public.classes)
        self.images, self.labels = torch.as_tensor(public.pixels), torch.as_tensor(public.labels)

    def draw(self) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.images), (self.size,))
        return self.images[rows].to(self.device, self.dtype) / 255.0, self.labels[rows].to(self.device)


def _match_means(
    front: Front, generator: Generator, batches: _Batches, *, iterations: int, learning_rate: float
) -> None:
    optimizer = torch.optim.Adam(generator.parameters(), lr=learning_rate, betas=(0.5, 0.99))
    labels = torch.arange(batches.size, device=batches.device) % generator.classes
    for _ in range(iterations):
        with torch.no_grad():
            mean = front(batches.draw()[0], labels).mean(0, keepdim=True)
        optimizer.zero_grad(set_to_none=True)
        mean_distance(front(generator(labels), labels)[None], mean).backward()
        optimizer.step()
    front.zero_grad(set_to_none=True)
