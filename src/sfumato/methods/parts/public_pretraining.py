"""A start from public images: features that tell their classes apart, and a generator of such images."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from sfumato.data import PublicImages
from sfumato.methods.parts.feature_aggregate import distance
from sfumato.networks.dcgan import Front, Generator


def start_from_public(
    path: str, front: Front, generator: Generator | None, *, batch: int, iterations: int, rate: float = 0.001
) -> None:
    """Train the front as a classifier of the public images' own classes, then the generator on their mean features.

    Nothing private is touched. The public labels mean nothing to the private classes, so the generator starts with
    all of its labels alike.
    """
    channels, height, width = front.shape
    public = PublicImages.read(path, size=(height, width), colour="grey" if channels == 1 else "rgb")
    device = next(front.parameters()).device
    images, labels = torch.as_tensor(public.pixels), torch.as_tensor(public.labels)
    linear = nn.Linear(math.prod(front.sizes[-1]), len(public.classes)).to(device)
    optimizer = torch.optim.Adam([*front.parameters(), *linear.parameters()], lr=rate)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(len(images), (batch,))
        return images[rows].to(device, linear.weight.dtype) / 255.0, labels[rows].to(device)

    for _ in range(iterations):
        shown, wanted = draw()
        loss = F.cross_entropy(linear(front.layers(shown, torch.zeros_like(wanted))[-1].flatten(1)), wanted)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if generator is None:
        return
    optimizer = torch.optim.Adam(generator.parameters(), lr=rate, betas=(0.5, 0.99))
    for _ in range(iterations):
        wanted = torch.arange(batch, device=device) % generator.classes
        with torch.no_grad():
            mean = front(draw()[0], wanted).mean(0, keepdim=True)
        optimizer.zero_grad(set_to_none=True)
        distance(front(generator(wanted), wanted)[None], mean).backward()
        optimizer.step()
    front.zero_grad(set_to_none=True)
