"""``sfumato train`` and ``tune``: train on a collection within a budget, once or with settings chosen on it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import ProgressBar, remark, say, use_quiet, warn
from sfumato.cli.options import (
    Collection,
    DeclaredSize,
    Device,
    MethodName,
    MethodOptions,
    TimeLimit,
    config_text,
    device_named,
    signing_key,
)
from sfumato.cli.plan import plan_text
from sfumato.options import BudgetOptions, ReadingOptions

if TYPE_CHECKING:
    from sfumato.data import Images
    from sfumato.methods import Method
    from sfumato.planning.expected_use import PublicFacts
    from sfumato.privacy import AnyBudget
    from sfumato.privacy.distributed import World
    from sfumato.release.signature import SigningKey
    from sfumato.training.run import Run

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import Budget


def check_choosable(parameters: MethodOptions, budget: BudgetOptions) -> None:
    """Refuse what only makes sense together with --method."""
    if budget.no_guarantee:
        raise ValueError("--no-guarantee: name the method with --method; only certified ones are chosen automatically")
    if parameters.values() or parameters.variant != "certified":
        raise ValueError("--set, --steps, --sampling-rate and --variant belong to a method: name it with --method")


def public_facts(images: Images, budget: AnyBudget, declared_size: int | None) -> PublicFacts | None:
    """Shape, label set, declared number and budget: what may decide about a method. None without a guarantee.

    The number of units in the collection is private and is not looked at.
    """
    from sfumato.planning.expected_use import PublicFacts
    from sfumato.planning.plan import ASSUMED_SIZE
    from sfumato.privacy import Budget

    if not isinstance(budget, Budget):
        return None
    channels, height, width = images.pixels.shape[1:]
    return PublicFacts(
        declared_size=declared_size or ASSUMED_SIZE,
        size=max(height, width),
        channels=channels,
        classes=len(images.classes),
        epsilon=budget.epsilon,
        delta=budget.delta,
        unit=budget.unit,
    )


def choose(facts: PublicFacts | None, *, device: str, time_limit: float | None) -> str:
    """The name of the method for these facts; the reason goes to standard error."""
    from sfumato.planning.plan import TIME_LIMIT, choose_method

    if facts is None:
        raise ValueError("choose a method with --method; 'sfumato methods' lists them")
    choice = choose_method(facts, device=device, time_limit=TIME_LIMIT if time_limit is None else 60 * time_limit)
    remark(f"Method: {choice.why}.")
    return choice.method


def expected_use(method: Method, facts: PublicFacts | None, *, declared: bool) -> tuple[str, ...]:
    """Sentences for the card about the use of the images; a warning where there will be none.

    Without a declared number nothing is compared with the collection: the sentence says how many images are needed.
    """
    from sfumato.planning.plan import plan_method, use_needs, use_warning

    if facts is None:
        return ()
    if not declared:
        needs = use_needs(method.name, facts)
        if needs is None:
            return ()
        remark(f"{needs}. Your number is private and was not compared: 'sfumato plan --declared-size N' compares it.")
        return (f"{needs}, as predicted from measurements on MNIST.",)
    warning = use_warning(method.name, facts)
    if warning is not None:
        warn(f"WARNING: expected use hopeless: {warning}. Collect more images, or choose a larger ε.")
        return (f"Expected use: hopeless; {warning}. This was predicted before the training.",)
    row = plan_method(method, facts)
    if row.expected_use is None:
        return ()
    return (f"Expected use: {row.expected_use}; {row.why}. This was predicted before the training.",)


def noted(pairs: Sequence[str]) -> dict[str, str]:
    """The statements of ``--note``.

    >>> noted(["purpose=teaching", "contact = data@example.org"])
    {'purpose': 'teaching', 'contact': 'data@example.org'}
    """
    found = {}
    for pair in pairs:
        key, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not key or not text:
            raise ValueError(f"--note takes name=text, such as --note 'purpose=teaching', not {pair!r}")
        found[key] = text
    return found


def within_time(
    method: Method, minutes: float, images: Images, *, declared_size: int | None, device: str, run: Run, resume: bool
) -> Method:
    """The method with settings that keep within ``minutes``, and a remark on how long it takes.

    A step is timed on random images, and the number of images has to be declared: nothing private decides. A run that
    goes on has the settings that it began with.
    """
    from sfumato.methods.parts.time_budget import settings_for_minutes

    if declared_size is None:
        raise ValueError("--time-limit needs --declared-size: how long a step takes depends on the number of images")
    if resume:
        return type(method).configured(run.facts()["parameters"])
    with ProgressBar() as progress:
        progress.report("timing steps on random images", 0, 0)
        found = settings_for_minutes(
            method,
            minutes=minutes,
            shape=images.pixels.shape[1:],
            classes=len(images.classes),
            images=declared_size,
            device=device,
        )
    remark(found.why)
    return found.method


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
    device: Device = "auto",
    max_images_per_unit: Annotated[int, typer.Option(min=1, help="Images of one person in a step, at most.")] = 16,
    declared_size: DeclaredSize = None,
    time_limit: TimeLimit = None,
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
    keep_key: Annotated[
        bool,
        typer.Option(
            "--keep-key", help="Keep the key of the noise in internal/, for 'audit recompute'. As secret as the data."
        ),
    ] = False,
    reading: ReadingOptions,
) -> None:
    """Learn from a private collection and write a release. Without --method, one is chosen from public facts."""
    from sfumato.data import PrivateImages
    from sfumato.data.holdout import HoldOut
    from sfumato.planning.plan import too_few_counted
    from sfumato.training.distributed import in_turn, process_group
    from sfumato.training.run import Run, RunOptions, train_run

    check_order(data, second)
    world, device = context.with_resource(process_group(device_named(device)))
    use_quiet(not world.first)
    keys: list[SigningKey | None] = []
    # The key may lie where only the first process sees it.
    world.from_first(lambda: keys.append(signing_key(sign)))
    allowed = _budget(world, budget, persons=reading.names_persons, declared_size=declared_size, ledger=ledger)
    allowed.check_delta(declared_size)
    stated = noted(notes or [])
    chosen = planned = None
    if method:
        chosen = parameters.configured(method)
        planned = chosen.plan(allowed)
    else:
        check_choosable(parameters, budget)
    run = Run(out, ledger=ledger)
    # With one of these options the plan is another one, which the Curator checks.
    other = resume or time_limit is not None or release_accuracy is not None
    world.from_first(lambda: run.check(resume=resume, plan=None if other else planned))
    images = in_turn(world, lambda: read_with_progress(data, reading))
    persons = images.persons is not None
    if persons != reading.names_persons:
        # The collection names persons by itself, and the unit follows from that where none was given.
        allowed = _budget(world, budget, persons=persons, declared_size=declared_size, ledger=ledger)
    check_unit(allowed, persons=persons, given=budget.unit is not None)
    public = public_facts(images, allowed, declared_size)
    if chosen is None:
        method = world.from_first(lambda: choose(public, device=device, time_limit=time_limit))
        chosen = parameters.configured(method)
    if time_limit is not None:
        if world.size > 1:
            raise ValueError("--time-limit times the steps of one process; give --set steps=... where several train")
        chosen = within_time(
            chosen, time_limit, images, declared_size=declared_size, device=device, run=run, resume=resume
        )
    trained = measured(chosen, release_accuracy, classes=len(images.classes))
    if planned is None or planned.budget != allowed or trained is not chosen or time_limit is not None:
        planned = trained.plan(allowed)
    remark(plan_text(chosen, planned))
    # By the first process alone: a warning is to be read once.
    remarks = tuple(world.from_first(lambda: expected_use(chosen, public, declared=declared_size is not None)))
    files = {"command.toml": config_text(context)}
    if hold_out is not None:
        share, unit = hold_out, allowed.unit
        drawn = world.from_first(
            lambda: dataclasses.asdict(HoldOut.load(run.hold_out) if resume else HoldOut.drawn(share, unit=unit))
        )
        division = HoldOut(**drawn)
        files[run.hold_out.name] = division.to_text()
        images = division.training_part(images)
    private = PrivateImages.from_images(images, declared_size=declared_size)
    try:
        with ProgressBar() as progress:
            options = RunOptions(
                device=device,
                max_images_per_unit=max_images_per_unit,
                progress=progress,
                seed=seed,
                command=published_command(chosen, allowed, reading, declared_size, release_accuracy),
                remarks=remarks,
                notes=stated,
                ledger=ledger,
                resume=resume,
                facts={"data": str(data.resolve()), "reading": _plain(reading), "hold_out": hold_out},
                files=files,
                key=keys[0] if world.first else None,
                keep_key=keep_key,
            )
            release = train_run(out, trained, private, planned, options)
    except KeyboardInterrupt:
        remark(f"\nStopped. {run.ledger} holds what was spent; continue with the same command and --resume.")
        raise typer.Exit(130) from None
    if world.first:
        say(release.card.explained)
        if (verdict := too_few_counted(release.card)) is not None:
            warn(f"WARNING: {verdict}")
        say(f"Written: {run.release}")


def read_with_progress(data: Path, reading: ReadingOptions) -> Images:
    """The collection, read with a line that shows no number of records."""
    from sfumato.data import read

    with ProgressBar() as progress:
        progress.report("reading the images", 0, 0)
        return read(data, **reading.for_reader())


def read_as_trained(folder: Path, data: Path | None) -> tuple[Images, dict[str, Any]]:
    """The images that a finished run was trained on, read as they were then, and the run's public facts."""
    from sfumato.data.holdout import HoldOut
    from sfumato.training.run import Run

    run = Run(folder)
    facts = run.facts()
    if "reading" not in facts:
        raise ValueError(f"{folder} was not trained by 'sfumato train', so that how it was read is not known")
    persons = facts["reading"]["persons"]
    reading = ReadingOptions(**{**facts["reading"], "persons": None if persons is None else Path(persons)})
    images = read_with_progress(data or Path(facts["data"]), reading)
    return HoldOut.load(run.hold_out).training_part(images) if facts["hold_out"] else images, facts


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
    from sfumato.methods.scored import ScoredMethod

    if noise is None:
        return method
    if classes < 2:
        raise ValueError("--release-accuracy: accuracy needs at least two classes, and the collection has one")
    if not method.certified_variants():
        raise ValueError("--release-accuracy is a noisy count within a budget, and this method has no guarantee")
    if any(event.shards is not None for event in method.queries()):
        raise ValueError(f"--release-accuracy: {method.name} works on shards, whose queries cannot be added to others")
    return ScoredMethod.of(method, noise=noise)


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
            command=tuning_command(method, grid, allowed, trials),
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


def tuning_command(method: str, grid: Sequence[str], budget: Budget, trials: float) -> str:
    """The command for the card, without the place of the collection, which is private."""
    words = ["sfumato tune DATA", f"--method {method}", *(f"--grid {text}" for text in grid), f"--trials {trials:g}"]
    words += [f"--epsilon {budget.epsilon:g}", f"--delta {budget.delta:g}", f"--unit {budget.unit}", "--out RUN"]
    return " ".join(words)
