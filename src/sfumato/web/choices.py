"""What is chosen in the forms: checked once, kept with the job, and turned into options of the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sfumato.web.workspace import Refused, Workspace, is_name

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
PERSON_OPTIONS = ("--person-column", "--persons", "--person-pattern")
FORMATS = ("folder", "npz", "parquet")
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
    size: int | None = None
    colour: str | None = None
    classes: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    no_labels: bool = False
    leave_out_unlabelled: bool = False
    skip_bad: bool = False
    person_column: str | None = None
    person_file: str | None = None
    person_pattern: str | None = None
    declared_size: int | None = None

    @classmethod
    def from_form(cls, form: Form, workspace: Workspace) -> Choices:
        """Check what was sent; a value that is not allowed is refused with the reason."""
        file = form.get("person_file", "").strip()
        found = cls(
            purpose=_one_of(form, "purpose", [purpose.key for purpose in PURPOSES]),
            epsilon=EPSILONS[_number(form, "epsilon_stop", 0, len(EPSILONS) - 1)],
            unit=_one_of(form, "unit", ("image", "person")),
            delta=_delta(form.get("delta", "").strip()),
            size=_optional_number(form, "size", 1, 1024),
            colour=_one_of(form, "colour", ("", "grey", "rgb")) or None,
            classes=_text(form, "classes"),
            image_column=_text(form, "image_column"),
            label_column=_text(form, "label_column"),
            no_labels="no_labels" in form,
            leave_out_unlabelled="leave_out_unlabelled" in form,
            skip_bad="skip_bad" in form,
            person_column=_text(form, "person_column"),
            person_file=str(workspace.inside(file)) if file else None,
            person_pattern=_text(form, "person_pattern"),
            declared_size=_optional_number(form, "declared_size", 1, 10**9),
        )
        if found.unit == "person" and not (found.person_column or found.person_file or found.person_pattern):
            raise Refused("to protect persons, say whose image each image is: a column, a file or a pattern")
        if found.declared_size is not None and found.delta >= 1 / found.declared_size:
            raise Refused(
                f"δ {found.delta:g} is not below one over the number of {found.unit}s that was declared: at such a δ "
                "publishing a whole record would count as private. Choose a smaller δ"
            )
        return found

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Choices:
        """What ``to_json`` gave."""
        return cls(**facts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_form(self) -> dict[str, str]:
        """The fields of the form from which ``from_form`` makes the same choices."""
        fields = {key: "on" if value is True else str(value) for key, value in asdict(self).items() if value}
        return {**fields, "epsilon_stop": str(EPSILONS.index(self.epsilon))}

    def budget_options(self) -> list[str]:
        """--epsilon, --delta and --unit."""
        return [f"--epsilon={self.epsilon:g}", f"--delta={self.delta}", f"--unit={self.unit}"]

    def reading_options(self) -> list[str]:
        """How the images are read."""
        values = {
            "size": self.size,
            "colour": self.colour,
            "classes": None if self.no_labels else self.classes,
            "image-column": self.image_column,
            "label-column": self.label_column,
        }
        words = [f"--{key}={value}" for key, value in values.items() if value is not None] + self.person_options()
        words += ["--no-labels"] * self.no_labels + ["--skip-bad"] * self.skip_bad
        return words + ["--missing-labels=leave out"] * (self.leave_out_unlabelled and not self.no_labels)

    def person_options(self) -> list[str]:
        """Whose image each image is."""
        given = (self.person_column, self.person_file, self.person_pattern)
        return [f"{name}={value}" for name, value in zip(PERSON_OPTIONS, given, strict=True) if value is not None]


def proposed_fields(inspection: Mapping[str, Any], *, unit: str | None, delta: float | None) -> dict[str, str]:
    """The fields of the form before anything is chosen: what the inspection proposes, and what the ledger counts."""
    given = suggested(inspection["next_command"])
    flags = {"skip_bad": "skip-bad", "leave_out_unlabelled": "missing-labels", "no_labels": "no-labels"}
    names = ("size", "colour", "classes", "image_column", "label_column", "person_column", "person_pattern")
    fields = {name: given.get(name.replace("_", "-"), "") for name in names}
    fields |= {key: "on" for key, option in flags.items() if option in given}
    fields |= {"person_file": given.get("persons", ""), "delta": "1e-5" if delta is None else str(delta)}
    persons = any(fields[name] for name in ("person_column", "person_file", "person_pattern"))
    fields["unit"] = unit or ("person" if persons else "image")
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


def suggested(next_command: str) -> dict[str, str]:
    """The options that ``sfumato inspect`` proposes, from the command that it prints.

    >>> suggested("sfumato train x --size 28 --classes 10 --skip-bad")
    {'size': '28', 'classes': '10', 'skip-bad': ''}
    """
    words = shlex.split(next_command)
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            found[word.removeprefix("--")] = "" if following.startswith("--") else following
    return found


def column_options(form: Form) -> list[str]:
    """Which columns of a table hold images and labels, where they are not found by themselves."""
    given = {name: _text(form, name) for name in ("image_column", "label_column")}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


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
    text = form.get(key, "").strip()
    if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise Refused(f"{key.replace('_', ' ')} must be a whole number from {least} to {most}")
    return int(text)


def _optional_number(form: Form, key: str, least: int, most: int) -> int | None:
    return _number(form, key, least, most) if form.get(key, "").strip() else None


def _text(form: Form, key: str) -> str | None:
    text = form.get(key, "").strip()
    if len(text) > 20_000 or any(ord(letter) < 32 for letter in text):
        raise Refused(f"{key.replace('_', ' ')} is too long or has control characters")
    return text or None


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
