"""Run the tasks of an experiment, several at a time, each in a process of its own; finished tasks are not run again."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from sfumato.evaluation.protocols import protocol_named
from sfumato.experiments.datasets import DatasetLocator
from sfumato.experiments.gather import Evaluated, result_row
from sfumato.experiments.papers.entries import limited
from sfumato.experiments.results import ResultSet, provenance
from sfumato.experiments.spec import (
    REAL,
    Conditions,
    EvaluationSpec,
    ExperimentSpec,
    SamplingVariant,
    TrainingSpec,
    VariantSpec,
)
from sfumato.experiments.training import Baselines, Trial
from sfumato.files import private_folder, write_json

FACTS = "conditions.json"
# Everything a training or an evaluation imports: the processes of the pool are copies of one that has it loaded.
_PRELOADED = ["sfumato.methods", "sfumato.evaluation.evaluate", "sklearn.linear_model", "torch._dynamo"]


class Task(Protocol):
    """Work that leaves its result in files that are written whole, so that a killed command can continue."""

    def finished(self) -> bool:
        """Whether its files are there."""

    def run(self) -> None:
        """Do the work."""


@dataclass(frozen=True)
class Progress:
    """One task is over: how many of how many, which one, and why it failed if it did."""

    done: int
    total: int
    task: str
    failure: str | None

    def __str__(self) -> str:
        ending = "" if self.failure is None else f" FAILED: {self.failure}"
        return f"{self.done} of {self.total}: {self.task}{ending}"


def ignore(progress: Progress) -> None:
    """Report nothing."""


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int,
    in_process: bool = False,
    keep_processes: bool = False,
    minutes: float | None = None,
    report: Callable[[Progress], None] = ignore,
) -> dict[str, str]:
    """Run what is not finished, ``jobs`` at a time.

    Args:
        tasks: In the order in which they start.
        jobs: Processes that share the device and the cores.
        in_process: Run one after another in this process.
        keep_processes: Let a process work on several tasks, which then read a dataset once. Their peak memory is no
            longer their own.
        minutes: Start no task after this time; what has started is finished.
        report: Called after every task.

    Returns:
        The reason for each task that failed or was not started.
    """
    left = [task for task in tasks if not task.finished()]
    deadline = None if minutes is None else time.time() + 60 * minutes
    failed: dict[str, str] = {}

    def note(task: Task, done: int, problem: BaseException | None) -> None:
        reason = None if problem is None else _reason(problem)
        if reason is not None:
            failed[str(task)] = reason
        report(Progress(done, len(left), str(task), reason))

    if in_process:
        for done, task in enumerate(left, start=1):
            try:
                _work(task, deadline)
            except Exception as problem:
                note(task, done, problem)
            else:
                note(task, done, None)
        return failed
    with _pool(max(1, min(jobs, len(left))), keep=keep_processes) as pool:
        futures: dict[Future[None], Task] = {pool.submit(_limited_work, task, deadline): task for task in left}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                note(futures[future], done, future.exception())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failed


def begin(out: Path, facts: Mapping[str, Any], *, what: str) -> None:
    """Start a folder with these facts, or continue in one that was started with the same."""
    path, written = out / FACTS, json.loads(json.dumps(facts))
    if path.exists():
        before = json.loads(path.read_text())
        changed = sorted(key for key in {*before, *written} if before.get(key) != written.get(key))
        if changed:
            raise ValueError(f"{out} holds a {what} with another {', '.join(changed)}; choose another --out")
        return
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty and holds no {what}; choose another --out")
    private_folder(out)
    write_json(path, written, private=True)


class NotStarted(Exception):
    """The time limit was reached before the task began."""


def _pool(jobs: int, *, keep: bool) -> ProcessPoolExecutor:
    # Batches differ in size; without this the free blocks of device memory do not fit the next one.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(
        jobs,
        mp_context=context,
        initializer=_stay_with_parent,
        initargs=(max(1, (os.cpu_count() or 1) // jobs),),
        # A new process for each task, so that its peak memory is its own.
        max_tasks_per_child=None if keep else 1,
    )


def _reason(problem: BaseException) -> str:
    lines = str(problem).splitlines() or [""]
    # The last line of many, which a traceback is, says most.
    return f"{type(problem).__name__}: {(lines[0] if len(lines) < 4 else lines[-1]).strip()}"


def _limited_work(task: Task, deadline: float | None) -> None:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _work(task, deadline)


def _work(task: Task, deadline: float | None) -> None:
    if deadline is not None and time.time() > deadline:
        raise NotStarted("the time limit was reached before it began; the same command continues here")
    task.run()


def _stay_with_parent(threads: int) -> None:
    """Few threads, and no life after the command's: a killed command must leave its ledgers unlocked."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()


REAL_ROW = "real training data"


@dataclass(frozen=True)
class Line:
    """One line of an experiment's result."""

    setting: str
    epsilon: float
    evaluated: Evaluated


@dataclass(frozen=True)
class Layout:
    """An experiment on this machine: its tasks, by number of the training, and the lines that they fill."""

    experiment: ExperimentSpec
    tasks: tuple[tuple[Task, ...], ...]
    lines: tuple[Line, ...]


def lay_out(experiment: ExperimentSpec, *, locator: DatasetLocator, out: Path, device: str) -> Layout:
    """All trainings of an experiment. A misspelt setting or a dataset that is not available is an error here."""
    rounds: list[list[Task]] = [[] for _ in range(experiment.trainings)]
    lines: list[Line] = []
    for data, epsilon, case in experiment.settings():
        conditions = _conditions(experiment, data, locator, out / experiment.name, device)
        if experiment.method == REAL:
            # Noise and halves of the real data would take three times as long again and are not in the result.
            rounds[0].append(Baselines(conditions, experiment.trainings, REAL_ROW))
            lines += [
                Line(REAL_ROW, math.inf, Evaluated(conditions, (), protocol=place, baseline=REAL_ROW))
                for place in range(len(conditions.evaluations))
            ]
            continue
        method, name = experiment.configured(case), experiment.setting_name(case)
        method = limited(method) if experiment.small else method
        trainings = tuple(TrainingSpec(method, epsilon, number, name) for number in range(experiment.trainings))
        for training in trainings:
            variants = _variants(experiment, data, training.number)
            trial = Trial(training, conditions, variants, experiment.measures, bool(experiment.protocols))
            rounds[training.number].append(trial)
        for variant in _variants(experiment, data, 0):
            setting = f"{name}, {variant.name}" if variant.name else name
            lines += [
                Line(setting, epsilon, Evaluated(conditions, trainings, variant, place))
                for place in range(len(conditions.evaluations))
            ]
    return Layout(experiment, tuple(tuple(tasks) for tasks in rounds), tuple(lines))


def in_order(layouts: list[Layout]) -> list[Task]:
    """The first training of every setting before the second of any."""
    most = max((len(layout.tasks) for layout in layouts), default=0)
    return [
        task
        for number in range(most)
        for layout in layouts
        for task in (layout.tasks[number] if number < len(layout.tasks) else ())
    ]


def gather(layout: Layout, *, command: str, device: str, failed: dict[str, str]) -> ResultSet:
    """What was measured so far."""
    found = [result_row(line.evaluated, setting=line.setting, epsilon=line.epsilon) for line in layout.lines]
    own = {str(task) for tasks in layout.tasks for task in tasks}
    return ResultSet(
        name=layout.experiment.name,
        title=layout.experiment.note,
        scale="small" if layout.experiment.small else "full" if layout.experiment.records is None else "part",
        provenance=provenance(command, device),
        rows=tuple(row for row in found if row is not None),
        failed={name: reason for name, reason in failed.items() if name in own},
    )


def changed(
    experiment: ExperimentSpec,
    *,
    trainings: int | None,
    images: int | None,
    records: int | None,
    parameters: dict[str, str],
    small: bool = False,
) -> ExperimentSpec:
    """The experiment with what the command line changes in it."""
    given = {"trainings": trainings, "images": images, "records": records}
    kept = {key: value for key, value in given.items() if value is not None}
    if small:
        kept |= {"small": True, "fid": 0}  # Inception's features of all real images take longer than everything else
    return replace(experiment, parameters={**experiment.parameters, **parameters}, **kept)  # type: ignore[arg-type]


def _conditions(experiment: ExperimentSpec, data: str, locator: DatasetLocator, out: Path, device: str) -> Conditions:
    spec = locator.require(data).spec(
        unit=experiment.unit, records=experiment.records, validation=experiment.validation
    )
    evaluations = tuple(
        EvaluationSpec(
            protocol=name,
            images=experiment.images or protocol_named(name).synthetic_count,
            feature_images=experiment.feature_images,
            inception_trainings=experiment.fid,
            classifiers=experiment.classifiers,
        )
        for name in experiment.protocols or ("sinkhorn",)
    )
    return Conditions(spec, evaluations, device, out / data, experiment.delta, experiment.unit)


def _variants(experiment: ExperimentSpec, data: str, number: int) -> tuple[SamplingVariant, ...]:
    def wanted(variant: VariantSpec) -> bool:
        return variant.trainings is None or number < variant.trainings

    own = (variant.on(data, name) for name, variant in experiment.variants.items() if wanted(variant))
    return (SamplingVariant(), *own)
