"""Broken methods: a sound control method and what becomes of it when a known mistake is made. An audit must find each.

Many of them read private attributes on purpose: Python cannot stop an author from doing so, so an audit has to notice.
"""

from __future__ import annotations

from sfumato.audit.broken_methods.batch_mixing import MixedLoss, Normalised, StateAcrossRecords
from sfumato.audit.broken_methods.controls import ControlMethod, GroupControlMethod, MeanImages
from sfumato.audit.broken_methods.raw_reads import (
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
from sfumato.audit.broken_methods.wrong_groups import CutInOrder, OneGroupClip
from sfumato.audit.broken_methods.wrong_mechanism import (
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

__all__ = [
    "BROKEN_METHODS",
    "Centred",
    "ChargedAfter",
    "ControlMethod",
    "CutInOrder",
    "EarlyStopping",
    "GroupControlMethod",
    "HalvedNoise",
    "MeanImages",
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
