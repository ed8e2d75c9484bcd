"""An entry laid out on a machine: which trainings it takes, and where the numbers of each row will be found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from sfumato.experiments.papers.collection import DatasetLocator, LocatedDataset
from sfumato.experiments.papers.experiments import Experiment
from sfumato.experiments.papers.measures import MEASURES, PROTOCOL
from sfumato.experiments.papers.scale import Scale
from sfumato.experiments.papers.specification import Case, Entry, Setting
from sfumato.experiments.processes import Task
from sfumato.experiments.trial import BASELINES, Baselines, Cell, Look, Terms, Trial


@dataclass(frozen=True)
class Row:
    """One setting in one case. ``cells`` are its trainings, one look at each; a row without cells is not run here."""

    case: Case
    place: int
    setting: Setting
    found: LocatedDataset | None = None
    terms: Terms | None = None
    cells: tuple[Cell, ...] = ()
    look: Look = field(default_factory=Look)
    experiments: tuple[Experiment, ...] = ()

    @property
    def files(self) -> list[Path]:
        """Where the numbers of each training are written."""
        if self.terms is None:
            return [experiment.file for experiment in self.experiments]
        if self.setting.baseline:
            return [self.terms.out / BASELINES]
        return [cell.folder(self.terms.out) / "internal" / self.look.file for cell in self.cells]


@dataclass(frozen=True)
class Layout:
    """All rows, and the tasks that fill them."""

    rows: tuple[Row, ...]
    tasks: tuple[Task, ...]


def lay_out(
    entry: Entry, *, shelf: DatasetLocator, scale: Scale, out: Path, device: str, inception_head: Path | None = None
) -> Layout:
    """A row that needs what is not there is an error; what nobody has built is a row without numbers of ours."""
    if entry.experiment:
        return _experiments(entry, scale, out)
    rows: list[Row] = []
    named: dict[tuple[Path, str, float], str] = {}
    for case, place, setting in entry.rows():
        if setting.missing or not (setting.method or setting.baseline):
            rows.append(Row(case, place, setting))
            continue
        found = _found(shelf, case.data)
        terms = replace(_terms(entry, case, found, scale, out, device), inception_head=inception_head)
        if setting.baseline:
            rows.append(Row(case, place, setting, found, terms))
            continue
        public = {"public": str(_found(shelf, setting.public).train)} if setting.public else {}
        here = replace(case, data=found.collection.name)
        method = scale.method(setting, here, **public)
        epsilon = setting.budget(case.epsilon)
        # Settings that differ only in how they draw share a training, which is called after the first of them.
        name = named.setdefault((terms.out, repr(method), epsilon), setting.name)
        sampling = setting.drawn_on(here)
        look = Look(setting.name, sampling) if sampling else Look()
        cells = tuple(Cell(method, epsilon, number, name) for number in range(scale.trainings))
        rows.append(Row(case, place, setting, found, terms, cells, look))
    return Layout(tuple(rows), _tasks(rows, entry, baselines=scale.name == "full"))


def _found(shelf: DatasetLocator, name: str) -> LocatedDataset:
    found = shelf.find(name)
    if found is None:
        raise FileNotFoundError(
            f"{name} is not in {shelf.folder}; give the data folder or the collection: --data FOLDER or "
            f"--data {name}=PATH"
        )
    return found


def _terms(entry: Entry, case: Case, found: LocatedDataset, scale: Scale, out: Path, device: str) -> Terms:
    records = scale.records_of(case)
    part = "" if case.records is None else f"-{case.records}"
    return Terms(
        data=found.train,
        test=found.test,
        options=dict(found.collection.options),  # type: ignore[arg-type]
        delta=entry.delta,
        unit="image",
        protocol=entry.protocol,
        images=scale.images,
        feature_images=scale.feature_images,
        with_inception=scale.inception,
        device=device,
        out=out / f"{found.collection.name}{part}",
        records=records,
        test_records=scale.records,
    )


def _tasks(rows: list[Row], entry: Entry, *, baselines: bool) -> tuple[Task, ...]:
    """Each training once, with all looks at it; baselines once for each collection, always or where a row asks."""
    measures = tuple(MEASURES[name] for name in entry.measures if name != PROTOCOL)
    by_protocol = PROTOCOL in entry.measures
    tasks: dict[Path, Task] = {}
    for row in rows:
        if row.terms is None:
            continue
        if by_protocol and (baselines or row.setting.baseline):
            tasks.setdefault(row.terms.out, Baselines(row.terms))
        for cell in row.cells:
            folder = cell.folder(row.terms.out)
            known = tasks.get(folder)
            looks = known.looks if isinstance(known, Trial) else ()
            looks = looks if row.look in looks else (*looks, row.look)
            tasks[folder] = Trial(cell, row.terms, looks, measures, by_protocol)
    return tuple(tasks.values())


def _experiments(entry: Entry, scale: Scale, out: Path) -> Layout:
    rows = []
    for case, place, setting in entry.rows():
        number = 0 if setting.missing else scale.trainings
        work = tuple(Experiment(entry.experiment, setting, case, scale.name, run, out) for run in range(number))
        rows.append(Row(case, place, setting, experiments=work))
    return Layout(tuple(rows), tuple(task for row in rows for task in row.experiments))
