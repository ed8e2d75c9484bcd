"""What leaves the door: a clipped sum becomes a noisy answer here, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sfumato.privacy.randomness import Randomness

_GRID = 2.0**-12  # of the noise's standard deviation


@dataclass(frozen=True)
class Part:
    """One clipped piece of an answer: its exact sum (private!), how far one unit moves it, and its noise."""

    name: str
    total: Tensor
    bound: float
    deviation: float


@dataclass(frozen=True)
class Query:
    """Everything about an answer but the noise: where it was asked, its parts, and the public arguments."""

    event: str
    step: int
    block: str
    parts: tuple[Part, ...]
    public: Mapping[str, Any]
    claimed: bool = False
    """The bound is somebody's claim about a sum made from raw records, not a clip that was carried out."""


class Tape(Protocol):
    """Neighbour replay's way in: it sees each question before and each answer after the noise, and may hand back
    another run's answer. A run with a tape is a test and says so."""

    def exchange(self, question: Query, answer: Tensor, *, charges: int) -> Tensor: ...


def grid_of(deviation: float) -> float:
    """The spacing to which an answer with this much noise is rounded: a power of two near 2^-12 of it."""
    return 2.0 ** math.floor(math.log2(deviation * _GRID))


def noisy(question: Query, randomness: Randomness, *label: str | int) -> Tensor:
    """All parts in one float64 vector, each with its noise, rounded to a grid.

    Floating point leaves traces of a sum in its last bits; on a grid that depends on the noise alone, every value
    that can come up can come up with the neighbour's data too.
    """
    count = sum(part.total.numel() for part in question.parts)
    device = question.parts[0].total.device
    noise = randomness.gaussian(count, device, question.event, question.step, question.block, *label)
    pieces = []
    for part, draw in zip(question.parts, noise.split([p.total.numel() for p in question.parts]), strict=True):
        grid = grid_of(part.deviation)
        pieces.append(torch.round((part.total.flatten().double() + part.deviation * draw) / grid) * grid)
    return torch.cat(pieces)
