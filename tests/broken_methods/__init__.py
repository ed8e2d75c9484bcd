"""Broken methods: a sound control method and what becomes of it when a known mistake is made. An audit must find each.

Many of them read private attributes on purpose: Python cannot stop an author from doing so, so an audit has to notice.
"""

from __future__ import annotations

from dataclasses import dataclass

from broken_methods import (
    kept_batches,
    kept_indirectly,
    leaking_values,
    mixed_rows,
    private_choices,
    python_numbers,
    side_outputs,
    sizes_and_noise,
    unprobed_steps,
)
from broken_methods.batch_mixing import MixedLoss, Normalised, StateAcrossRecords
from broken_methods.controls import ControlMethod, GroupControlMethod, MeanImages
from broken_methods.raw_reads import (
    Centred,
    EarlyStopping,
    RealBatchSize,
    ResponseOnProjections,
    ShardEncoder,
    SizeDependentRate,
    Unlisted,
    UnnoisedAggregate,
    UnnoisedMomentum,
)
from broken_methods.sound_variations import CONTROLS
from broken_methods.wrong_groups import CutInOrder, OneGroupClip
from broken_methods.wrong_mechanism import (
    ChargedAfter,
    HalvedNoise,
    NoClip,
    OffGrid,
    SeededNoise,
    Shuffled,
    SkipsEmpty,
    TwoClips,
)

BROKEN_METHODS: tuple[type[ControlMethod], ...] = (
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
"""The docstring of each names the mistake."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in two forms: written in the loss (or the training loop) itself, and in a helper that it calls."""

    name: str
    direct: type[ControlMethod]
    in_helper: type[ControlMethod]

    @property
    def forms(self) -> dict[str, type[ControlMethod]]:
        return {"direct": self.direct, "in a helper": self.in_helper}


_PAIRS: tuple[tuple[type[ControlMethod], type[ControlMethod]], ...] = (
    *mixed_rows.MISTAKES,
    *kept_batches.MISTAKES,
    *kept_indirectly.MISTAKES,
    *python_numbers.MISTAKES,
    *side_outputs.MISTAKES,
    *private_choices.MISTAKES,
    *sizes_and_noise.MISTAKES,
    *unprobed_steps.MISTAKES,
    *leaking_values.MISTAKES,
)
MISTAKES = tuple(Mistake((direct.__doc__ or "").strip(), direct, helper) for direct, helper in _PAIRS)
CONTROL_METHODS: tuple[type[ControlMethod], ...] = (ControlMethod, GroupControlMethod, *CONTROLS)

__all__ = [
    "BROKEN_METHODS",
    "CONTROL_METHODS",
    "MISTAKES",
    "Centred",
    "ChargedAfter",
    "ControlMethod",
    "CutInOrder",
    "EarlyStopping",
    "GroupControlMethod",
    "HalvedNoise",
    "MeanImages",
    "Mistake",
    "MixedLoss",
    "NoClip",
    "Normalised",
    "OffGrid",
    "OneGroupClip",
    "RealBatchSize",
    "ResponseOnProjections",
    "SeededNoise",
    "ShardEncoder",
    "Shuffled",
    "SizeDependentRate",
    "SkipsEmpty",
    "StateAcrossRecords",
    "TwoClips",
    "Unlisted",
    "UnnoisedAggregate",
    "UnnoisedMomentum",
]
