"""A training that also releases what its images are good for: a noisy count, within the same budget.

After the training a classifier is trained on synthetic images, and the Curator is asked how many units it labels
correctly and how many not. The count is a query of the run like any other: it is in the plan, on the ledger and among
the events of the card, whose ε covers it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.methods.parts.synthetic_classifier import IMAGES_PER_CLASS, SyntheticClassifier
from sfumato.methods.registry import find
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.release.release import Release

_ACCURACY = "units labelled correctly"
_COUNTS = "measured_counts"
_GENERATOR = "generator."


class MeasuredModel(nn.Module):
    """A generator, and the noisy numbers of units that its classifier labels correctly and wrongly."""

    measured_counts: Tensor

    def __init__(self, generator: nn.Module) -> None:
        """Hold ``generator``; the counts are filled in by the training."""
        super().__init__()
        self.generator = generator
        self.register_buffer(_COUNTS, torch.zeros(2))


@dataclass(frozen=True)
class MeasuredMethod(Method):
    """A method, followed by a noisy count of the units that a classifier trained on its images labels correctly.

    Guarantee: the queries of the method, then one noisy sum over all units, under adding or removing one unit. A unit
    adds (1, 0) if it is labelled correctly and (0, 1) if not, clipped to norm 1; the classifier depends on earlier
    answers alone.
    """

    name: ClassVar[str] = "measured"
    paper: ClassVar[str] = "none; a count by the Gaussian mechanism"

    base: str = "dp-merf"
    settings: str = "{}"
    noise: float = 30.0

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        """The smallest configuration, for tests and audits."""
        return cls.of(find("dp-merf").small(), noise=5.0)

    @classmethod
    def of(cls, method: Method, *, noise: float) -> Self:
        """``method`` with the count; ``noise`` is the standard deviation on each of the two numbers."""
        return cls(base=method.identifier(), settings=json.dumps(method.parameters()), noise=noise)

    @property
    def method(self) -> Method:
        """The method that is measured."""
        return find(self.base).configured(json.loads(self.settings))

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Those of the method, and the count, whose noise is fixed."""
        return (*self.method.queries(), SubsampledGaussian(_ACCURACY, (Block(_ACCURACY, self.noise, fixed=True),)))

    def build(self, shape: Shape, classes: int) -> MeasuredModel:
        """The generator of the method, with a place for the counts."""
        return MeasuredModel(self.method.build(shape, classes))

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Train the method, then a classifier on its images, and ask how many units the classifier labels correctly."""
        if len(curator.classes) < 2:
            raise ValueError("accuracy needs at least two classes; leave out --release-accuracy")
        method = self.method
        generator, counts = method.fit_networks(curator)
        classifier = SyntheticClassifier.trained(method, generator, curator)

        def right_and_wrong(images: Tensor, labels: Tensor, random: object) -> Tensor:
            correct = classifier.correct(images, labels)
            return torch.stack([correct, 1 - correct], dim=1)

        model = MeasuredModel(generator)
        model.measured_counts.copy_(curator.noisy_sum(_ACCURACY, right_and_wrong, clip_norm=1.0).flatten())
        return model, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """Images of the method."""
        return self.method.generate(model.generator, labels)  # type: ignore[arg-type]

    def _published(self, release: Release) -> Release:
        """The generator of the method, with the measured accuracy on its card."""
        return measured_release(release) if isinstance(release.method, MeasuredMethod) else release

    def _settings_remark(self) -> str:
        return self.method._settings_remark()


def measured_release(release: Release) -> Release:
    """The release of the method itself, with the measured accuracy on its card."""
    measured = release.method
    if not isinstance(measured, MeasuredMethod):
        raise TypeError(f"expected the release of a MeasuredMethod, not of {type(measured).__name__}")
    method, state = measured.method, release.model.state_dict()
    right, wrong = (float(value) for value in state[_COUNTS])
    card = replace(
        release.card,
        method=method.identifier(),
        variant=method.variant,
        paper=method.paper,
        parameters=method.parameters(),
        remarks=(*release.card.remarks, accuracy_remark(right, wrong, measured.noise, release.card.unit)),
    )
    tensors = {key.removeprefix(_GENERATOR): value for key, value in state.items() if key.startswith(_GENERATOR)}
    return Release(method, tensors, card)


def accuracy_remark(right: float, wrong: float, noise: float, unit: str) -> str:
    """The counts as a sentence for the card.

    >>> accuracy_remark(800.3, 190.1, 30.0, "image")[:61]
    'Measured: a linear classifier trained on synthetic images (10'
    """
    total = right + wrong
    if total < 5 * noise:
        return f"Measured: nothing can be said about accuracy; noise of {noise:g} hides a collection of this size."
    share = min(1.0, max(0.0, right / total))
    deviation = noise * (share**2 + (1 - share) ** 2) ** 0.5 / total
    return (
        f"Measured: a linear classifier trained on synthetic images ({IMAGES_PER_CLASS} of each class) labels about "
        f"{100 * share:.0f} % (± {100 * deviation:.1f} % by the noise) of the {unit}s that were learnt from correctly. "
        "This is a noisy count, and the ε of this card covers it."
    )
