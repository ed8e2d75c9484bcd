"""Full: the paper's size. Small: seconds to minutes on a CPU, a check that the entry runs; it reproduces nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sfumato.evaluation.protocols import protocol_named
from sfumato.experiments.papers.entries import Case, Entry, Setting, small
from sfumato.methods import Method
from sfumato.methods import find as find_method

SCALES = ("small", "full")
REPETITIONS = ("steps", "iterations", "published_iterations", "classifier_steps", "encoder_steps", "public_iterations")


@dataclass(frozen=True)
class Scale:
    """How much of everything. ``records`` is the most that a dataset may have; ``None`` takes all."""

    name: str
    records: int | None
    images: int
    trainings: int
    feature_images: int | None
    inception: bool

    @classmethod
    def of(cls, name: str, entry: Entry) -> Scale:
        """The scale of that name for an entry."""
        if name == "full":
            count = protocol_named(entry.protocol).synthetic_count
            return cls(name, None, count, entry.trainings, None, True)
        if name != "small":
            raise ValueError(f"--scale is one of {', '.join(SCALES)}, not {name!r}")
        found = small()
        return cls(name, found.records, found.images, found.trainings, found.images, False)

    def records_of(self, case: Case) -> int | None:
        """The number of training records in a case; ``None`` for all."""
        given = [number for number in (self.records, case.records) if number is not None]
        return min(given) if given else None

    def method(self, setting: Setting, case: Case, **more: Any) -> Method:
        """The setting's method for a case; at the small scale the parameters that take time are limited."""
        method = find_method(setting.method).configured({**setting.trained_on(case), **more})
        # What the entry compares is kept, so that a sweep over widths remains one.
        return limited(method, keep=setting.varied(case)) if self.name == "small" else method


def limited(method: Method, *, keep: Collection[str] = ()) -> Method:
    """The method with the parameters that take time limited; of those in ``keep`` only numbers of steps are."""
    parameters = {**method.parameters(), **small().instead.get(method.name, {})}
    for key, most in small().most.get(method.name, {}).items():
        if key not in keep or key in REPETITIONS:
            parameters[key] = min(parameters[key], most)
    return type(method).configured(parameters)
