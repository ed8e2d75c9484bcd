"""Sums of per-example clipped gradients: ``clipped_sum(model, loss, batch, clip)``."""

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.groups import Clip, groups_of
from sfumato.privacy.gradients.loop import clipped_sum

__all__ = ["Batch", "Clip", "Loss", "clipped_sum", "groups_of"]
