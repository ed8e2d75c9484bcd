"""Sums of per-example clipped gradients: ``clipped_sum(model, loss, batch, clip_norm)``."""

import os

# Intel's MKL chooses instructions by the alignment of each row in memory, so that equal rows of a product may differ in
# their last bit. Its reproducible mode does not. Read by MKL at its first call, so it is set on import.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

from sfumato.privacy.gradients.batch import Batch, Clip, Compressed, Loss, NoisyGradient, PerClass, groups_of
from sfumato.privacy.gradients.engine import GradientSum, check, check_rows, check_shards, clipped_sum
from sfumato.privacy.gradients.one_row import UnsupportedModel
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.terms import Coupled, Grouped

__all__ = [
    "Batch",
    "Clip",
    "Compressed",
    "Coupled",
    "GradientSum",
    "Grouped",
    "Loss",
    "NoisyGradient",
    "PerClass",
    "Performance",
    "UnsupportedModel",
    "check",
    "check_rows",
    "check_shards",
    "clipped_sum",
    "groups_of",
]
