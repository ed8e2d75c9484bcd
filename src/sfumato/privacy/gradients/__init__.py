"""Sums of per-example clipped gradients: ``clipped_sum(model, loss, batch, clip_norm)``."""

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.engine import GradientSum, clipped_sum
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.groups import Clip, groups_of
from sfumato.privacy.gradients.per_class import PerClass
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.probe import check, check_rows, check_shards
from sfumato.privacy.gradients.sparsify import Compressed

__all__ = [
    "Batch",
    "Clip",
    "Compressed",
    "GradientSum",
    "Loss",
    "PerClass",
    "Performance",
    "UnsupportedModel",
    "check",
    "check_rows",
    "check_shards",
    "clipped_sum",
    "groups_of",
]
