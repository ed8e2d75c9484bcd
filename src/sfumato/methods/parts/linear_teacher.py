"""A linear classifier of scattering features from one noisy sum: the second moments of features beside one-hot labels.

The products with the labels are the sums of each class, so one pass over the collection is enough. The features lie in
the directions in which features of samples vary most, which are public, so few numbers are asked for. The classifier
says which label a drawn image shows; it is released with the generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sfumato.networks.features import ScatteringClassifier
from sfumato.networks.pixels import Shape, one_hot
from sfumato.privacy import Block, Curator, SubsampledGaussian

_EVENT = "teacher"
_LABEL_NORM = 0.7  # of a one-hot label, relative to the clip norm of the features
_QUANTILE = 0.9  # of the samples' feature norms, to which features are clipped
_ROWS = 250  # samples whose features are computed together


def teacher_query(noise_multiplier: float) -> SubsampledGaussian:
    """The second moments of features and labels."""
    return SubsampledGaussian(_EVENT, (Block(_EVENT, noise_multiplier),))


class LinearTeacher(nn.Module):
    """Class logits of images in 0..1 by linear discriminant analysis in ``directions`` directions of the features."""

    centre: Tensor
    basis: Tensor
    weight: Tensor
    bias: Tensor
    radius: Tensor

    def __init__(self, shape: Shape, classes: int, *, directions: int) -> None:
        super().__init__()
        self.scattering = ScatteringClassifier(shape, 1)
        del self.scattering.linear
        size = self.scattering.scattering.size
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("basis", torch.zeros(size, directions))
        self.register_buffer("weight", torch.zeros(classes, directions))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("radius", torch.tensor(1.0))

    def features(self, images: Tensor) -> Tensor:
        """``[B, directions]``, of norm at most ``radius``."""
        whole = nn.functional.normalize(self.scattering.features(images), dim=1)
        found = (whole - self.centre) @ self.basis
        return found * (self.radius / found.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, ``[B, classes]``."""
        return self.features(images) @ self.weight.T + self.bias


def fit_teacher(
    curator: Curator,
    teacher: LinearTeacher,
    *,
    counts: Tensor,
    samples: Tensor,
    seen: Callable[[Tensor], Tensor],
) -> None:
    """Choose the directions on samples and fit the classifier on one answer.

    Args:
        curator: Answers the queries.
        teacher: It is changed in place.
        counts: Noisy class counts to divide by, positive.
        samples: Images of the generator, which are public.
        seen: What an image looks like to the teacher, a function of that image alone: as the generator could draw it.
    """
    with torch.no_grad():
        _choose_directions(teacher, samples)
    radius, classes = float(teacher.radius), len(counts)
    label_norm, clip_norm = _LABEL_NORM * radius, math.hypot(1.0, _LABEL_NORM) * radius

    def features(images: Tensor, labels: Tensor, random: object) -> Tensor:
        found = teacher.features(seen(images))
        return torch.cat([found, label_norm * one_hot(labels, classes, found)], dim=1)

    both = curator.noisy_second_moments(_EVENT, features, clip_norm=clip_norm).double()
    total = float(counts.sum())
    moments = both[:-classes, :-classes] / total
    means = both[-classes:, :-classes] / label_norm / counts[:, None].double()
    proportions = (counts / total).double()[:, None]
    within = moments - means.T @ (proportions * means)
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    # The largest eigenvalue of the noise alone: below it a direction is not told from noise.
    noise = curator.plan.event(_EVENT).noise_multiplier * clip_norm**2 / total * (2.0 * len(within)) ** 0.5
    inverse = vectors @ torch.diag(1.0 / (values.clamp(min=0.0) + noise + 1e-6 * radius**2)) @ vectors.T
    weight = means @ inverse
    teacher.weight.copy_(weight)
    teacher.bias.copy_(-0.5 * (weight * means).sum(1))


def _choose_directions(teacher: LinearTeacher, samples: Tensor) -> None:
    parts = [nn.functional.normalize(teacher.scattering.features(part), dim=1) for part in samples.split(_ROWS)]
    whole = torch.cat(parts)
    teacher.centre.copy_(whole.mean(0))
    away = whole - teacher.centre
    count = teacher.basis.shape[1]
    _, vectors = torch.linalg.eigh(away @ away.T) if len(away) < away.shape[1] else torch.linalg.eigh(away.T @ away)
    vectors = vectors[:, -min(count, vectors.shape[1]) :]
    if len(away) < away.shape[1]:
        vectors = nn.functional.normalize(away.T @ vectors, dim=0)
    teacher.basis.zero_()
    teacher.basis[:, : vectors.shape[1]] = vectors
    norms = (away @ teacher.basis).norm(dim=1)
    teacher.radius.copy_(norms.quantile(_QUANTILE).clamp(min=1e-3))
