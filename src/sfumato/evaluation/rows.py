"""The rows of a result: the synthetic images and the baselines that give their values a scale."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.evaluation.image_sets import LabelledImages, uniform_noise
from sfumato.evaluation.protocols import Protocol
from sfumato.evaluation.results import HALVES, NOISE, REAL, SYNTHETIC, ImageSet


@dataclass(frozen=True)
class Part:
    """Images and what a result says about them; several sets are independent trainings of one generator."""

    sets: tuple[LabelledImages, ...]
    described: ImageSet

    @classmethod
    def of(cls, data: str, split: str | None, *sets: LabelledImages) -> Part:
        """Equally large sets under one description."""
        return cls(sets, ImageSet(data, split, len(sets[0])))

    @property
    def only(self) -> LabelledImages:
        """The one set of a part that has no repetitions."""
        (one,) = self.sets
        return one


@dataclass(frozen=True)
class Row:
    """The image sets of one row.

    A classifier is trained on ``train`` and tested on ``test``; the features of ``compared`` are compared with those of
    ``reference``.
    """

    name: str
    train: Part
    test: Part
    compared: Part
    reference: Part


def evaluation_rows(
    protocol: Protocol,
    sets: tuple[LabelledImages, ...],
    train: LabelledImages,
    test: LabelledImages,
    *,
    classes: int,
    feature_images: int | None,
) -> list[Row]:
    """The synthetic row first; baselines use as many real or noise images as there are synthetic ones."""
    size = len(sets[0])
    other = "train" if protocol.reference == "test" else "test"
    splits = {"train": train.first(feature_images), "test": test.first(feature_images)}
    tested = Part.of("real", "test", test)
    reference = Part.of("real", protocol.reference, splits[protocol.reference])
    limit = min(found) if (found := [n for n in (feature_images, protocol.feature_images) if n is not None]) else None
    noise = uniform_noise(size, classes, train.pixels.shape[1:])
    (left, right), (left_compared, right_compared) = train.halves(size), train.halves(feature_images)
    first, second = "train, first half", "train, second half"
    return [
        Row(
            SYNTHETIC,
            Part.of("synthetic", None, *sets),
            tested,
            Part.of("synthetic", None, *(part.first(limit) for part in sets)),
            reference,
        ),
        # The distance of a set from itself says nothing: the split that is not the reference is compared.
        Row(
            REAL, Part.of("real", "train", train.first(size)), tested, Part.of("real", other, splits[other]), reference
        ),
        Row(
            HALVES,
            Part.of("real", first, left),
            Part.of("real", second, right),
            Part.of("real", first, left_compared),
            Part.of("real", second, right_compared),
        ),
        Row(
            NOISE,
            Part.of("uniform noise", None, noise),
            tested,
            Part.of("uniform noise", None, noise.first(limit)),
            reference,
        ),
    ]
