"""The command line of everything that the page does. A job runs exactly these arguments, and the page shows them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.options import AS_IT_IS, ReadingOptions, words
from sfumato.web.choices import Choices, Form, method_options
from sfumato.web.workspace import Workspace

if TYPE_CHECKING:  # it would load torch, which the worker of a job does not need
    from sfumato.planning.expected_use import PublicFacts

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


def preview(run: Path, picture: Path) -> list[str]:
    """Samples from the last checkpoint of a training that is under way."""
    return ["preview", str(run), f"--out={picture}", "--json"]


def report(run: Path) -> list[str]:
    """The public page, which is scanned before it is written, and the internal page."""
    return ["report", str(run)]


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
