"""``sfumato train``: learn from a private collection and write a release."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.choice import check_choosable, choose, expected_use, noted, public_facts
from sfumato.cli.config import config_text
from sfumato.cli.console import ProgressBar, remark, say, use_quiet
from sfumato.cli.minutes import for_minutes
from sfumato.cli.options import (
    BudgetOptions,
    Collection,
    Device,
    MethodName,
    MethodOptions,
    ReadingOptions,
    TimeLimit,
    device_named,
    signing_key,
)
from sfumato.cli.plan import remark_plan
from sfumato.files import write_file

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget
    from sfumato.privacy.distributed import World
    from sfumato.release.signature import SigningKey


def train(
    context: typer.Context,
    data: Collection,
    second: Annotated[Path | None, typer.Argument(hidden=True)] = None,
    *,
    method: MethodName = "",
    out: Annotated[Path, typer.Option(help="The run's folder: only release/ in it may be published.")],
    budget: BudgetOptions,
    parameters: MethodOptions,
    ledger: Annotated[Path | None, typer.Option(help="The collection's ledger [default: the run's own].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeatable, for tests only: the card then says ε = ∞.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Hold out this share of the units at random, for 'evaluate --held-out'.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Plan steps for this time on this device (dp-diffusion).")
    ] = None,
    device: Device = "auto",
    max_images_per_unit: Annotated[int, typer.Option(min=1, help="Images of one person in a step, at most.")] = 16,
    declared_size: Annotated[int | None, typer.Option(min=1, help="The number of units, roughly, made public.")] = None,
    time_limit: TimeLimit = 60.0,
    notes: Annotated[
        list[str] | None,
        typer.Option("--note", help="A statement for the card: --note 'purpose=teaching'; also controller, contact …"),
    ] = None,
    release_accuracy: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Also release, within the budget, how many units a classifier trained on the images labels correctly, "
            "with this noise on the count (such as 30).",
        ),
    ] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign the release with this ed25519 key (PEM).")] = None,
    reading: ReadingOptions,
) -> None:
    """Learn from a private collection and write a release. Without --method, one is chosen from public facts."""
    from sfumato.data import PrivateImages, read
    from sfumato.data.holdout import HoldOut
    from sfumato.data.remote import resolved
    from sfumato.training.cost import Cost
    from sfumato.training.distributed import process_group
    from sfumato.training.run_folder import Run

    check_order(data, second)
    world, device = context.with_resource(process_group(device_named(device)))
    use_quiet(not world.first)
    keys: list[SigningKey | None] = []
    # The key may lie where only the first process sees it.
    world.from_first(lambda: keys.append(signing_key(sign)))
    allowed = _budget(world, budget, persons=reading.names_persons, declared_size=declared_size, ledger=ledger)
    allowed.check_delta(declared_size)
    stated = noted(notes or [])
    planned = None
    if method:
        planned = parameters.configured(method).plan(allowed)
    else:
        check_choosable(parameters, budget)
    run = Run(out, ledger=ledger)
    # With one of these options the plan is another one, which the Curator checks.
    other = resume or minutes is not None or release_accuracy is not None
    world.from_first(lambda: run.check(resume=resume, plan=None if other else planned))
    with ProgressBar() as progress:
        progress.report("reading the images", 0, 0)
        options = reading.for_reader()
        options["progress"] = progress.per_cent
        images = world.in_turn(lambda: read(data, **options))
        progress.per_cent(100)  # also for a collection that was read at once, or before
    persons = images.persons is not None
    allowed = _budget(world, budget, persons=persons, declared_size=declared_size, ledger=ledger)
    check_unit(allowed, persons=persons, given=budget.unit is not None)
    public = public_facts(images, allowed, declared_size)
    if not method:
        method = world.from_first(lambda: choose(public, device=device, time_limit=time_limit))
    chosen = parameters.configured(method)
    if minutes is not None:
        if world.size > 1:
            raise ValueError("--minutes times the steps of one process; give --set steps=... where several train")
        chosen = for_minutes(
            chosen, minutes, images, declared_size=declared_size, device=device, run=run, resume=resume
        )
    trained = measured(chosen, release_accuracy, classes=len(images.classes))
    remark_plan(chosen, trained.plan(allowed))
    # By the first process alone: a warning is to be read once.
    remarks = tuple(world.from_first(lambda: expected_use(chosen, public, declared=declared_size is not None)))
    division = None
    if hold_out is not None:
        share, unit = hold_out, allowed.unit
        drawn = world.from_first(
            lambda: dataclasses.asdict(HoldOut.load(run.hold_out) if resume else HoldOut.drawn(share, unit=unit))
        )
        division = HoldOut(**drawn)
        images = division.training_part(images)
    private = PrivateImages.from_images(images, declared_size=declared_size)
    facts: dict[str, Any] = {
        "method": method,
        "parameters": chosen.parameters(),
        "budget": allowed.to_json(),
        "hold_out": hold_out,
    }
    facts |= {"data": resolved(data), "ledger": str(run.ledger.resolve()), "seed": seed}
    facts |= {"declared_size": declared_size, "max_images_per_unit": max_images_per_unit}

    def begin() -> None:
        run.begin({**facts, "reading": _plain(reading)}, resume=resume)
        if division is not None:
            division.save(run.hold_out)
        run.checkpoint.describe(private.shape, private.classes)
        write_file(run.internal / "command.toml", config_text(context), private=True)

    world.from_first(begin)
    cost = Cost(device, resumed=resume)
    try:
        with ProgressBar() as progress:
            release = trained.fit(
                private,
                allowed,
                run.ledger,
                device=device,
                max_images_per_unit=max_images_per_unit,
                checkpoint=run.checkpoint,
                progress=progress,
                command=published_command(chosen, allowed, reading, declared_size, release_accuracy),
                seed=seed,
                remarks=remarks,
                notes=stated,
            )
        if not world.first:
            return
        cost.keep(run.internal)
        run.finish(release, key=keys[0])
    except KeyboardInterrupt:
        remark(f"\nStopped. {run.ledger} holds what was spent; continue with the same command and --resume.")
        raise typer.Exit(130) from None
    except Exception:
        if world.first:
            run.discard_if_unspent()
        raise
    say(release.card.sentence)
    say(f"Written: {run.release}")


def _budget(
    world: World, budget: BudgetOptions, *, persons: bool, declared_size: int | None, ledger: Path | None
) -> AnyBudget:
    """The budget that the first process finds, which alone is sure to see the ledger; unit and δ can follow from it."""
    from sfumato.privacy.budget import budget_from_json

    found = world.from_first(
        lambda: budget.budget(persons=persons, declared_size=declared_size, ledger=ledger).to_json()
    )
    return budget_from_json(found)


def check_unit(budget: AnyBudget, *, persons: bool, given: bool) -> None:
    """A guarantee per person needs persons; where the collection names them, one per image must be asked for."""
    if budget.unit == "person" and not persons:
        raise ValueError(
            "the guarantee is to hold per person, but the collection names no persons: "
            "use --person-column, --persons or --person-pattern"
        )
    if budget.unit == "image" and persons:
        remark("Persons are named, but --unit image protects single images: a person with k images gets k times the ε.")
    if budget.unit == "person" and not given:
        remark("Persons are named: the guarantee holds for all images of a person together (--unit person).")
    if budget.unit == "person":
        remark("Names that differ in digits alone, such as 7 and 007, are two persons; 'sfumato inspect' counts them.")


def _plain(reading: ReadingOptions) -> dict[str, Any]:
    """The options that decide what is read, as JSON has them."""
    facts = dataclasses.asdict(reading)
    facts["persons"] = None if reading.persons is None else str(reading.persons.resolve())
    facts.pop("internal")
    return facts


def measured(method: Method, noise: float | None, *, classes: int) -> Method:
    """The method, followed by a noisy count of what a classifier labels correctly if one is asked for."""
    from sfumato.methods.measured import MeasuredMethod

    if noise is None:
        return method
    if classes < 2:
        raise ValueError("--release-accuracy: accuracy needs at least two classes, and the collection has one")
    if not method.certified_variants():
        raise ValueError("--release-accuracy is a noisy count within a budget, and this method has no guarantee")
    if any(event.shards is not None for event in method.queries()):
        raise ValueError(f"--release-accuracy: {method.name} works on shards, whose queries cannot be added to others")
    return MeasuredMethod.of(method, noise=noise)


def check_order(data: Path, second: Path | None) -> None:
    """The data comes first, and the method is an option; the order of version 0.1 is refused with the new command."""
    if second is not None:
        words = sys.argv[1:]
        if str(data) in words and str(second) in words:
            rest = [word for word in words if word not in (str(data), str(second), "train")]
        else:
            rest = []
        command = shlex.join(["sfumato", "train", str(second), "--method", str(data), *rest])
        raise ValueError(f"the data comes first and the method is an option: {command}")


def published_command(
    method: Method,
    budget: AnyBudget,
    reading: ReadingOptions,
    declared_size: int | None = None,
    release_accuracy: float | None = None,
) -> str:
    """The command for the card, without the place of the collection, which is private."""
    words = ["sfumato train DATA", f"--method {method.name}", f"--variant {method.variant}"]
    if budget.to_json()["epsilon"] is None:
        words.append("--no-guarantee")
    else:
        words += [f"--epsilon {budget.epsilon:g}", f"--delta {budget.delta:g}", f"--unit {budget.unit}"]
    defaults = type(method)(variant=method.variant).parameters()
    words += [f"--set {key}={value}" for key, value in method.parameters().items() if value != defaults[key]]
    usual = _plain(ReadingOptions())
    given = {key: value for key, value in _plain(reading).items() if value != usual[key]}
    if "persons" in given:
        given["persons"] = "PERSONS.csv"
    if "person_pattern" in given:
        # File names are private, and a pattern may say what they look like.
        given["person_pattern"] = "PATTERN"
    if declared_size is not None:
        given["declared_size"] = declared_size
    if release_accuracy is not None:
        given["release_accuracy"] = release_accuracy
    for key, value in given.items():
        name = "--" + key.replace("_", "-")
        words.append(name if value is True else f"{name} {shlex.quote(str(value))}")
    return " ".join([*words, "--out RUN"])
