"""Broken methods with losses of several records: wrong bounds for groups, wrong ways of forming them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from broken_methods.controls import GroupControlMethod
from sfumato.privacy import Curator, NoisyGradient, Step
from sfumato.privacy.gradients import Batch
from sfumato.privacy.gradients.terms import Grouped, Terms


class _OneGroupClip(Grouped):
    """The bound counts one clip for a group's vector, as if a record could only add or remove the vector."""

    @property
    def bound(self) -> float:
        return self.clip_norms[0] / self.batch + self.clip_norms[1] / self.groups


class _CutInOrder(Grouped):
    """The batch is cut in order: every unit after the removed one may change its group."""

    def labels(self, batch: Batch) -> Tensor:
        return torch.arange(batch.units, device=batch.labels.device) * self.groups // max(1, batch.units)


class _OneGroupClipStep(Step):
    def noisy_terms(self, block: str, model: nn.Module, terms: Terms, *, draws: int = 1) -> NoisyGradient:
        return super().noisy_terms(block, model, _OneGroupClip(**vars(terms)), draws=draws)


class _CutInOrderStep(Step):
    def noisy_terms(self, block: str, model: nn.Module, terms: Terms, *, draws: int = 1) -> NoisyGradient:
        return super().noisy_terms(block, model, _CutInOrder(**vars(terms)), draws=draws)


class _OneGroupClipCurator(Curator):
    step_type = _OneGroupClipStep


class _CutInOrderCurator(Curator):
    step_type = _CutInOrderStep


@dataclass(frozen=True)
class OneGroupClip(GroupControlMethod):
    """one clip for a group's vector"""

    curator_type: ClassVar[type[Curator]] = _OneGroupClipCurator


@dataclass(frozen=True)
class CutInOrder(GroupControlMethod):
    """groups cut in order"""

    curator_type: ClassVar[type[Curator]] = _CutInOrderCurator
