"""``sfumato tune``: choose settings under the budget, and write the release of the best trial."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.console import ProgressBar, remark, say
from sfumato.cli.options import Collection, Device, config_text, device_named
from sfumato.cli.train import check_unit, expected_use, noted, public_facts, read_with_progress
from sfumato.options import BudgetOptions, ReadingOptions

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import Budget

_MOST_CANDIDATES = 64


def tune(
    context: typer.Context,
    data: Collection,
    *,
    method: Annotated[str, typer.Option("--method", help="A method's name; see 'sfumato methods'.")],
    grid: Annotated[
        list[str], typer.Option("--grid", help="A setting and its values: --grid steps=100,300; may be given again.")
    ],
    out: Annotated[Path, typer.Option(help="The run's folder: only release/ in it may be published.")],
    budget: BudgetOptions,
    trials: Annotated[float, typer.Option(help="The expected number of trials; the real one is random.")] = 5.0,
    score_noise: Annotated[float, typer.Option(min=1, help="Noise on the number of units that score a trial.")] = 30.0,
    ledger: Annotated[Path | None, typer.Option(help="The collection's ledger [default: the run's own].")] = None,
    device: Device = "auto",
    max_images_per_unit: Annotated[int, typer.Option(min=1, help="Images of one person in a step, at most.")] = 16,
    declared_size: Annotated[int | None, typer.Option(min=1, help="The number of units, roughly, made public.")] = None,
    notes: Annotated[list[str] | None, typer.Option("--note", help="A statement for the card: name=text.")] = None,
    reading: ReadingOptions,
) -> None:
    """Choose settings on the private collection within the budget, and write the release of the best trial."""
    from sfumato.data import PrivateImages
    from sfumato.methods.scored import Tuning
    from sfumato.privacy import Budget
    from sfumato.training.run import Run, RunOptions

    candidates, device, stated = grid_of(method, grid), device_named(device), noted(notes or [])
    run = Run(out, ledger=ledger)
    run.check(resume=False)
    images = read_with_progress(data, reading)
    persons = images.persons is not None
    allowed = budget.budget(persons=persons, declared_size=declared_size, ledger=ledger)
    check_unit(allowed, persons=persons, given=budget.unit is not None)
    if not isinstance(allowed, Budget):
        raise ValueError("tuning without a guarantee is what 'sfumato experiment' is for; give --epsilon")
    tuning = Tuning.planned(candidates, allowed, expected_trials=trials, score_noise=score_noise)
    remark(
        f"{len(candidates)} candidates, {trials:g} trials expected; the selection costs at most ε {allowed.epsilon:g}."
    )
    private = PrivateImages.from_images(images, declared_size=declared_size)
    facts = public_facts(images, allowed, declared_size)
    with ProgressBar() as bar:
        options = RunOptions(
            device=device,
            max_images_per_unit=max_images_per_unit,
            command=published_command(method, grid, allowed, trials),
            remarks=expected_use(candidates[0], facts, declared=declared_size is not None),
            notes=stated,
            ledger=ledger,
            facts={"method": method, "grid": grid, "trials": trials},
            files={"command.toml": config_text(context)},
        )
        # The number of trials is secret: a total of 0 shows that something happens, and no number.
        release = tuning.run(out, private, options, progress=lambda: bar.report("trials", 0, 0))
    chosen = {key: release.card.parameters[key] for key in _grid_values(grid)}
    say(f"Chosen: {', '.join(f'{key} = {value}' for key, value in chosen.items())}")
    say(release.card.explained)
    say(f"Written: {run.release}")


def _grid_values(grid: Sequence[str]) -> dict[str, list[str]]:
    """From the name of each setting to its values.

    >>> _grid_values(["steps=100,300"])
    {'steps': ['100', '300']}
    """
    found: dict[str, list[str]] = {}
    for text in grid:
        key, separator, values = (part.strip() for part in text.partition("="))
        if not separator or not values:
            raise ValueError(f"--grid takes a setting and its values, such as steps=100,300, not {text!r}")
        found[key] = [value.strip() for value in values.split(",")]
    return found


def grid_of(method: str, grid: Sequence[str]) -> list[Method]:
    """The method with every combination of the values."""
    from sfumato.methods import find

    values = _grid_values(grid)
    combinations = list(itertools.product(*values.values()))
    if not 2 <= len(combinations) <= _MOST_CANDIDATES:
        raise ValueError(f"--grid gives {len(combinations)} candidates; there must be 2 to {_MOST_CANDIDATES}")
    return [find(method).configured(dict(zip(values, chosen, strict=True))) for chosen in combinations]


def published_command(method: str, grid: Sequence[str], budget: Budget, trials: float) -> str:
    """The command for the card, without the place of the collection, which is private."""
    words = ["sfumato tune DATA", f"--method {method}", *(f"--grid {text}" for text in grid), f"--trials {trials:g}"]
    words += [f"--epsilon {budget.epsilon:g}", f"--delta {budget.delta:g}", f"--unit {budget.unit}", "--out RUN"]
    return " ".join(words)
