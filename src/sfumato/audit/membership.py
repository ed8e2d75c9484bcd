"""Membership attacks on what is released, reported as true positive rates at low false positive rates.

The numbers are computed from private records and are NOT private. An attack that fails shows little: these are
average-case attacks on ordinary records, and the guarantee is about the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from sfumato.methods.base import Method
from sfumato.privacy import AnyBudget, PrivateRecords
from sfumato.release.release import Release

NOTICE = "INTERNAL: computed from private records; may not leave"

Score = Callable[[Release, np.ndarray, np.ndarray], np.ndarray]
"""``score(release, images uint8, labels)``: higher for those the attacker takes for members."""


@dataclass(frozen=True)
class Membership:
    """An attack's scores for members and for others."""

    attack: str
    members: np.ndarray
    others: np.ndarray

    @property
    def auc(self) -> float:
        """Probability that a member scores higher than a non-member; one half is guessing."""
        return out_of_distribution_auroc(self.members, self.others)

    def true_positives(self, false: float) -> float:
        """The share of members found when at most ``false`` of the others are taken for members."""
        allowed = math.floor(false * len(self.others))
        cut = np.sort(self.others)[::-1][allowed] if allowed < len(self.others) else -math.inf
        return float((self.members > cut).mean())

    def curve(self, points: int = 50) -> list[tuple[float, float]]:
        """(false, true) positive rates, evenly spaced on a logarithmic axis."""
        least = 1 / max(2, len(self.others))
        return [(float(f), self.true_positives(float(f))) for f in np.geomspace(least, 1.0, points)]

    def __str__(self) -> str:
        at = ", ".join(f"{100 * self.true_positives(f):.1f} % at {100 * f:g} % false" for f in (0.001, 0.01))
        return f"{self.attack}: AUC {self.auc:.3f}; found {at}"

    def to_json(self) -> dict[str, Any]:
        return {
            "notice": NOTICE,
            "attack": self.attack,
            "members": len(self.members),
            "others": len(self.others),
            "auc": self.auc,
            "tpr_at_0.1_percent_fpr": self.true_positives(0.001),
            "tpr_at_1_percent_fpr": self.true_positives(0.01),
            "roc": self.curve(),
        }


def out_of_distribution_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Probability that an image of the distribution has a higher log-density than another one; ties count one half.

    ``inside`` and ``outside`` are log-densities, one number per image. Infinite ones are
    ordered like numbers; NaN cannot be ordered and is refused.
    """
    inside, outside = _flat(inside, "inside"), _flat(outside, "outside")
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    wins = ranks.sum() - len(inside) * (len(inside) + 1) / 2
    return float(wins / (len(inside) * len(outside)))


def _flat(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(values):
        raise ValueError(f"{name} must hold at least one log-density")
    if np.isnan(values).any():
        raise ValueError(f"{name} holds NaN, which cannot be ordered; check the density that produced it")
    return values


def nearest_distance(images: np.ndarray, among: np.ndarray) -> np.ndarray:
    """For each image, the root mean square distance to the nearest of ``among``; both uint8, on the scale 0..1."""
    one, many = (torch.from_numpy(x.reshape(len(x), -1)).float() / 255 for x in (images, among))
    lengths = many.square().sum(1)
    # The nearest by products; its distance from the difference itself, so that a copy has distance zero.
    found = [(lengths - 2 * part @ many.T).argmin(1) for part in torch.split(one, 256)]
    return (one - many[torch.cat(found)]).square().mean(1).sqrt().numpy()


def gan_leaks(
    synthetic: np.ndarray, members: np.ndarray, others: np.ndarray, *, reference: np.ndarray | None = None
) -> Membership:
    """Distance to the nearest synthetic image (Chen et al., 2020); near means member.

    With a ``reference`` set, images of the same kind that the generator has not seen, each distance is calibrated by
    the distance to it, so that images which are near everything do not count as remembered.
    """

    def score(images: np.ndarray) -> np.ndarray:
        base = 0.0 if reference is None else nearest_distance(images, reference)
        return np.asarray(base - nearest_distance(images, synthetic))

    name = "GAN-Leaks" if reference is None else "GAN-Leaks, calibrated"
    return Membership(name, score(members), score(others))


def likelihood(release: Release, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The released model's log-density of each image under its own label."""
    density = getattr(release.method, "density", None)
    if density is None:
        raise ValueError(f"{release.card.method} has no density; the likelihood attack does not apply")
    with torch.no_grad():
        pixels = torch.from_numpy(images).to(torch.get_default_dtype()) / 255
        values = torch.cat([density(release.model.cpu(), part) for part in torch.split(pixels, 256)])
    chosen: np.ndarray = values[torch.arange(len(labels)), torch.from_numpy(np.asarray(labels))].double().numpy()
    return np.asarray(np.nan_to_num(chosen, nan=-1e9, posinf=1e9, neginf=-1e9))


def attacks_on(
    release: Release, members: tuple[np.ndarray, np.ndarray], others: tuple[np.ndarray, np.ndarray], *, samples: int
) -> list[Membership]:
    """GAN-Leaks with and without a reference set, and the density where the method has one."""
    drawn, _ = release.sample(samples, seed=0, device="cpu")
    half = len(others[0]) // 2
    found = [
        gan_leaks(drawn, members[0], others[0]),
        gan_leaks(drawn, members[0], others[0][:half], reference=others[0][half:]),
    ]
    if hasattr(release.method, "density"):
        found.append(Membership("likelihood", likelihood(release, *members), likelihood(release, *others)))
    return found


def distance(samples: int = 1000) -> Score:
    """The score of GAN-Leaks, for use by shadow models."""

    def score(release: Release, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        drawn, _ = release.sample(samples, seed=0, device="cpu")
        return -nearest_distance(images, drawn)

    return score


def lira(
    method: Method,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    classes: tuple[str, ...],
    budget: AnyBudget,
    score: Score,
    shadows: int = 16,
    seed: int = 0,
) -> Membership:
    """Shadow models (Carlini et al., 2022): train on random halves, learn each record's score in and out, and compare.

    Every model is the target once, with the others as its shadow models. 16 shadow models are few, and the attack weak.
    """
    random = np.random.default_rng(seed)
    inside = np.stack([random.permutation(len(images)) < len(images) // 2 for _ in range(shadows)])
    scores = np.empty(inside.shape)
    for shadow, chosen in enumerate(inside):
        private = PrivateRecords(images[chosen], labels[chosen], classes=classes)
        scores[shadow] = score(method.fit(private, budget, device="cpu", seed=seed + shadow), images, labels)
    found: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for target in range(shadows):
        rest = np.arange(shadows) != target
        ratio = _log_normal(scores[target], scores[rest], inside[rest])
        ratio -= _log_normal(scores[target], scores[rest], ~inside[rest])
        for member in (True, False):
            found[member].append(ratio[inside[target] == member])
    return Membership(f"LiRA, {shadows} shadows", np.concatenate(found[True]), np.concatenate(found[False]))


def _log_normal(value: np.ndarray, scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Log-density of N(mean, deviation) at ``value`` by record over the shadows in ``mask``; deviations are pooled."""
    counts = np.maximum(1, mask.sum(0))
    mean = np.where(mask, scores, 0.0).sum(0) / counts
    deviation = math.sqrt(float(np.square((scores - mean)[mask]).mean())) + 1e-12
    density: np.ndarray = -np.square((value - mean) / deviation) / 2 - math.log(deviation)
    return density
