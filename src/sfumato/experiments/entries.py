"""The papers' tables and figures as data: cases × settings, what the paper prints, what is needed to run it."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from sfumato.evaluation.protocols import protocol_named
from sfumato.experiments.datasets import DatasetLocator, datasets
from sfumato.experiments.spec import from_table, hint
from sfumato.methods import METHODS, Method
from sfumato.methods import find as find_method
from sfumato.planning.costs import costs

PAPERS = ("dp2-vae", "privae", "dp-lflow", "dpaf", "dppm")


@dataclass(frozen=True)
class Value:
    """A number that a paper prints, with its deviation if it has one."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Case:
    """A dataset, the ε that the paper claims on it, and the number of records where it takes a subset."""

    data: str
    epsilon: float
    records: int | None = None


@dataclass(frozen=True)
class Setting:
    """One row of the table: a configured method, or numbers of others that the paper cites.

    ``parameters`` are those of the training; ``sampling`` only changes how images are sampled, and so shares the
    training of the setting without it. Both can be given for single datasets (``_on``), parameters also for a claimed ε
    (``_at``). ``budgets`` is the ε to train under where it is not the claimed one: a published noise costs what it
    costs. ``baseline`` is a row that every evaluation measures. ``paper`` gives, for each metric, one value for each
    case.
    """

    name: str
    method: str = ""
    variant: str = "certified"
    start: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the preset that it names."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    parameters_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parameters_at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    sampling_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    budgets: Mapping[str, float] = field(default_factory=dict)
    baseline: str = ""
    only_at: tuple[float, ...] = ()
    """The claimed ε of the cases that it belongs to; empty for all."""
    public: str = ""
    """A public dataset whose path becomes the method's parameter ``public``."""
    paper: Mapping[str, tuple[Value | None, ...]] = field(default_factory=dict)
    holds: str = ""
    """What to say of the ε that holds, where it is not that of the paper's own method."""
    missing: str = ""
    """Why it cannot be run: then only the paper's numbers are shown."""

    def trained_on(self, case: Case) -> dict[str, Any]:
        return {"variant": self.variant, **self.start, **self.varied(case), **self.parameters_on.get(case.data, {})}

    def varied(self, case: Case) -> dict[str, Any]:
        return {**self.parameters, **self.parameters_at.get(f"{case.epsilon:g}", {})}

    def sampled_on(self, case: Case) -> dict[str, Any]:
        return {**self.sampling, **self.sampling_on.get(case.data, {})}

    def budget(self, claimed: float) -> float:
        return self.budgets.get(f"{claimed:g}", claimed)


@dataclass(frozen=True)
class Figure:
    """A curve over the settings or over ε: ``x`` is 'epsilon', 'megabytes' or a parameter's name."""

    x: str
    y: str
    label: str = ""


@dataclass(frozen=True)
class Entry:
    """A table or a figure: every setting in every case."""

    name: str
    title: str
    protocol: str
    cases: tuple[Case, ...]
    settings: tuple[Setting, ...]
    delta: float = 1e-5
    trainings: int = 5
    measures: tuple[str, ...] = ("protocol",)
    shows: tuple[str, ...] = ()
    """Metrics to report where the paper prints no numbers."""
    computation: str = ""
    """For what is not a training of a registered method on images: the name of a function in ``computed``."""
    figure: Figure | None = None
    missing: str = ""
    note: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(setting.method for setting in self.settings if setting.method))

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(case.data for case in self.cases))

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that the paper prints, in order of appearance, and what is shown besides."""
        printed = (metric for setting in self.settings for metric in setting.paper)
        return tuple(dict.fromkeys((*printed, *self.shows)))

    def rows(self) -> Iterator[tuple[Case, int, Setting]]:
        """Case by case; the number is the case's place in a setting's list of values."""
        for place, case in enumerate(self.cases):
            for setting in self.settings:
                if not setting.only_at or case.epsilon in setting.only_at:
                    yield case, place, setting


@dataclass(frozen=True)
class Paper:
    """A paper's entries, and what its claimed ε are worth: ``holds`` by claimed ε, empty where no ε holds at all.

    ``presets`` are parameters that several settings start from.
    """

    key: str
    name: str
    citation: str
    reason: str
    entries: Mapping[str, Entry]
    holds: Mapping[str, float] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def epsilon_that_holds(self, claimed: float) -> float | None:
        return self.holds.get(f"{claimed:g}")


@dataclass(frozen=True)
class Small:
    """The small scale: how many records, images and trainings.

    For each method it also holds the largest values of some parameters, and replacements for others.
    """

    records: int
    images: int
    trainings: int
    most: Mapping[str, Mapping[str, float]]
    instead: Mapping[str, Mapping[str, Any]]


# Reading


@cache
def papers() -> dict[str, Paper]:
    """All papers by their key, in the order of the catalogue."""
    return {key: _paper(key, read_toml(f"{key}.toml")) for key in PAPERS}


@cache
def small() -> Small:
    """The limits of the small scale."""
    return from_table(Small, read_toml("small.toml"), "small.toml")


def find(paper: str, entry: str) -> tuple[Paper, Entry]:
    """An entry by name; a near miss is named."""
    known = papers()
    if paper not in known:
        raise LookupError(f"there is no paper {paper!r}; {hint(paper, known)}")
    if entry not in known[paper].entries:
        raise LookupError(f"{paper} has no entry {entry!r}; {hint(entry, known[paper].entries)}")
    return known[paper], known[paper].entries[entry]


def read_toml(name: str) -> dict[str, Any]:
    """The tables of a file of this package."""
    return tomllib.loads(files("sfumato.experiments").joinpath("papers", name).read_text(encoding="utf-8"))


def _paper(key: str, data: dict[str, Any]) -> Paper:
    presets = data.get("presets", {})
    entries = {name: _entry(f"{key} {name}", name, dict(table), presets) for name, table in data.pop("entries").items()}
    return from_table(Paper, {"key": key, "entries": entries, **data}, key)


def _entry(where: str, name: str, table: dict[str, Any], presets: Mapping[str, Any]) -> Entry:
    table["name"] = name
    table["cases"] = tuple(from_table(Case, case, where) for case in table["cases"])
    cases = len(table["cases"])
    table["settings"] = tuple(_setting(dict(found), where, cases, presets) for found in table["settings"])
    for key in ("measures", "shows"):
        if key in table:
            table[key] = tuple(table[key])
    if "figure" in table:
        table["figure"] = from_table(Figure, table["figure"], where)
    return from_table(Entry, table, where)


def _setting(table: dict[str, Any], where: str, cases: int, presets: Mapping[str, Any]) -> Setting:
    where = f"{where}, {table.get('name')}"
    preset = table.pop("preset", None)
    if preset is not None:
        if preset not in presets:
            raise ValueError(f"{where}: there is no preset {preset!r}; {hint(preset, presets)}")
        table["start"] = presets[preset]
    paper = {}
    for metric, values in table.get("paper", {}).items():
        if len(values) != cases:
            raise ValueError(f"{where}: {metric} has {len(values)} values for {cases} cases")
        paper[metric] = tuple(_value(value) for value in values)
    only_at = tuple(map(float, table.pop("only_at", ())))
    return from_table(Setting, {**table, "paper": paper, "only_at": only_at}, where)


def _value(value: Any) -> Value | None:
    """A number, [mean, deviation], or '-' where the paper prints nothing."""
    if value == "-":
        return None
    return Value(*map(float, value)) if isinstance(value, list) else Value(float(value))


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


@dataclass(frozen=True)
class Item:
    """One line of the list."""

    paper: str
    entry: str
    title: str
    data: list[str]
    methods: list[str]
    trainings: int
    rows: dict[str, int]
    """How many of its rows are made by the algorithm of the paper ("paper"), by a certified one ("certified"), and are
    only quoted ("quoted")."""
    seconds: float | None
    """Of the small scale, trainings and evaluations together, as they were measured on one core."""
    homes: list[str]
    """Where the data comes from."""
    status: str
    remarks: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def catalogue(locator: DatasetLocator) -> list[Item]:
    """All entries, in the papers' order."""
    return [_item(paper, entry, locator) for paper in papers().values() for entry in paper.entries.values()]


def _item(paper: Paper, entry: Entry, locator: DatasetLocator) -> Item:
    status, remarks = state(entry, locator)
    runnable = sum(1 for _, _, setting in entry.rows() if not setting.missing and (setting.method or entry.computation))
    used = [datasets()[name] for name in entry.datasets]
    return Item(
        paper=paper.key,
        entry=entry.name,
        title=entry.title,
        data=[one.title for one in used],
        methods=[*entry.methods] or ([entry.computation] if entry.computation else []),
        trainings=runnable * Scale.of("full", entry).trainings,
        rows=_kinds(entry),
        seconds=costs()["measured"].get(f"{paper.key} {entry.name}"),
        homes=list(dict.fromkeys(one.home for one in used if one.home)),
        status=status,
        remarks=remarks,
    )


def _kinds(entry: Entry) -> dict[str, int]:
    """The rows by how they are made; those that every evaluation measures are left out."""
    kinds = dict.fromkeys(("paper", "certified", "quoted"), 0)
    for setting in entry.settings:
        if setting.missing or not (setting.method or setting.baseline or entry.computation):
            kinds["quoted"] += 1
        elif setting.method in METHODS and setting.variant in find_method(setting.method).certified_variants():
            kinds["certified"] += 1
        elif not setting.baseline:
            kinds["paper"] += 1
    return kinds


def state(entry: Entry, locator: DatasetLocator) -> tuple[str, list[str]]:
    """Whether it can be run here, in a few words, and remarks on what is missing."""
    remarks = list(dict.fromkeys(setting.missing for setting in entry.settings if setting.missing))
    runnable = [s for s in entry.settings if not s.missing and (s.method or s.baseline or entry.computation)]
    if not runnable:
        return "cannot be run", remarks
    unknown = [name for name in entry.methods if name not in METHODS]
    if unknown:
        return "method not available", [*remarks, *(f"{name} is not registered" for name in unknown)]
    if entry.computation:
        return "ready", remarks
    absent = replaced = False
    for name in dict.fromkeys([*entry.datasets, *(setting.public for setting in runnable if setting.public)]):
        found = locator.find(name)
        absent = absent or found is None
        replaced = replaced or (found is not None and found.asked != found.dataset)
        remark = f"{datasets()[name].title} is not there" if found is None else found.remark
        remarks += [remark] if remark and remark not in remarks else []
    if absent:
        return "data not available", remarks
    return ("data not available, a substitute is" if replaced else "ready"), remarks
