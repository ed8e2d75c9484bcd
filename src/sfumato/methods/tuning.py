"""Settings chosen under the budget: the best of a random number of private trials (Papernot and Steinke, 2022).

The candidates are public. Each trial draws one of them at random, trains it, and asks the Curator one more query: how
many units a classifier labels correctly that was trained on the trial's synthetic images. The trial with the highest
noisy score is released; the others, and their number, are not. The whole selection is charged on the ledger before the
first trial. The queries of every trial are checked by a ledger of its own against those that were charged for.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self
from warnings import catch_warnings

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.methods.default_settings import tuned_remark
from sfumato.methods.parts.synthetic_classifier import SyntheticClassifier
from sfumato.methods.registry import find
from sfumato.privacy import AnyBudget, Block, Budget, Counts, Curator, Ledger, Plan, PrivateRecords, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.events import PrivateSelection
from sfumato.privacy.interfaces import PublicInput
from sfumato.privacy.ledger import RunRefused
from sfumato.privacy.selection import Scaling, calibrated_selection, draw_trials
from sfumato.release.card import make_card
from sfumato.release.release import Release

_SCORE = "score"
_NAMED = "the card names those of the best trial, while the choice depends on all: give every candidate the same"


class ScoredModel(nn.Module):
    """A generator, and the noisy number of units that a classifier labels correctly after training on its images."""

    score: Tensor

    def __init__(self, generator: nn.Module) -> None:
        """Hold ``generator``; the score is filled in by the trial."""
        super().__init__()
        self.generator = generator
        self.register_buffer(_SCORE, torch.zeros(()))


@dataclass(frozen=True)
class ScoredMethod(Method):
    """One trial of a selection: a method, followed by a noisy score of its images.

    Guarantee: the queries of the method, then one noisy sum over all units, under adding or removing one unit. A unit
    adds 1 if the classifier labels it correctly and 0 if not; the classifier depends on earlier answers alone.
    """

    name: ClassVar[str] = "scored"
    paper: ClassVar[str] = "Papernot, Steinke: Hyperparameter Tuning with Rényi Differential Privacy (ICLR 2022)"

    base: str = "dp-merf"
    settings: str = "{}"
    score_noise: float = 30.0
    noise_factor: float = 1.0
    scale_fixed_noise: bool = False

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        """The smallest configuration, for tests and audits."""
        return cls.of(find("dp-merf").small(), score_noise=5.0)

    @classmethod
    def of(cls, method: Method, *, score_noise: float) -> Self:
        """A trial of ``method``, which is kept as its name and its settings in JSON."""
        return cls(base=method.identifier(), settings=json.dumps(method.parameters()), score_noise=score_noise)

    @property
    def method(self) -> Method:
        """The method that is scored."""
        return find(self.base).configured(json.loads(self.settings))

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Those of the method, and the score."""
        score = SubsampledGaussian(_SCORE, (Block(_SCORE, self.score_noise, fixed=True),))
        return (*self.method.queries(), score)

    def plan(self, budget: AnyBudget) -> Plan:
        """The queries with the noise of the selection; nothing is calibrated to ``budget``, which is their cost."""
        return Plan(budget, Scaling(self.noise_factor, self.scale_fixed_noise).of(self.queries()))

    def build(self, shape: Shape, classes: int) -> ScoredModel:
        """The generator of the method, with a place for the score."""
        return ScoredModel(self.method.build(shape, classes))

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Train the method, then a classifier on its images, and ask how many units the classifier labels correctly."""
        generator, counts = self.method.fit_networks(curator)
        classifier = SyntheticClassifier.trained(self.method, generator, curator)

        def correct(images: Tensor, labels: Tensor, random: object) -> Tensor:
            return classifier.correct(images, labels)[:, None]

        model = ScoredModel(generator)
        model.score.copy_(curator.noisy_sum(_SCORE, correct, clip_norm=1.0).flatten()[0])
        return model, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """Images of the method."""
        return self.method.generate(model.generator, labels)  # type: ignore[arg-type]


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
        scored = [ScoredMethod.of(method, score_noise=score_noise) for method in candidates]
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
        *,
        device: str | torch.device | None = None,
        max_images_per_unit: int = 16,
        command: str | None = None,
        remarks: Sequence[str] = (),
        notes: Mapping[str, str] | None = None,
        progress: Callable[[], None] | None = None,
        internal: bool = False,
    ) -> Release:
        """Run the selection and return the release of the best trial; see :meth:`Method.fit` for the arguments."""
        if len(private.classes) < 2:
            raise ValueError("tuning scores trials by a classifier, and the collection has one class only")
        self.budget.check_delta(private.declared_size)
        opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger, limit=self.budget)
        options: dict[str, Any] = {"device": device, "max_images_per_unit": max_images_per_unit, "internal": internal}
        try:
            if (opened.limit.delta, opened.limit.unit) != (self.budget.delta, self.budget.unit):
                raise ValueError("the ledger has another δ or unit than the budget; one ledger has one unit and one δ")
            facts = {"plan": {"budget": self.budget.to_json(), "events": [self.event.to_json()]}}
            run = opened.start_run(method=ScoredMethod.name, variant="selection", seeded=False, facts=facts)
            opened.reserve(run, (self.event,))
            opened.charge(run, self.event)
            # A warning of each trial would count them.
            with nullcontext() if internal else catch_warnings(action="ignore"):
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
                max_images_per_unit=max_images_per_unit,
                device=trial.card.device,
                command=command,
                claim=None,
                remarks=(tuned_remark(len(self.trials)), *remarks),
                notes=notes,
            )
            state, prefix = trial.model.state_dict(), "generator."
            tensors = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            release = Release(type(method)(**parameters), tensors, card).bound()
            opened.end_run(run, files=release.hashes())
            return release
        finally:
            if opened is not ledger:
                opened.close()

    def _best(
        self,
        private: PrivateRecords,
        ledger: Ledger,
        options: Mapping[str, Any],
        progress: Callable[[], None] | None,
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

    def _trial(self, number: int, private: PrivateRecords, ledger: Ledger, options: Mapping[str, Any]) -> _Trial:
        """One trial, on a ledger of its own whose charges must be those that the selection was charged for."""
        planned, scored = self.event.candidates[number], self.trials[number]
        cost = Budget(1.01 * epsilon(planned, self.budget.delta), self.budget.delta, self.budget.unit)
        own = Ledger(None, limit=cost)
        own.share_key(ledger)
        release = scored.fit(private, cost, own, **options)
        if release.card.events != own.events() or not _covers(planned, own.events()):
            raise RunRefused("a trial asked other queries than the selection was charged for; nothing is released")
        inputs = tuple((one["name"], one["fingerprint"]) for one in own.public_inputs(release.card.run))
        return _Trial(release, scored.method, float(release.model.state_dict()[_SCORE]), inputs)


@dataclass(frozen=True)
class _Trial:
    """What one trial answered."""

    release: Release
    method: Method
    score: float
    public_inputs: tuple[tuple[str, str], ...]


def _covers(planned: Sequence[SubsampledGaussian], asked: Sequence[Any]) -> bool:
    """Whether everything that was asked was planned, at most as often."""
    left = {event.times(1): event.steps for event in planned}
    return all(isinstance(one, SubsampledGaussian) and one.steps <= left.get(one.times(1), 0) for one in asked)
