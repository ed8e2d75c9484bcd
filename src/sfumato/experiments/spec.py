"""What is trained and measured, as frozen data: made by a command, by a paper's entry or read from a TOML file."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from sfumato.evaluation.protocols import Protocol, protocol_named
from sfumato.methods import Method, find
from sfumato.privacy import AnyBudget, Budget, NoGuarantee

REAL = "real"
"""In place of a method: classifiers trained on the real training images."""
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class DataSpec:
    """Where images are read from, how, and how many of them are used (all unless a number is given)."""

    name: str
    train: Path
    test: Path | None = None
    """``None`` where ``train`` holds both splits."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``sfumato.read``."""
    records: int | None = None
    test_records: int | None = None
    drawn: bool = False
    """Digits that are drawn in memory, without any file."""
    split: str = ""
    """How training and test images were divided, if that is known."""
    remark: str = ""
    """What differs from the dataset that was asked for."""
    hold_out: Path | None = None
    """The file that says which images are held out to test on, where there is no test part."""


@dataclass(frozen=True)
class EvaluationSpec:
    """A protocol and how much of it is measured.

    ``inception_trainings`` is the number of trainings of each setting whose FID and KID are measured (all if ``None``);
    ``classifiers`` names those of the protocol's classifiers that are trained (all if empty).
    """

    protocol: str
    images: int
    feature_images: int | None = None
    inception_trainings: int | None = None
    classifiers: tuple[str, ...] = ()

    def chosen_protocol(self) -> Protocol:
        found = protocol_named(self.protocol)
        if not self.classifiers:
            return found
        known = {spec.name for spec in found.classifiers}
        for name in self.classifiers:
            if name not in known:
                raise ValueError(f"protocol {self.protocol} has no classifier {name!r}; {hint(name, known)}")
        return replace(found, classifiers=tuple(spec for spec in found.classifiers if spec.name in self.classifiers))

    def with_inception(self, number: int) -> bool:
        """Whether FID and KID are measured for the training of this number."""
        return self.inception_trainings is None or number < self.inception_trainings


@dataclass(frozen=True)
class Conditions:
    """What the trainings in one folder share: data, δ, unit, evaluations (at least one), device."""

    data: DataSpec
    evaluations: tuple[EvaluationSpec, ...]
    device: str
    out: Path
    delta: float = 1e-5
    unit: str = "image"

    def facts(self) -> dict[str, Any]:
        """What may not change when the same command continues in a folder."""
        options = {key: list(value) if isinstance(value, tuple) else value for key, value in self.data.options.items()}
        first = self.evaluations[0]
        return {
            "data": self.data.name,
            "reading": options,
            "delta": self.delta,
            "unit": self.unit,
            "protocol": ", ".join(evaluation.protocol for evaluation in self.evaluations),
            "images": first.images,
            "feature_images": first.feature_images,
            "inception": first.inception_trainings != 0,
            "records": self.data.records,
            "test_records": self.data.test_records,
        }


@dataclass(frozen=True)
class TrainingSpec:
    """A configured method, an ε and the number of the repetition.

    ``setting`` names it among several configurations of one method.
    """

    method: Method
    epsilon: float
    number: int
    setting: str = ""

    @property
    def name(self) -> str:
        """The setting, or else the method with its variant."""
        return self.setting or method_label(self.method)

    def folder(self, out: Path) -> Path:
        return out / "runs" / slug(self.name) / f"epsilon-{self.epsilon:g}" / f"run-{self.number}"

    def budget(self, conditions: Conditions) -> AnyBudget:
        """``NoGuarantee`` for an algorithm that needs the raw records."""
        if self.method.raw_access:
            return NoGuarantee(unit=conditions.unit)  # type: ignore[arg-type]
        return Budget(self.epsilon, conditions.delta, conditions.unit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.name}, ε {self.epsilon:g}, run {self.number}"


@dataclass(frozen=True)
class SamplingVariant:
    """Another way to sample from a finished training: ``parameters`` are those that only sampling uses."""

    name: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def method_label(method: Method) -> str:
    """The method's name, with its variant where that is not the default one."""
    return method.name if method.variant == next(iter(method.variants)) else f"{method.name} {method.variant}"


def slug(name: str) -> str:
    """A name as part of a path."""
    return "-".join("".join(letter if letter.isalnum() or letter in "._" else " " for letter in name).split())


# Files of experiments


@dataclass(frozen=True)
class VariantSpec:
    """A sampling variant of an experiment, evaluated for the first ``trainings`` of each setting."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    parameters_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further parameters for single datasets."""
    trainings: int | None = None

    def on(self, dataset: str, name: str) -> SamplingVariant:
        return SamplingVariant(name, {**self.parameters, **self.parameters_on.get(dataset, {})})


@dataclass(frozen=True)
class ExperimentSpec:
    """A table of an experiment file: every case × ε × dataset is trained ``trainings`` times.

    ``method`` is a method's name or "real" (classifiers trained on real images). ``parameters`` are shared by all
    ``cases``. ``fid`` is the
    number of trainings of each setting whose FID and KID are measured; with no ``protocols`` only ``measures`` are.
    ``small`` limits networks and steps as the small scale of the papers' entries does.
    """

    name: str
    method: str
    data: tuple[str, ...]
    epsilon: tuple[float, ...] = ()
    delta: float = 1e-5
    unit: str = "image"
    trainings: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Mapping[str, Any], ...] = ({},)
    protocols: tuple[str, ...] = ("sinkhorn",)
    classifiers: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    variants: Mapping[str, VariantSpec] = field(default_factory=dict)
    images: int | None = None
    feature_images: int | None = None
    records: int | None = None
    fid: int = 0
    small: bool = False
    note: str = ""

    def settings(self) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
        for case in self.cases:
            for epsilon in self.epsilon or (0.0,):
                for data in self.data:
                    yield data, epsilon, case

    def setting_name(self, case: Mapping[str, Any]) -> str:
        return ", ".join([self.name, *(f"{key} {value}" for key, value in case.items())])

    def configured(self, case: Mapping[str, Any]) -> Method:
        return find(self.method).configured({**self.parameters, **case})


def read_experiments(path: Path, *, only: Iterable[str] = ()) -> list[ExperimentSpec]:
    """The experiments of a TOML file, or the named ones, in the order of the file."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in only:
        if name not in tables:
            raise LookupError(f"{path} has no experiment {name!r}; {hint(name, tables)}")
    chosen = set(only) or set(tables)
    return [_experiment(name, dict(table), path.name) for name, table in tables.items() if name in chosen]


def _experiment(name: str, table: dict[str, Any], file: str) -> ExperimentSpec:
    where = f"{file}, {name}"
    variants = {
        key: from_table(VariantSpec, found, f"{where}, variant {key}")
        for key, found in table.pop("variants", {}).items()
    }
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    return from_table(ExperimentSpec, {"name": name, "variants": variants, **lists}, where)


def from_table(kind: type[Kind], values: Mapping[str, Any], where: str) -> Kind:
    """A dataclass from a TOML table; an unknown key is an error that names the nearest known one."""
    known = {entry.name for entry in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: {kind.__name__} has no {key!r}; {hint(key, known)}")
    return kind(**values)


def hint(name: str, known: Iterable[str]) -> str:
    """The nearest known name, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))}"
