"""Broken twins: one sound method and what becomes of it when a known mistake is made. Some audit must catch each.

Most of them reach behind the Curator on purpose. That is the point: Python cannot stop an author from doing so, so
the audit must notice when one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.privacy import Block, Counts, Curator, NoisyGradient, PrivateRecords, Step, SubsampledGaussian
from sfumato.privacy.gradients import Batch
from sfumato.privacy.gradients.group_terms import Grouped, Terms
from sfumato.privacy.mechanism import ClippedSum, Query, add_noise
from sfumato.release.release import Release


class MeanImages(nn.Module):
    """One image for each class: a generator of the simplest kind, in two parameters so that it can have groups."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.shape = shape
        self.base = nn.Parameter(torch.zeros(torch.Size(shape).numel()))
        self.offset = nn.Parameter(torch.zeros(classes, torch.Size(shape).numel()))

    def forward(self, labels: Tensor) -> Tensor:
        return (self.base + self.offset[labels]).view(-1, *self.shape)


@dataclass(frozen=True)
class SoundTwin(Method):
    """Mean images by DP-SGD: the control that every twin is a mutation of. Replay finds nothing here."""

    name: ClassVar[str] = "sound"
    paper: ClassVar[str] = "none; a control for audits"

    rate: float = 0.5
    steps: int = 6
    clip: float = 1.0
    learning_rate: float = 0.1

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(variant=variant)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return (SubsampledGaussian("train", (Block("gradient"),), sampling_rate=self.rate, steps=self.steps),)

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return MeanImages(shape, classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        losses: list[float] = []
        for step in curator.steps("train"):
            self.learn(curator, step, model).apply(optimizer)
            if self.stop(curator, model, losses):
                break
        return model, None

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        clips = {"base": self.clip, "offset": self.clip}
        return step.noisy_gradient("gradient", model, self.loss, clip_norm=clips) / 10.0

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        return False

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        difference: Tensor = (images - model(labels)).flatten(1)
        return 10 * difference.square().sum(1)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        images: Tensor = model(labels)
        return images


def _peek(curator: Curator) -> tuple[Tensor, Tensor]:
    """The private images and labels, as somebody would get at them who thinks that a little look does no harm."""
    records = curator._records
    rows = np.array([row for row in range(len(records._labels)) if row not in records._masked], dtype=np.int64)
    images, labels = records._fetch(rows, curator.device)
    return torch.nan_to_num(images).clamp(-1e4, 1e4), labels


class _HalfPaid(Step):
    """Two clips, one entry: each group gets the noise of a single clip."""

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        narrow = tuple(replace(part, standard_deviation=part.standard_deviation / len(parts) ** 0.5) for part in parts)
        return super()._answer(block, narrow, public)


class _Unclipped(Step):
    """The sum is clipped a thousand times wider than the noise believes."""

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        wrong = tuple(
            replace(p, clip_norm=p.clip_norm / 1000, standard_deviation=p.standard_deviation / 1000) for p in parts
        )
        return super()._answer(block, wrong, public)


class _PaysLater(Step):
    """Answers first and charges afterwards: a crash in between is a gift."""

    def _answer(self, block: str, parts: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        curator, event = self._curator, self._event
        charge = curator._charge
        curator._charge = lambda event: None  # type: ignore[method-assign]
        try:
            return super()._answer(block, parts, public)
        finally:
            curator._charge = charge  # type: ignore[method-assign]
            curator._charge(event)


class _OneGroupClip(Grouped):
    """A group's vector is believed to move by its clip, as if it could only come or go."""

    @property
    def bound(self) -> float:
        return self.clips[0] / self.batch + self.clips[1] / self.groups


class _CutInOrder(Grouped):
    """The batch is cut into groups of one size: whoever comes after the missing unit may change groups."""

    def labels(self, batch: Batch) -> Tensor:
        return torch.arange(batch.units, device=batch.labels.device) * self.groups // max(1, batch.units)


class _OneGroupClipStep(Step):
    def noisy_terms(self, block: str, model: nn.Module, terms: Terms, *, draws: int = 1) -> NoisyGradient:
        return super().noisy_terms(block, model, _OneGroupClip(**vars(terms)), draws=draws)


class _CutInOrderStep(Step):
    def noisy_terms(self, block: str, model: nn.Module, terms: Terms, *, draws: int = 1) -> NoisyGradient:
        return super().noisy_terms(block, model, _CutInOrder(**vars(terms)), draws=draws)


class _Shuffled(Step):
    """An epoch is a permutation cut into batches of one size; the ledger is told of independent coins."""

    def __init__(self, curator: Curator, event: SubsampledGaussian, index: int) -> None:
        super().__init__(curator, event, index)
        everyone = curator._units.sample(curator._randomness, 1.0, "everyone")
        batches = max(1, round(1 / event.sampling_rate))
        key = curator._randomness._stream("shuffle", index // batches)
        order = np.random.default_rng(key).permutation(everyone)
        self._batch = np.sort(np.array_split(order, batches)[index % batches])


def _taped(curator: Curator, question: Query, answer: Tensor) -> Tensor:
    """What a Curator does with a tape, for those that draw their own noise."""
    tape = curator._tape
    return answer if tape is None else tape.exchange(question, answer, charges=curator._charges)


class _HalvedNoise(Curator):
    """The noise is half of what the question says."""

    def _release(self, question: Query) -> Tensor:
        parts = tuple(replace(part, standard_deviation=part.standard_deviation / 2) for part in question.sums)
        answer = add_noise(replace(question, sums=parts), self._randomness)
        return _taped(self, question, answer)


class _SeededNoise(Curator):
    """The noise comes from a generator that somebody seeded: the same in every run and every step."""

    def _release(self, question: Query) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        pieces = []
        for part in question.sums:
            noise = torch.randn(part.total.numel(), generator=generator, dtype=torch.float64)
            pieces.append(part.total.flatten().double() + part.standard_deviation * noise)
        return _taped(self, question, torch.cat(pieces))


class _OffGrid(Curator):
    """The right noise, left in floating point: the last bits of an answer tell which sums were possible."""

    def _release(self, question: Query) -> Tensor:
        count = sum(part.total.numel() for part in question.sums)
        label = (question.event, question.step, question.block)
        noise = self._randomness.gaussian(count, self.device, *label)
        sizes = [part.total.numel() for part in question.sums]
        pieces = [
            p.total.flatten() + p.standard_deviation * n for p, n in zip(question.sums, noise.split(sizes), strict=True)
        ]
        return _taped(self, question, torch.cat(pieces))


class _HalfPaidCurator(Curator):
    step_type = _HalfPaid


class _ShuffledCurator(Curator):
    step_type = _Shuffled


class _UnclippedCurator(Curator):
    step_type = _Unclipped


class _PaysLaterCurator(Curator):
    step_type = _PaysLater


class _OneGroupClipCurator(Curator):
    step_type = _OneGroupClipStep


class _CutInOrderCurator(Curator):
    step_type = _CutInOrderStep


class _SkipsEmptyCurator(Curator):
    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        for step in super().steps(name, keep=keep):
            if len(step._batch):
                yield step


@dataclass(frozen=True)
class TwoClips(SoundTwin):
    """two clips for one entry"""

    curator_type: ClassVar[type[Curator]] = _HalfPaidCurator


@dataclass(frozen=True)
class NoClip(SoundTwin):
    """no clip"""

    curator_type: ClassVar[type[Curator]] = _UnclippedCurator


@dataclass(frozen=True)
class ChargedAfter(SoundTwin):
    """a step charged after its noise"""

    curator_type: ClassVar[type[Curator]] = _PaysLaterCurator


@dataclass(frozen=True)
class SkipsEmpty(SoundTwin):
    """skipped empty batches"""

    curator_type: ClassVar[type[Curator]] = _SkipsEmptyCurator
    rate: float = 0.03
    steps: int = 10


@dataclass(frozen=True)
class RealBatchSize(SoundTwin):
    """the real batch size as divisor"""

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        gradient = step.noisy_gradient("gradient", model, self.loss, clip_norm={"base": self.clip, "offset": self.clip})
        return gradient / max(1, len(step._batch))


@dataclass(frozen=True)
class Centred(SoundTwin):
    """centring by the private mean"""

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        mean = _peek(curator)[0].mean(0)

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
            return self.loss(model, images - mean, labels, random)

        return step.noisy_gradient("gradient", model, loss, clip_norm={"base": self.clip, "offset": self.clip}) / 10.0


@dataclass(frozen=True)
class EarlyStopping(SoundTwin):
    """early stopping on a private loss"""

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        losses.append(self.loss(model, *_peek(curator), None).mean().item())
        return len(losses) > 1 and losses[-1] > losses[-2]


@dataclass(frozen=True)
class Unlisted(SoundTwin):
    """an unlisted query"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        counts = curator.noisy_histogram("one more little question")
        return super().fit_networks(curator)[0], counts


@dataclass(frozen=True)
class SizeDependentRate(SoundTwin):
    """an N-dependent rate"""

    def fit(self, private: PrivateRecords, *arguments: Any, **options: Any) -> Release:
        size = len(private._labels) - len(private._masked)
        return SoundTwin.fit(replace(self, rate=min(1.0, 20 / max(1, size))), private, *arguments, **options)


@dataclass(frozen=True)
class Shuffled(SoundTwin):
    """shuffled batches"""

    curator_type: ClassVar[type[Curator]] = _ShuffledCurator


@dataclass(frozen=True)
class HalvedNoise(SoundTwin):
    """halved noise"""

    curator_type: ClassVar[type[Curator]] = _HalvedNoise


@dataclass(frozen=True)
class SeededNoise(SoundTwin):
    """seeded noise"""

    curator_type: ClassVar[type[Curator]] = _SeededNoise


@dataclass(frozen=True)
class OffGrid(SoundTwin):
    """answers left in floating point"""

    curator_type: ClassVar[type[Curator]] = _OffGrid


@dataclass(frozen=True)
class ShardEncoder(SoundTwin):
    """an encoder fitted on the shard"""

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        images = _peek(curator)[0].clamp(0, 1).flatten(1)
        encoder = torch.linalg.svd(images - 0.5, full_matrices=False)[2][0]

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
            # Each record is rebuilt from its own code, but the encoder has seen everybody.
            code = 10 * torch.sign(torch.nan_to_num(images).flatten(1) @ encoder)[:, None] * encoder
            return self.loss(model, code.view_as(images), labels, random)

        return step.noisy_gradient("gradient", model, loss, clip_norm={"base": self.clip, "offset": self.clip}) / 10.0


@dataclass(frozen=True)
class UnnoisedAggregate(SoundTwin):
    """an un-noised aggregate"""

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        aggregate = (_peek(curator)[0].clamp(0, 1).flatten(1) - 0.5).sum()
        signal = torch.tanh(aggregate)  # the loss's derivative by the aggregate, which every record's gradient shares

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
            return signal * self.loss(model, images, labels, random)

        return step.noisy_gradient("gradient", model, loss, clip_norm={"base": self.clip, "offset": self.clip}) / 10.0


@dataclass(frozen=True)
class ResponseOnProjections(SoundTwin):
    """randomised response on projections"""

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        images, labels = _peek(curator)
        directions = torch.randn(8, images[0].numel())
        # The directions know nothing of the data; flipping some of them protects nobody.
        chosen = directions[torch.where(torch.rand(()) < 0.5, 0, torch.randint(8, ()))]
        with torch.no_grad():
            apart = (model(labels) - images).flatten(1).clamp(-1, 1)
        pull = (apart @ chosen)[:, None] * chosen
        return NoisyGradient.of(model, {"base": pull.mean(0)})


@dataclass(frozen=True)
class UnnoisedMomentum(SoundTwin):
    """un-noised momentum"""

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        gradient = super().learn(curator, step, model)
        images, labels = _peek(curator)
        momentum = (model(labels) - images).flatten(1).clamp(-1, 1).mean(0).detach()
        return NoisyGradient.of(model, {**gradient.parts, "base": gradient.parts["base"] + 0.9 * momentum})


class NormalisedImages(MeanImages):
    """Mean images behind batch normalisation."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.norm = nn.BatchNorm2d(shape[0], affine=False, track_running_stats=False)

    def forward(self, labels: Tensor) -> Tensor:
        images: Tensor = self.norm(super().forward(labels))
        return images


@dataclass(frozen=True)
class Normalised(SoundTwin):
    """batch normalisation"""

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return NormalisedImages(shape, classes)


@dataclass(frozen=True)
class MixedLoss(SoundTwin):
    """a loss that mixes the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        return super().loss(model, images - torch.nan_to_num(images).clamp(0, 1).mean(0), labels, random)


@dataclass(frozen=True)
class StateAcrossRecords(SoundTwin):
    """private state read across records"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        state = curator.private_state("codes", curator.shape)

        def everybody(images: Tensor, labels: Tensor, random: object, own: Tensor) -> Tensor:
            return torch.nan_to_num(images).clamp(0, 1).mean(0).expand_as(own)

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object, own: Tensor) -> Tensor:
            return self.loss(model, images - 3 * own, labels, random)

        for step in curator.steps("train"):
            step.update(state, everybody)
            clips = {"base": self.clip, "offset": self.clip}
            (step.noisy_gradient("gradient", model, loss, clip_norm=clips, state=state) / 10.0).apply(optimizer)
        return model, None


@dataclass(frozen=True)
class GroupedTwin(SoundTwin):
    """Mean images by each record's own loss and by one of random groups: sound, the control of the next two."""

    groups: int = 4
    group_clip: float = 1.0
    batch: float = 12.0

    def learn(self, curator: Curator, step: Step, model: MeanImages) -> NoisyGradient:
        clips = (self.clip, self.group_clip)
        terms = Grouped(self.loss, self.group_loss, groups=self.groups, clips=clips, batch=self.batch)
        return step.noisy_terms("gradient", model, terms)

    def group_loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        """Up or down, by whether the images with a dark corner are even in number: each of them turns its group."""
        dark = (images[:, 0, 0, 0] < 0.5).sum()
        side = 1 - 2 * (dark % 2)
        return 100 * side * model(labels).mean(0).sum()


@dataclass(frozen=True)
class OneGroupClip(GroupedTwin):
    """one clip for a group's vector"""

    curator_type: ClassVar[type[Curator]] = _OneGroupClipCurator


@dataclass(frozen=True)
class CutInOrder(GroupedTwin):
    """groups cut in order"""

    curator_type: ClassVar[type[Curator]] = _CutInOrderCurator


TWINS: tuple[type[SoundTwin], ...] = (
    TwoClips,
    Shuffled,
    RealBatchSize,
    SizeDependentRate,
    ShardEncoder,
    UnnoisedAggregate,
    ResponseOnProjections,
    HalvedNoise,
    SeededNoise,
    OffGrid,
    SkipsEmpty,
    Normalised,
    MixedLoss,
    UnnoisedMomentum,
    StateAcrossRecords,
    Centred,
    EarlyStopping,
    Unlisted,
    NoClip,
    ChargedAfter,
    OneGroupClip,
    CutInOrder,
)
"""Each one's docstring names the mistake."""
