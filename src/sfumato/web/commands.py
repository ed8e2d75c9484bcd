"""What is chosen in the forms, checked once and kept with the job, and the command line of everything the page does.

A job runs exactly these arguments, and the page shows them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sfumato.options import (
    AS_IT_IS,
    BudgetOptions,
    ExportFormat,
    ReadingOptions,
    from_fields,
    to_fields,
    whole_number,
    words,
)
from sfumato.web.workspace import Refused, Workspace, is_name

if TYPE_CHECKING:
    from sfumato.planning.expected_use import PublicFacts

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
FORMATS: tuple[str, ...] = get_args(ExportFormat)
_SETTING = re.compile(r"[a-z][a-z0-9_]*=[A-Za-z0-9_.+-]+")
_METHOD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Purpose:
    """What the synthetic images are for, and the ε that is proposed for it."""

    key: str
    text: str
    epsilon: float


PURPOSES = (
    Purpose("publish", "to be published: anyone may read them, for ever", 1.0),
    Purpose("share", "to be shared with partners who have signed an agreement", 3.0),
    Purpose("inside", "to be used inside this organisation only, for development and teaching", 8.0),
)

Form = Mapping[str, str]


@dataclass(frozen=True)
class Choices:
    """Purpose, budget and reading options of a plan and of the trainings that follow from it."""

    purpose: str
    epsilon: float
    unit: str
    delta: float = 1e-5
    declared_size: int | None = None
    reading: ReadingOptions = AS_IT_IS

    @classmethod
    def from_form(cls, form: Form, workspace: Workspace) -> Choices:
        """Check what was sent; a value that is not allowed is refused with the reason."""
        unit, _, pattern = form.get("unit", "").partition(" ")
        if unit not in ("image", "person"):
            raise Refused("say who is protected: each image by itself, or each person with all their images")
        if pattern:
            form = {**{key: value for key, value in form.items() if key not in _PERSONS}, "person_pattern": pattern}
        found = cls(
            purpose=_one_of(form, "purpose", [purpose.key for purpose in PURPOSES]),
            epsilon=EPSILONS[_number(form, "epsilon_stop", 0, len(EPSILONS) - 1)],
            unit=unit,
            delta=_delta(form.get("delta", "").strip()),
            declared_size=_number(form, "declared_size", 1, 10**9) if form.get("declared_size", "").strip() else None,
            reading=reading_of(form, workspace),
        )
        if found.unit == "person" and not found.reading.names_persons:
            raise Refused("to protect persons, say whose image each image is: a column, a file or a pattern")
        if found.declared_size is not None and found.delta >= 1 / found.declared_size:
            raise Refused(
                f"δ {found.delta:g} is not below one over the number of {found.unit}s that was declared: at such a δ "
                "publishing a whole record would count as private. Choose a smaller δ"
            )
        return found

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Choices:
        return cls(**{**facts, "reading": reading_from_json(facts["reading"])})

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        file = self.reading.persons
        return {**facts, "reading": {**facts["reading"], "persons": None if file is None else str(file)}}

    def to_form(self) -> dict[str, str]:
        """The fields of the form from which ``from_form`` makes the same choices."""
        own = {"purpose": self.purpose, "unit": self.unit, "delta": str(self.delta)}
        if self.declared_size is not None:
            own["declared_size"] = str(self.declared_size)
        return {**own, **to_fields(self.reading), "epsilon_stop": str(EPSILONS.index(self.epsilon))}

    @property
    def budget(self) -> BudgetOptions:
        """How much may be spent, and for whom."""
        return BudgetOptions(epsilon=self.epsilon, delta=self.delta, unit=self.unit)


_SELECTED = {
    "colour": ("grey", "rgb"),
    "missing_labels": ("refuse", "leave out"),
    "missing_persons": ("refuse", "leave out"),
}
_NOT_IN_THE_PAGE = frozenset({"split", "internal"})
_PERSONS = ("person_column", "persons", "person_pattern")


def reading_of(form: Form, workspace: Workspace) -> ReadingOptions:
    """How the images are read. Only a box that was ticked leaves anything out."""
    for key, allowed in _SELECTED.items():
        _one_of(form, key, ("", *allowed))
    try:
        return from_fields(ReadingOptions, form, path=workspace.inside, leave_out=_NOT_IN_THE_PAGE)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(str(error)) from None


def reading_from_json(facts: Mapping[str, Any]) -> ReadingOptions:
    """The options that a run or a job has written down."""
    file = facts.get("persons")
    return ReadingOptions(**{**facts, "persons": None if file is None else Path(file)})


def persons_of(reading: ReadingOptions) -> ReadingOptions:
    """Only whose image each image is, and which columns hold images and labels."""
    kept = (*_PERSONS, "image_column", "label_column")
    return ReadingOptions(**{name: getattr(reading, name) for name in kept})


def proposed_fields(inspection: Mapping[str, Any], *, unit: str | None, delta: float | None) -> dict[str, str]:
    """The fields of the form before anything is chosen: what the inspection proposes, and what the ledger counts.

    No box is ticked that leaves out images: whoever wants that must say so. Where file names share parts, nothing is
    proposed for the unit: a part may be the name of a person, which nobody but the custodian knows.
    """
    reading = reading_from_json(inspection["suggested"])
    fields = {**to_fields(reading), "delta": "1e-5" if delta is None else str(delta)}
    if unit or reading.names_persons or not inspection.get("person_patterns"):
        fields["unit"] = unit or ("person" if reading.names_persons else "image")
    return {**fields, "purpose": PURPOSES[0].key, "epsilon_stop": str(EPSILONS.index(PURPOSES[0].epsilon))}


def training_fields(commands: Sequence[Sequence[str]], run: str) -> dict[str, str]:
    """The fields of the form from which the commands of a training were made."""
    fields = {"run": run, "settings": ""}
    for command in commands:
        for key, _, value in (word.partition("=") for word in command):
            if (command[0], key) == ("ledger", "--epsilon"):
                fields["limit"] = value
            elif key == "--set":
                fields["settings"] = f"{fields['settings']} {value}".strip()
            elif key == "--method":
                fields["method"] = value
            elif key == "--hold-out":
                fields["hold_out"] = "on"
    return fields


def run_name(form: Form, workspace: Workspace) -> str:
    """The name of a new run."""
    name = form.get("run", "").strip()
    if not is_name(name):
        raise Refused("a run's name has small letters, digits and hyphens, at most 80 of them")
    if workspace.named("runs", name).exists():
        raise Refused(f"there is a run {name} already; choose another name")
    return name


def method_options(form: Form) -> list[str]:
    """--method and --set. Classes of the user's own are not accepted here: importing them runs code."""
    method = form.get("method", "")
    if not _METHOD.fullmatch(method):
        raise Refused("choose one of the methods")
    words = [f"--method={method}"]
    for setting in form.get("settings", "").split():
        if not _SETTING.fullmatch(setting):
            raise Refused("a setting is written as name=value, such as steps=200; several are separated by spaces")
        words.append(f"--set={setting}")
    return words


def limit_option(form: Form) -> float | None:
    """The limit of a new ledger."""
    text = form.get("limit", "").strip()
    return None if not text else _positive(text, "the limit of the collection")


def export_options(form: Form) -> tuple[int, str]:
    """How many images to export, and in which format."""
    return _number(form, "count", 1, 1_000_000), _one_of(form, "format", FORMATS)


def _one_of(form: Form, key: str, allowed: list[str] | tuple[str, ...]) -> str:
    value = form.get(key, "")
    if value not in allowed:
        raise Refused(f"{key} must be one of {', '.join(filter(None, allowed))}")
    return value


def _number(form: Form, key: str, least: int, most: int) -> int:
    try:
        return whole_number(key, form.get(key, "").strip(), least=least, most=most)
    except ValueError as error:
        raise Refused(str(error)) from None


def _delta(text: str) -> float:
    value = _positive(text, "δ")
    if value > 1e-3:
        raise Refused("δ is the probability with which the guarantee may fail altogether: choose at most 0.001")
    return value


def _positive(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e4:
        raise Refused(f"{name} must be a number above 0")
    return value


SAMPLES = 1000
HOLD_OUT = 0.1


def line(arguments: Sequence[str]) -> str:
    """What to type in a terminal."""
    return shlex.join(["sfumato", *arguments])


def inspect(data: Path, reading: ReadingOptions = AS_IT_IS) -> list[str]:
    """What is in a collection."""
    return ["inspect", str(data), *words(reading), "--json"]


def plan(facts: PublicFacts) -> list[str]:
    """What every method would cost, and what to expect of it."""
    given = [f"--epsilon={facts.epsilon:g}", f"--delta={facts.delta:g}", f"--unit={facts.unit}"]
    given += [f"--declared-size={facts.declared_size}", f"--size={facts.size}"]
    given += [f"--channels={facts.channels}", f"--classes={facts.classes}"]
    return ["plan", *given]


def create_ledger(ledger: Path, choices: Choices, limit: float) -> list[str]:
    """The collection's ledger with its limit over all trainings."""
    return ["ledger", str(ledger), "--create", f"--epsilon={limit}", *words(replace(choices.budget, epsilon=None))]


def train(data: Path, run: Path, ledger: Path, choices: Choices, form: Form) -> list[str]:
    """A training."""
    chosen = ["train", str(data), *method_options(form), *words(choices.budget), *words(choices.reading)]
    if choices.declared_size is not None:
        chosen.append(f"--declared-size={choices.declared_size}")
    if "hold_out" in form:
        chosen.append(f"--hold-out={HOLD_OUT:g}")
    return [*chosen, f"--ledger={ledger}", f"--out={run}"]


def output_folder(command: Sequence[str]) -> Path:
    """The folder that a command writes."""
    return next(Path(word.removeprefix("--out=")) for word in command if word.startswith("--out="))


def report(run: Path, *, side_by_side: bool = False) -> list[str]:
    """The public page, which is scanned before it is written, and the internal page."""
    return ["report", str(run), *(["--side-by-side"] if side_by_side else [])]


def review(data: Path, run: Path, samples: Path, reading: ReadingOptions) -> list[list[str]]:
    """Samples, their accuracy and memorisation beside the images that were held out, and the pages."""
    internal = run / "internal"
    real = [f"--real={data}", *words(reading)]
    if (internal / "hold_out.json").exists():
        real.append(f"--held-out={run}")
    results = [f"--json={internal / 'evaluation.json'}", f"--neighbours={internal / 'neighbours.png'}"]
    pictures = f"--side-by-side={internal / 'side_by_side'}"
    measured = ["evaluate", str(samples), *real, "--seeds=2", "--no-inception", *results, pictures]
    drawn = [] if samples.exists() else [["sample", str(run), f"--count={SAMPLES}", "--seed=1", f"--out={samples}"]]
    return [*drawn, measured, report(run)]


def audit(run: Path) -> list[list[str]]:
    """The audits of a finished release that touch no private data, and the pages, which then name them."""
    return [["audit", "release", str(run)], report(run)]


def export(run: Path, out: Path, count: int, format: str) -> list[str]:
    """Synthetic images with their card."""
    return ["sample", str(run), f"--count={count}", f"--format={format}", f"--out={out}"]


def show_ledger(ledger: Path, run: Path) -> list[str]:
    """The ledger's entry for a release."""
    return ["ledger", str(ledger), f"--release={run}", "--json"]


def remaining(found: Sequence[tuple[str, ...]], finished: int, workspace: Workspace) -> list[tuple[str, ...]]:
    """What is left of a job whose first ``finished`` commands have ended well."""
    return [resumed(command, workspace) for command in found[finished:] if not _has_ended(command)]


def _has_ended(command: tuple[str, ...]) -> bool:
    """Whether a training or a sampling has written its result, which is there as a whole or not at all."""
    if command[0] == "train":
        return (output_folder(command) / "release").exists()
    return command[0] == "sample" and output_folder(command).exists()


def resumed(command: tuple[str, ...], workspace: Workspace) -> tuple[str, ...]:
    """The same training, continued if it had begun."""
    if command[0] != "train":
        return command
    run = output_folder(command)
    begun = (workspace.inside(str(run.parent)) / run.name / "internal" / "run.json").exists()
    plain = tuple(word for word in command if word != "--resume")
    return (*plain, "--resume") if begun else plain
