"""Images scored on private records within the budget: a noisy count for one training, or for the choice of settings."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self
from warnings import catch_warnings

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape, tuned_remark
from sfumato.methods.registry import find
from sfumato.privacy import AnyBudget, Block, Budget, Counts, Curator, Ledger, Plan, PrivateRecords, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.events import PrivateSelection
from sfumato.privacy.interfaces import PublicInput
from sfumato.privacy.ledger import RunRefused
from sfumato.privacy.selection import Scaling, calibrated_selection, draw_trials
from sfumato.release.card import make_card
from sfumato.release.release import Release
from sfumato.training.run import Run, RunOptions, in_folder, train

IMAGES_PER_CLASS = 100
_STEPS = 200


def synthetic_classifier(method: Method, generator: nn.Module, curator: Curator) -> nn.Linear:
    """Multinomial logistic regression on images of every class from ``generator``; nothing private is read."""
    classes = len(curator.classes)
    labels = torch.arange(classes, device=curator.device).repeat_interleave(IMAGES_PER_CLASS)
    with torch.no_grad():
        images = torch.cat([method.generate(generator, part) for part in labels.split(500)]).flatten(1)
    images = images.detach().clamp(0, 1)
    linear = nn.Linear(images.shape[1], classes, device=images.device, dtype=images.dtype)
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(linear(images), labels).backward()
        optimizer.step()
    return linear.requires_grad_(False)


_ACCURACY = "units labelled correctly"
_COUNTS = "measured_counts"
_GENERATOR = "generator."
_NAMED = "the card names those of the best trial, while the choice depends on all: give every candidate the same"


class ScoredModel(nn.Module):
    """A generator, and the noisy numbers of units that its classifier labels correctly and wrongly."""

    measured_counts: Tensor

    def __init__(self, generator: nn.Module) -> None:
        """Hold ``generator``; the counts are filled in by the training."""
        super().__init__()
        self.generator = generator
        self.register_buffer(_COUNTS, torch.zeros(2))


@dataclass(frozen=True)
class ScoredMethod(Method):
    """A method, followed by a noisy count of the units that a classifier trained on its images labels correctly.

    It is one training whose accuracy is released (``measured_release``), or one trial of a selection (``Tuning``).

    Guarantee: the queries of the method, then one noisy sum over all units, under adding or removing one unit. A unit
    adds (1, 0) if it is labelled correctly and (0, 1) if not, clipped to norm 1; the classifier depends on earlier
    answers alone.
    """

    name: ClassVar[str] = "measured"
    paper: ClassVar[str] = "Papernot, Steinke: Hyperparameter Tuning with Rényi Differential Privacy (ICLR 2022)"

    base: str = "dp-merf"
    settings: str = "{}"
    noise: float = 30.0
    noise_factor: float = 0.0
    """The factor on the noise of every query in a trial of a selection; 0 calibrates the noise to the budget."""
    scale_fixed_noise: bool = False

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls.of(find("dp-merf").small(), noise=5.0)

    @classmethod
    def of(cls, method: Method, *, noise: float) -> Self:
        """``method`` with the count; ``noise`` is the standard deviation on each of the two numbers."""
        return cls(base=method.identifier(), settings=json.dumps(method.parameters()), noise=noise)

    @property
    def method(self) -> Method:
        return find(self.base).configured(json.loads(self.settings))

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Those of the method, and the count, whose noise is fixed."""
        return (*self.method.queries(), SubsampledGaussian(_ACCURACY, (Block(_ACCURACY, self.noise, fixed=True),)))

    def plan(self, budget: AnyBudget) -> Plan:
        """Calibrated to ``budget``; in a trial of a selection with the selection's noise, whose cost ``budget`` is."""
        if not self.noise_factor:
            return super().plan(budget)
        return Plan(budget, Scaling(self.noise_factor, self.scale_fixed_noise).of(self.queries()))

    def build(self, shape: Shape, classes: int) -> ScoredModel:
        return ScoredModel(self.method.build(shape, classes))

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Train the method, then a classifier on its images, and ask how many units the classifier labels correctly."""
        if len(curator.classes) < 2:
            raise ValueError("accuracy needs at least two classes; leave out --release-accuracy")
        method = self.method
        generator, counts = method.fit_networks(curator)
        classifier = synthetic_classifier(method, generator, curator)
        weights, bias = classifier.weight.t().contiguous(), classifier.bias

        def right_and_wrong(images: Tensor, labels: Tensor, random: object) -> Tensor:
            predicted = (images.flatten(1) @ weights.to(images.dtype) + bias.to(images.dtype)).argmax(1)
            correct = (predicted == labels).to(images.dtype)
            return torch.stack([correct, 1 - correct], dim=1)

        model = ScoredModel(generator)
        model.measured_counts.copy_(curator.noisy_sum(_ACCURACY, right_and_wrong, clip_norm=1.0).flatten())
        return model, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        return self.method.generate(model.generator, labels)  # type: ignore[arg-type]

    def published(self, release: Release) -> Release:
        """The generator of the method, with the measured accuracy on its card; a trial keeps its score."""
        return release if self.noise_factor else measured_release(release)

    def settings_remark(self) -> str:
        return self.method.settings_remark()


def _generator(release: Release) -> dict[str, Tensor]:
    state = release.model.state_dict()
    return {key.removeprefix(_GENERATOR): value for key, value in state.items() if key.startswith(_GENERATOR)}


def measured_release(release: Release) -> Release:
    """The release of the method itself, with the measured accuracy on its card."""
    measured = release.method
    if not isinstance(measured, ScoredMethod):
        raise TypeError(f"expected the release of a ScoredMethod, not of {type(measured).__name__}")
    method = measured.method
    right, wrong = (float(value) for value in release.model.state_dict()[_COUNTS])
    card = replace(
        release.card,
        method=method.identifier(),
        variant=method.variant,
        paper=method.paper,
        parameters=method.parameters(),
        remarks=(*release.card.remarks, accuracy_remark(right, wrong, measured.noise, release.card.unit)),
    )
    return Release(method, _generator(release), card)


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


@dataclass(frozen=True)
class Tuning:
    """A selection that was planned: its event, and the trial of every candidate with its noise."""

    budget: Budget
    event: PrivateSelection
    trials: tuple[ScoredMethod, ...]

    @classmethod
    def planned(
        cls, candidates: Sequence[Method], budget: Budget, *, expected_trials: float = 5.0, score_noise: float = 30.0
    ) -> Self:
        """Calibrate the noise of all candidates to the budget. It touches no data."""
        if len(candidates) < 2:
            raise ValueError("tuning needs at least two candidates; with one there is nothing to choose")
        if any(not method.certified_variants() for method in candidates):
            raise ValueError("tuning needs methods that are certified")
        if len({method.parameters().get("public", "") for method in candidates}) > 1:
            raise ValueError(f"the candidates have different public collections, and {_NAMED}")
        scored = [ScoredMethod.of(method, noise=score_noise) for method in candidates]
        queries = [trial.queries() for trial in scored]
        event, scalings = calibrated_selection(queries, budget, trials=expected_trials)
        trials = tuple(
            replace(trial, noise_factor=scaling.factor, scale_fixed_noise=scaling.with_fixed)
            for trial, scaling in zip(scored, scalings, strict=True)
        )
        return cls(budget, event, trials)

    def fit(
        self,
        private: PrivateRecords,
        ledger: Ledger | str | Path | None = None,
        options: RunOptions | None = None,
        *,
        progress: Callable[[], None] | None = None,
    ) -> Release:
        """Run the selection and return the release of the best trial; ``progress`` is called before each trial."""
        options = options or RunOptions()
        if len(private.classes) < 2:
            raise ValueError("tuning scores trials by a classifier, and the collection has one class only")
        self.budget.check_delta(private.declared_size)
        opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger, limit=self.budget)
        try:
            if (opened.limit.delta, opened.limit.unit) != (self.budget.delta, self.budget.unit):
                raise ValueError("the ledger has another δ or unit than the budget; one ledger has one unit and one δ")
            facts = {"plan": {"budget": self.budget.to_json(), "events": [self.event.to_json()]}}
            run = opened.start_run(method="scored", variant="selection", seeded=False, facts=facts)
            opened.reserve(run, (self.event,))
            opened.charge(run, self.event)
            # A warning of each trial would count them.
            with nullcontext() if options.internal else catch_warnings(action="ignore"):
                best, reasons = self._best(private, opened, options, progress)
            for name, fingerprint in best.public_inputs:
                opened.note_public(run, PublicInput(name, "", fingerprint=fingerprint))
            method, trial = best.method, best.release
            parameters = method.parameters()
            card = make_card(
                method=method.identifier(),
                paper=method.paper,
                parameters=parameters,
                plan=Plan(self.budget, ()),
                ledger=opened,
                run=run,
                reasons=reasons,
                shape=private.shape,
                classes=private.classes,
                counts=trial.card.class_counts,
                declared_size=private.declared_size,
                max_images_per_unit=options.max_images_per_unit,
                device=trial.card.device,
                command=options.command,
                claim=None,
                remarks=(tuned_remark(len(self.trials)), *options.remarks),
                notes=options.notes,
            )
            release = Release(type(method)(**parameters), _generator(trial), card).bound()
            opened.end_run(run, files=release.hashes(opened))
            return release
        finally:
            if opened is not ledger:
                opened.close()

    def run(
        self, folder: str | Path, private: PrivateRecords, options: RunOptions, *, progress: Callable[[], None]
    ) -> Release:
        """Run the selection into ``folder``, as ``train_run`` does for one training."""
        run = Run(folder, ledger=options.ledger)
        facts = {"budget": self.budget.to_json(), **options.facts}
        return in_folder(
            run, private, facts, options, lambda: self.fit(private, run.ledger, options, progress=progress)
        )

    def _best(
        self, private: PrivateRecords, ledger: Ledger, options: RunOptions, progress: Callable[[], None] | None
    ) -> tuple[_Trial, list[str]]:
        """The trial with the highest score, and why any trial cannot be certified.

        The number of trials is secret: it is neither shown nor kept, and what they warn of is withheld.
        """
        best: _Trial | None = None
        reasons: set[str] = set()
        for _ in range(draw_trials(self.event.shape, self.event.gamma)):
            if progress is not None:
                progress()
            trial = self._trial(secrets.randbelow(len(self.trials)), private, ledger, options)
            reasons |= set(trial.release.card.reasons)
            if best is not None and trial.public_inputs != best.public_inputs:
                raise RunRefused(f"trials treated different collections as public, and {_NAMED}")
            if best is None or trial.score > best.score:
                best = trial
        if best is None:
            raise RuntimeError("a selection has at least one trial")
        return best, sorted(reasons)

    def _trial(self, number: int, private: PrivateRecords, ledger: Ledger, options: RunOptions) -> _Trial:
        """One trial, on a ledger of its own whose charges must be those that the selection was charged for."""
        planned, scored = self.event.candidates[number], self.trials[number]
        cost = Budget(1.01 * epsilon(planned, self.budget.delta), self.budget.delta, self.budget.unit)
        own = Ledger(None, limit=cost)
        own.share_key(ledger)
        plain = RunOptions(
            device=options.device, max_images_per_unit=options.max_images_per_unit, internal=options.internal
        )
        release = train(scored, private, scored.plan(cost), own, plain)
        if release.card.events != own.events() or not _covers(planned, own.events()):
            raise RunRefused("a trial asked other queries than the selection was charged for; nothing is released")
        inputs = tuple((one["name"], one["fingerprint"]) for one in own.public_inputs(release.card.run))
        return _Trial(release, scored.method, float(release.model.state_dict()[_COUNTS][0]), inputs)


@dataclass(frozen=True)
class _Trial:
    """What one trial answered."""

    release: Release
    method: Method
    score: float
    public_inputs: tuple[tuple[str, str], ...]


def _covers(planned: Sequence[SubsampledGaussian], asked: Sequence[Any]) -> bool:
    left = {event.times(1): event.steps for event in planned}
    return all(isinstance(one, SubsampledGaussian) and one.steps <= left.get(one.times(1), 0) for one in asked)
