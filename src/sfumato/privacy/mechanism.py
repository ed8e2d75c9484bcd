"""The Gaussian mechanism: a query's clipped sums become a noisy answer here, and nowhere else."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.privacy.randomness import Randomness

_GRID = 2.0**-12  # of the noise's standard deviation


@dataclass(frozen=True)
class ClippedSum:
    """A sum of clipped vectors (private), its clip norm and the standard deviation of its noise."""

    name: str
    total: Tensor
    clip_norm: float
    standard_deviation: float


@dataclass(frozen=True)
class Query:
    """One block of one step: its clipped sums, and the arguments that are public."""

    event: str
    step: int
    block: str
    sums: tuple[ClippedSum, ...]
    public: Mapping[str, Any]
    claimed: bool = False
    """The clip norm is the authors' claim about a sum of raw records, not a clip that was carried out."""


def with_noise(totals: Sequence[tuple[str, Tensor, float]], noise_multiplier: float) -> tuple[ClippedSum, ...]:
    """The sums of G parameter groups, (name, total, clip norm), with the noise that one block gives them.

    Divided by their clip norms, the G vectors of one unit have norm at most √G together. Noise of standard deviation
    σ·√G·C_g on group g is therefore noise of σ times the sensitivity of the whole.

    Guarantee. The groups together are one block of this noise multiplier.
    """
    scale = math.sqrt(len(totals)) * noise_multiplier
    return tuple(ClippedSum(name, total, clip_norm, scale * clip_norm) for name, total, clip_norm in totals)


def grid_of(standard_deviation: float) -> float:
    """The spacing to which an answer with this much noise is rounded: a power of two near 2^-12 of it."""
    return 2.0 ** math.floor(math.log2(standard_deviation * _GRID))


def add_noise(query: Query, randomness: Randomness) -> Tensor:
    """All sums in one float64 vector, each with its noise, rounded to a grid.

    Floating-point addition leaves traces of the exact sum in an answer's last bits. On a grid that depends on the
    noise alone, every value that one collection can produce can be produced by its neighbour as well.

    Guarantee. Noise of each sum's standard deviation is drawn once, from the run's key and this query's place.
    """
    sizes = [part.total.numel() for part in query.sums]
    device = query.sums[0].total.device
    noise = randomness.gaussian(sum(sizes), device, query.event, query.step, query.block)
    pieces = []
    for part, draw in zip(query.sums, noise.split(sizes), strict=True):
        grid = grid_of(part.standard_deviation)
        pieces.append(torch.round((part.total.flatten().double() + part.standard_deviation * draw) / grid) * grid)
    return torch.cat(pieces)


def described(query: Query, answer: Tensor) -> dict[str, Any]:
    """What the ledger keeps of a noisy answer: its groups, their clip norms and noise, and its hash.

    The answer was paid for, and its hash is a function of it.
    """
    numbers = answer.detach().to("cpu", torch.float64).contiguous().numpy().astype("<f8", copy=False)
    groups = [
        {
            "name": part.name,
            "size": part.total.numel(),
            "clip_norm": float(part.clip_norm),
            "standard_deviation": float(part.standard_deviation),
        }
        for part in query.sums
    ]
    place = {"event": query.event, "step": query.step, "block": query.block}
    return {**place, "groups": groups, "sha256": hashlib.sha256(numbers.tobytes()).hexdigest()}
