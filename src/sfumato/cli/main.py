"""The command line: methods · plan · train · sample · ledger · evaluate · audit · report · compare · reproduce."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sfumato.cli.audit import audit_app
from sfumato.cli.compare import compare_command
from sfumato.cli.console import console, errors
from sfumato.cli.evaluate import evaluate_command
from sfumato.cli.report import report_command
from sfumato.cli.reproduce import reproduce_app

if TYPE_CHECKING:
    from sfumato.data.images import Options
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget, Plan
    from sfumato.training.profiling import Work

app = typer.Typer(
    help="Learn from a private image collection and release a synthetic one, with an (ε, δ) that can be checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Variant = Annotated[str, typer.Option(help="A variant of the method; 'certified' is its default certified form.")]
Epsilon = Annotated[float | None, typer.Option(help="The most that may be spent.")]
Delta = Annotated[float, typer.Option(help="δ of the guarantee; well below one over the number of units.")]
UnitOption = Annotated[str, typer.Option("--unit", help="What is protected: 'image', or 'person' by a person column.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A parameter of the method: --set steps=200.")]
Config = Annotated[Path | None, typer.Option(help="A TOML file with parameters of the method.")]
Rate = Annotated[
    float | None, typer.Option(help="Short for --set sampling_rate=…: the share of units asked in each step.")
]
Steps = Annotated[int | None, typer.Option(help="Short for --set steps=…: the number of training steps.")]
NoGuaranteeFlag = Annotated[
    bool, typer.Option("--no-guarantee", help="For an algorithm that needs the raw records; the release says ε = ∞.")
]
Size = Annotated[int | None, typer.Option(help="Resize to a square of this many pixels.")]
Colour = Annotated[str | None, typer.Option(help="grey or rgb; by default as the files are.")]
Classes = Annotated[str | None, typer.Option(help="The label set: a number, or names with commas between.")]
LabelColumn = Annotated[str | None, typer.Option(help="parquet: the label's column.")]
PersonColumn = Annotated[str | None, typer.Option(help="parquet: the person's column.")]
Split = Annotated[str, typer.Option(help="idx and saved data sets: which part.")]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Read without labels, as one class.")]
MissingLabels = Annotated[str, typer.Option(help="'refuse' records whose label is empty, or 'leave out' them.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Set bad records aside.")]
Seed = Annotated[int | None, typer.Option(help="Repeatable, for tests only: the card then says ε = ∞.")]


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method's parameters.")] = None, *, as_json: Json = False
) -> None:
    """List the methods and their variants, or one method's parameters."""
    from sfumato.methods import METHODS, find

    if name is not None:
        method = find(name)
        facts = {
            "method": name,
            "paper": method.paper,
            "variants": dict(method.variants),
            "parameters": method().parameters(),
        }
        if as_json:
            return _print_json(facts)
        table = Table("parameter", "default", title=f"{name}: {method.paper}", title_justify="left")
        for key, value in method().parameters().items():
            table.add_row(key, str(value))
        return console.print(table)
    found = {key: find(key) for key in METHODS}
    if as_json:
        return _print_json([{"method": k, "variants": dict(m.variants), "paper": m.paper} for k, m in found.items()])
    table = Table("method", "variants", "paper")
    for key, method in found.items():
        table.add_row(key, "\n".join(f"{v}: {about}" for v, about in method.variants.items()), method.paper)
    console.print(table)


@app.command()
def plan(
    method: str,
    *,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    unit: UnitOption = "image",
    variant: Variant = "certified",
    settings: Settings = None,
    config: Config = None,
    rate: Rate = None,
    steps: Steps = None,
    no_guarantee: NoGuaranteeFlag = False,
    size: Annotated[int | None, typer.Option(help="Rehearse at this many pixels a side: what a run costs.")] = None,
    images: Annotated[int, typer.Option(help="Rehearsal: how many images the collection will have.")] = 60_000,
    channels: Annotated[int, typer.Option(help="Rehearsal: 1 for grey, 3 for colour.")] = 1,
    classes: Annotated[int, typer.Option(help="Rehearsal: how many classes.")] = 10,
    as_json: Json = False,
) -> None:
    """What a run would spend, and with --size what it costs in work. Touches no data."""
    chosen = _method(method, variant, settings, config, rate, steps)
    planned = chosen.plan(_budget(epsilon, delta, unit, no_guarantee))
    work = None
    if size is not None:
        import torch

        from sfumato.training.profiling import rehearse

        device = "cuda" if torch.cuda.is_available() else "cpu"
        work = rehearse(chosen, shape=(channels, size, size), classes=classes, images=images, device=device)
    if as_json:
        from sfumato.release.attack_bounds import best_guess

        facts = {"method": method, "parameters": chosen.parameters(), **planned.to_json()}
        facts["best_guess"] = 1.0 if no_guarantee else best_guess(planned.events)
        return _print_json(facts if work is None else {**facts, "work": work.to_json()})
    _show_plan(chosen, planned)
    if work is not None:
        _show_work(work)


@app.command()
def train(
    method: str,
    data: Annotated[Path, typer.Argument(help="The private collection: image folder, npz, idx folder, parquet.")],
    *,
    out: Annotated[Path, typer.Option(help="The run's folder: release/ may leave, internal/ and the ledger may not.")],
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    unit: UnitOption = "image",
    variant: Variant = "certified",
    settings: Settings = None,
    config: Config = None,
    rate: Rate = None,
    steps: Steps = None,
    no_guarantee: NoGuaranteeFlag = False,
    ledger: Annotated[Path | None, typer.Option(help="The collection's ledger; by default the run's own.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    seed: Seed = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda where there is one.")] = None,
    max_images_per_unit: Annotated[int, typer.Option(help="Of one person, at most this many images at a time.")] = 16,
    size: Size = None,
    colour: Colour = None,
    classes: Classes = None,
    no_labels: NoLabels = False,
    missing_labels: MissingLabels = "refuse",
    label_column: LabelColumn = None,
    person_column: PersonColumn = None,
    split: Split = "train",
    skip_bad: SkipBad = False,
    internal: Annotated[bool, typer.Option("--internal", help="Errors may name private files.")] = False,
    declared_size: Annotated[int | None, typer.Option(help="About how many units there are, made public.")] = None,
) -> None:
    """Learn from a private collection and write a release."""
    import torch

    from sfumato.cli.console import ProgressBar
    from sfumato.data import PrivateImages
    from sfumato.training.cost import Cost
    from sfumato.training.run_folder import Run

    chosen = _method(method, variant, settings, config, rate, steps)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    budget = _budget(epsilon, delta, unit, no_guarantee)
    planned = chosen.plan(budget)
    reading = {
        "size": size,
        "colour": colour,
        "classes": classes,
        "no_labels": no_labels,
        "missing_labels": missing_labels,
        "label_column": label_column,
        "person_column": person_column,
        "split": split,
        "skip_bad": skip_bad,
    }
    run = Run(out, ledger=ledger)
    facts = {"method": method, "parameters": chosen.parameters(), "budget": budget.to_json(), "reading": reading}
    run.begin(facts, resume=resume)
    _show_plan(chosen, planned, to=errors)
    options = _options(size, colour, classes, no_labels, missing_labels, label_column, person_column, split, skip_bad)
    options["internal"] = internal
    private = PrivateImages.read(data, declared_size=declared_size, **options)
    cost = Cost(device, resumed=resume)
    try:
        with ProgressBar() as progress:
            release = chosen.fit(
                private,
                budget,
                run.ledger,
                device=device,
                max_images_per_unit=max_images_per_unit,
                checkpoint=run.checkpoint,
                progress=progress,
                command=_command(chosen, budget, {**reading, "declared_size": declared_size}),
                seed=seed,
            )
        cost.keep(run.internal)
        run.finish(release)
    except KeyboardInterrupt:
        errors.print(f"\nStopped. {run.ledger} holds what was spent; go on with the same command and --resume.")
        raise typer.Exit(130) from None
    console.print(release.card.sentence, soft_wrap=True)
    console.print(f"Written: {run.release}", soft_wrap=True)


@app.command()
def sample(
    release: Annotated[Path, typer.Argument(help="A run's folder or its release folder.")],
    *,
    count: Annotated[int, typer.Option(help="How many images.")] = 1000,
    out: Annotated[Path, typer.Option(help="Where to write them.")],
    format: Annotated[str, typer.Option(help="folder, npz or parquet.")] = "folder",
    labels: Annotated[str | None, typer.Option(help="Only these classes, names with commas between.")] = None,
    proportions: Annotated[bool, typer.Option("--proportions", help="Classes by the noisy counts.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeatable samples; costs nothing.")] = None,
    allow_no_guarantee: Annotated[bool, typer.Option("--allow-no-guarantee")] = False,
) -> None:
    """Draw labelled images from a release. Free: it touches no private data."""
    import numpy as np

    from sfumato.methods.registry import load
    from sfumato.release.export import export

    found = load(_release_folder(release))
    wanted = None
    if labels is not None:
        names = labels.split(",")
        unknown = [name for name in names if name not in found.classes]
        if unknown:
            raise ValueError(f"no class {unknown[0]!r}; the release has {', '.join(found.classes)}")
        wanted = np.array([found.classes.index(name) for name in names])[np.arange(count) % len(names)]
    drawn = found.sample(count, labels=wanted, proportions=proportions, seed=seed)
    written = export(
        drawn,
        out,
        format=format,  # type: ignore[arg-type]
        allow_no_guarantee=allow_no_guarantee,
    )
    console.print(found.card.sentence, soft_wrap=True)
    console.print(f"Written: {count} images to {written}", soft_wrap=True)


@app.command()
def ledger(
    path: Path,
    *,
    create: Annotated[bool, typer.Option("--create", help="Start a ledger for several runs.")] = False,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    unit: UnitOption = "image",
    release: Annotated[Path | None, typer.Option(help="Check that this release's spending is still on it.")] = None,
    as_json: Json = False,
) -> None:
    """Show, verify or create a collection's ledger."""
    from sfumato.privacy import Budget, Ledger
    from sfumato.release.card import rounded_up

    if create:
        if path.exists():
            raise FileExistsError(f"{path} exists; a ledger is never started over")
        Ledger(path, _budget(epsilon, delta, unit, False)).close()
    book = Ledger.read(path)
    spent, limit = book.spent(), book.limit
    facts: dict[str, Any] = {
        "limit": limit.to_json(),
        "spent": None if spent == float("inf") else rounded_up(spent),
        "remaining": max(0.0, limit.epsilon - spent) if isinstance(limit, Budget) else None,
        "runs": book.runs(),
        "events": [event.to_json() for event in book.events()],
        "entries": book.head[0],
        "head": book.head[1],
        "verified": True,
    }
    if release is not None:
        head = json.loads((_release_folder(release) / "card.json").read_text())["ledger_head"]
        facts["holds_release"] = book.holds(head["length"], head["hash"])
    if as_json:
        _print_json(facts)
    else:
        shown = "∞" if facts["spent"] is None else f"{facts['spent']:g}"
        console.print(
            f"spent ε {shown} of {limit.epsilon:g} at δ {limit.delta:g}, per {limit.unit}; the chain is whole"
        )
        _show_events(facts["events"])
        for run in facts["runs"]:
            console.print(f"run {run['run']}: {run['method']} {run['variant']}, {run['time']}", soft_wrap=True)
    if facts.get("holds_release") is False:
        errors.print("The release's spending is NOT on this ledger.")
        raise typer.Exit(1)


@app.command()
def demo(
    *,
    out: Annotated[Path, typer.Option(help="A new folder for everything the demo makes.")],
    data: Annotated[Path | None, typer.Option(help="Your own collection instead of drawn digits.")] = None,
    epsilon: Annotated[float, typer.Option(help="The most that may be spent.")] = 10.0,
    delta: Delta = 1e-5,
    size: Size = None,
    colour: Colour = None,
    classes: Classes = None,
    missing_labels: MissingLabels = "refuse",
    label_column: LabelColumn = None,
    person_column: PersonColumn = None,
    split: Split = "train",
    skip_bad: SkipBad = False,
) -> None:
    """The product in two minutes: a private collection in, synthetic images with a card out."""
    from sfumato.cli.demo import run_demo
    from sfumato.data import read

    options = _options(size, colour, classes, False, missing_labels, label_column, person_column, split, skip_bad)
    own = None if data is None else read(data, **options)
    run_demo(out, data=own, epsilon=epsilon, delta=delta, console=console)


@app.command()
def cache(*, clear: Annotated[bool, typer.Option("--clear", help="Remove it.")] = False) -> None:
    """Where decoded private pixels and reference statistics are kept, and how to be rid of them."""
    import shutil

    from sfumato.data.cache import clear_cache
    from sfumato.evaluation.cache import default_folder
    from sfumato.files import cache_folder

    if clear:
        clear_cache()
        shutil.rmtree(default_folder(), ignore_errors=True)
        return console.print("The cache is empty.")
    folder = cache_folder()  # evaluation keeps its statistics in a folder of it
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    console.print(f"{folder}: {size / 2**20:.1f} MiB, readable by its owner alone; --clear removes it", soft_wrap=True)


app.command("evaluate")(evaluate_command)
app.add_typer(audit_app, name="audit")
app.command("report")(report_command)
app.command("compare")(compare_command)
app.add_typer(reproduce_app, name="reproduce")


# From options to objects


def _method(
    name: str, variant: str, settings: list[str] | None, config: Path | None, rate: float | None, steps: int | None
) -> Method:
    from sfumato.methods import find

    values: dict[str, Any] = {}
    if config is not None:
        try:
            values.update(tomllib.loads(config.read_text()))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{config} is not TOML: {error}") from None
    for setting in settings or []:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ValueError(f"--set takes key=value, not {setting!r}")
        values[key.strip()] = value.strip()
    values.update({key: value for key, value in (("sampling_rate", rate), ("steps", steps)) if value is not None})
    return find(name).configured({"variant": variant, **values})


def _budget(epsilon: float | None, delta: float, unit: str, no_guarantee: bool) -> AnyBudget:
    from sfumato.privacy import Budget, NoGuarantee

    if no_guarantee:
        if epsilon is not None:
            raise ValueError("--no-guarantee has no --epsilon; give one or the other")
        return NoGuarantee(unit=unit)  # type: ignore[arg-type]
    if epsilon is None:
        raise ValueError("say how much may be spent: --epsilon 1")
    return Budget(epsilon=epsilon, delta=delta, unit=unit)  # type: ignore[arg-type]


def _classes(text: str | None) -> int | tuple[str, ...] | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else tuple(name.strip() for name in text.split(","))


def _options(
    size: int | None,
    colour: str | None,
    classes: str | None,
    no_labels: bool,
    missing_labels: str,
    label_column: str | None,
    person_column: str | None,
    split: str,
    skip_bad: bool,
) -> Options:
    """The reading options of a command as ``read`` takes them."""
    if missing_labels not in ("refuse", "leave out"):
        raise ValueError(f"--missing-labels is 'refuse' or 'leave out', not {missing_labels!r}")
    return {
        "size": size,
        "colour": colour,  # type: ignore[typeddict-item]
        "classes": _classes(classes),
        "labelled": not no_labels,
        "unlabelled": missing_labels,  # type: ignore[typeddict-item]
        "label_column": label_column,
        "person_column": person_column,
        "split": split,
        "skip_bad": skip_bad,
    }


def _command(method: Method, budget: AnyBudget, reading: dict[str, Any]) -> str:
    """The command that makes such a run, for the card: where the collection lies is nobody's business."""
    words = ["sfumato train", method.name, "DATA", f"--variant {method.variant}"]
    if budget.to_json()["epsilon"] is None:
        words.append("--no-guarantee")
    else:
        words += [f"--epsilon {budget.epsilon:g}", f"--delta {budget.delta:g}", f"--unit {budget.unit}"]
    defaults = type(method)(variant=method.variant).parameters()
    words += [f"--set {key}={value}" for key, value in method.parameters().items() if value != defaults[key]]
    usual = {"missing_labels": "refuse", "split": "train"}
    for key, value in reading.items():
        if value not in (None, False, usual.get(key)):
            name = "--" + key.replace("_", "-")
            words.append(name if value is True else f"{name} {shlex.quote(str(value))}")
    return " ".join([*words, "--out RUN"])


def _release_folder(path: Path) -> Path:
    return path / "release" if (path / "release").is_dir() else path


# Showing


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _show_plan(method: Method, planned: Plan, *, to: Any = None) -> None:
    to = to or console
    facts = planned.to_json()
    promise = "no guarantee" if facts["epsilon"] is None else f"ε {facts['epsilon']:.4g} at δ {planned.budget.delta:g}"
    to.print(f"{method.name} ({method.variant}): {promise}, {facts['relation']} ({planned.budget.unit})")
    _show_events(facts["events"], to=to)


def _show_events(events: list[dict[str, Any]], *, to: Any = None) -> None:
    table = Table("question", "steps", "rate", "σ", "blocks")
    for event in events:
        if event["kind"] == "raw access":
            table.add_row(event["name"], "", "", "", f"RAW RECORDS: {event['reason']}")
            continue
        blocks = ", ".join(f"{block['name']} {block['noise_multiplier']:.4g}" for block in event["blocks"])
        table.add_row(
            event["name"], str(event["steps"]), f"{event['rate']:g}", f"{event['noise_multiplier']:.4g}", blocks
        )
    (to or console).print(table)


def _show_work(work: Work) -> None:
    console.print(
        f"{work.parameters:,} parameters; {work.operations:.2g} floating point operations; "
        f"about {work.seconds:.0f} s at the pace of a short rehearsal on this machine's {work.device}"
    )
    table = Table("part", "steps", "records a step", "operations a step", "seconds")
    for part in work.parts:
        seconds = f"{part.steps * part.seconds:.1f}" if part.seconds else "once"
        table.add_row(part.name, str(part.steps), str(part.records or ""), f"{part.operations:.2g}", seconds)
    console.print(table)


def main() -> None:
    """One clear line for what the user can mend; a traceback only for what is our fault."""
    from sfumato.privacy import BudgetExceeded, LedgerBusy, LedgerDamaged

    expected = (ValueError, LookupError, OSError, BudgetExceeded, LedgerBusy, LedgerDamaged)
    try:
        app()
    except expected as error:
        message = error.args[0] if isinstance(error, LookupError) and error.args else error
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)
