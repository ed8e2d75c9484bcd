"""Train and evaluate several certified methods on the same data, with the same sampler, accountant and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.experiments.runner import Progress, Task, begin, ignore, run_tasks
from sfumato.experiments.spec import Conditions, DataSpec, EvaluationSpec, TrainingSpec
from sfumato.experiments.training import Baselines, Trial

if TYPE_CHECKING:
    from sfumato.data.holdout import HoldOut
    from sfumato.data.images import Options
    from sfumato.methods import Method
    from sfumato.privacy.budget import Unit

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.

_HOLD_OUT = "hold_out.json"
_DEFAULTS: dict[str, Any] = {"labelled": True, "unlabelled": "refuse", "skip_bad": False, "internal": False}


def chosen_methods(names: str, settings: Iterable[str] = ()) -> list[Method]:
    """Configured methods: each registered one in its first certified form (``all``), or those that are named.

    Args:
        names: ``all``, or names with commas between; ``NAME:VARIANT`` for a variant.
        settings: ``key=value`` for every method that has the parameter, ``method.key=value`` for one.
    """
    from sfumato.methods import METHODS, find

    wanted = []
    for name in METHODS if names == "all" else [part.strip() for part in names.split(",")]:
        base, variant = _method_and_variant(name)
        certified = find(base).certified_variants()
        if variant and variant not in certified:
            listed = ", ".join(certified) or "none"
            raise ValueError(f"{base} has no certified variant {variant!r}; it has {listed}. Only these are compared")
        if certified:
            wanted.append((base, variant or certified[0]))
    values: dict[str, dict[str, str]] = {base: {} for base, _ in wanted}
    for setting in settings:
        key, separator, value = (part.strip() for part in setting.partition("="))
        if not separator:
            raise ValueError(f"--set takes key=value or method.key=value, not {setting!r}")
        owner, dot, own_key = key.rpartition(".")
        takers = [owner] if dot else [base for base, _ in wanted if key in find(base)().parameters()]
        if not takers or takers[0] not in values:
            raise ValueError(f"--set {key}: none of the compared methods ({', '.join(values)}) takes it")
        for taker in takers:
            values[taker][own_key] = value
    return [find(base).configured({"variant": variant, **values[base]}) for base, variant in wanted]


def _method_and_variant(name: str) -> tuple[str, str]:
    """``dp-lflow:conditional`` and ``module:Class:variant`` in two; without a variant it is empty."""
    from sfumato.methods import METHODS

    parts = name.split(":")
    module = parts[0] not in METHODS and parts[0].replace(".", "").isidentifier()
    return ":".join(parts[: 1 + module]), ":".join(parts[1 + module :])


def comparison_hold_out(share: float | None, out: Path, *, unit: Unit | None) -> HoldOut | None:
    """How units are held out to test on: as the comparison in ``out`` began with, or by a fresh key."""
    from sfumato.data.holdout import HoldOut

    if share is None:
        return None
    kept = out / _HOLD_OUT
    return HoldOut.load(kept) if kept.exists() else HoldOut.drawn(share, unit=unit)


def comparison_conditions(
    data: Path,
    *,
    out: Path,
    test: Path | None,
    division: HoldOut | None,
    evaluation: EvaluationSpec,
    device: str,
    delta: float,
    unit: str | None,
    options: Options,
) -> Conditions:
    """The conditions of a comparison. The images are read once, so that bad ones are refused before ``out`` is begun.

    Without ``unit`` a person is protected where the collection names persons.
    """
    from sfumato.data.holdout import check_test_part, read_train_and_test

    if division is None and test is None:
        check_test_part(data)
    reading = options.copy()
    reading.pop("split", None)
    train, _ = read_train_and_test(data, test, hold_out=division, **reading)
    given = {key: value for key, value in reading.items() if value != _DEFAULTS.get(key) and key != "progress"}
    if reading.get("person_file") is not None:
        given["person_file"] = str(Path(str(reading["person_file"])).resolve())
    if unit == "person" and train.persons is None:
        raise ValueError(
            "the guarantee is to hold per person, but the collection names no persons: "
            "use --person-column, --persons or --person-pattern"
        )
    if unit is None:
        unit = "image" if train.persons is None else "person"
    source = DataSpec(data.resolve().name, data, test, given, hold_out=None if division is None else out / _HOLD_OUT)
    return Conditions(source, (evaluation,), device, out, delta, unit)


def comparison_trainings(methods: Sequence[Method], budgets: Sequence[float], *, seeds: int) -> list[TrainingSpec]:
    """All trainings, the first of every method and ε before the second of any."""
    return [
        TrainingSpec(method, epsilon, number) for number in range(seeds) for epsilon in budgets for method in methods
    ]


def planned_epsilon(trainings: Sequence[TrainingSpec], delta: float) -> float:
    """What all runs will cost together; a budget that cannot be met is refused here, before anything is touched."""
    from sfumato.experiments.compare import composed_epsilon
    from sfumato.privacy import Budget

    plans = {
        (one.name, one.epsilon): one.method.plan(Budget(one.epsilon, delta)) for one in trainings if not one.number
    }
    return composed_epsilon([event for one in trainings for event in plans[one.name, one.epsilon].events], delta)


def run_comparison(
    trainings: Sequence[TrainingSpec],
    conditions: Conditions,
    *,
    division: HoldOut | None = None,
    jobs: int | None = None,
    report: Callable[[Progress], None] = ignore,
) -> dict[str, str]:
    """Run what is not finished, ``jobs`` processes at a time or in this one; the reason for each run that failed."""
    data = conditions.data
    paths = {"path": str(data.train.resolve()), "test": None if data.test is None else str(data.test.resolve())}
    share = None if division is None else division.share
    begin(conditions.out, {**conditions.facts(), **paths, "hold_out": share}, what="comparison")
    if division is not None and data.hold_out is not None and not data.hold_out.exists():
        division.save(data.hold_out)
    tasks: list[Task] = [Baselines(conditions), *(Trial(training, conditions) for training in trainings)]
    return run_tasks(tasks, jobs=jobs or 1, in_process=jobs is None, report=report)
