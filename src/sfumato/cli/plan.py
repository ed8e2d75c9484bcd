"""``sfumato plan``: what a run would spend and cost, before any data is read; ``sfumato methods``; what an ε means."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import ProgressBar, print_json, print_table, remark, say
from sfumato.cli.options import DeclaredSize, Device, Json, MethodOptions, TimeLimit, device_named
from sfumato.options import BudgetOptions
from sfumato.texts import duration

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.planning.expected_use import PublicFacts
    from sfumato.planning.plan import MethodPlan
    from sfumato.privacy import Plan
    from sfumato.training.profiling import Work


DELTA = 1e-5
EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


def print_epsilon_table(*, as_json: bool) -> None:
    """What an ε means for someone in the data: how far it can move any probability, and an attacker's guess."""
    from sfumato.release.plain_numbers import LEVELS, factor_text, guess_by_definition, level, percent

    facts = [(epsilon, guess_by_definition(epsilon, DELTA)) for epsilon in EPSILONS]
    if as_json:
        return print_json([{"epsilon": e, "factor": math.exp(e), "best_guess": guess} for e, guess in facts])
    headings = ("ε", "guarantee", "any probability changes by a factor of at most", "guesses that are right, at most")
    print_table(headings, [(f"{e:g}", level(e).name, factor_text(e), percent(guess)) for e, guess in facts])
    say(
        "Someone guesses whether a given person (or image) was in the collection, and half of such guesses are right "
        f"by chance. The last column is what everything that is released can raise this to at δ {DELTA:g}, whatever "
        "the method; a card says what the noise of its own method lowers it to."
    )
    return say(f"{LEVELS} δ is the probability with which the bound may fail altogether.")


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the parameters of this method.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the methods and their variants, or one method's parameters."""
    from sfumato.methods import METHODS, find

    if name is None:
        found = {key: find(key) for key in METHODS}
        if as_json:
            return print_json([{"method": k, "variants": dict(m.variants), "paper": m.paper} for k, m in found.items()])
        variants = {key: "\n".join(f"{v}: {about}" for v, about in m.variants.items()) for key, m in found.items()}
        return print_table(("method", "variants", "paper"), [(key, variants[key], m.paper) for key, m in found.items()])
    method = find(name)
    parameters = method().parameters()
    if as_json:
        facts = {"method": name, "paper": method.paper, "variants": dict(method.variants), "parameters": parameters}
        return print_json(facts)
    rows = [(key, str(value)) for key, value in parameters.items()]
    return print_table(("parameter", "default"), rows, title=f"{name}: {method.paper}")


def plan(
    method: Annotated[str | None, typer.Argument(help="A method's name [default: every certified method].")] = None,
    *,
    budget: BudgetOptions,
    parameters: MethodOptions,
    size: Annotated[
        int | None, typer.Option(min=1, help="The image size [default: 28]; for one method: measure what a run costs.")
    ] = None,
    declared_size: DeclaredSize = None,
    channels: Annotated[int, typer.Option(min=1, max=3, help="1 for grey, 3 for colour.")] = 1,
    classes: Annotated[int, typer.Option(min=1, help="The number of classes.")] = 10,
    time_limit: TimeLimit = None,
    device: Device = "auto",
    epsilon_table: Annotated[bool, typer.Option("--epsilon-table", help="Say in plain numbers what ε means.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a run would spend, cost and be good for: of one method, or of all. Reads no data."""
    if epsilon_table:
        return print_epsilon_table(as_json=as_json)
    device = device_named(device)
    if method is None:
        facts = _public_facts(budget, declared_size, shape=(channels, size or 28), classes=classes)
        return _plan_all(parameters, facts, device=device, time_limit=time_limit, as_json=as_json)
    one = parameters.configured(method)
    planned = one.plan(budget.budget(declared_size=declared_size))
    if not as_json:
        say(plan_text(one, planned))
    shape = None if size is None else (channels, size, size)
    work = None if shape is None else _measured(one, declared_size, shape=shape, classes=classes, device=device)
    if as_json:
        print_json(_facts(one, planned, work))
    elif work is not None:
        _say_work(work)
        facts = _public_facts(budget, declared_size, shape=(channels, size or 28), classes=classes)
        _say_use(one, facts)
    return None


def _public_facts(
    budget: BudgetOptions, declared_size: int | None, *, shape: tuple[int, int], classes: int
) -> PublicFacts:
    """The facts of a plan, as ``train`` takes them; ε is 1 where none is given."""
    from sfumato.planning.expected_use import PublicFacts
    from sfumato.planning.plan import ASSUMED_SIZE

    if budget.no_guarantee:
        raise ValueError("--no-guarantee: name the method; all of them are compared under a guarantee only")
    if budget.epsilon is None:
        remark("No --epsilon was given: this is for ε 1.")
    given = replace(budget, epsilon=budget.epsilon or 1.0)
    allowed = given.budget(declared_size=declared_size)
    return PublicFacts(
        declared_size=declared_size or ASSUMED_SIZE,
        size=shape[1],
        channels=shape[0],
        classes=classes,
        epsilon=allowed.epsilon,
        delta=allowed.delta,
        unit=allowed.unit,
    )


def _say_use(method: Method, facts: PublicFacts) -> None:
    from sfumato.planning.plan import plan_method

    row = plan_method(method, facts)
    say(f"expected use: {row.expected_use or 'unknown'}; {row.why}")


def _plan_all(
    parameters: MethodOptions, facts: PublicFacts, *, device: str, time_limit: float | None, as_json: bool
) -> None:
    """A row for every certified method; nothing is calibrated or timed, so that the table is there at once."""
    from sfumato.planning.plan import TIME_LIMIT, choose_method, plan_all

    if parameters.values():
        raise ValueError(f"--set {next(iter(parameters.values()))}: name the method that has this parameter")
    rows = plan_all(facts)
    if as_json:
        return print_json([row.to_json() for row in rows])
    say(
        f"{facts.declared_size:,} {facts.unit}s, {facts.size}×{facts.size}, {facts.classes} classes, "
        f"ε {facts.epsilon:g} at δ {facts.delta:g}"
    )
    headings = ("method", "CPU core", "H200 GPU", "memory", "expected use", f"{facts.unit}s for")
    print_table(
        headings,
        [
            (
                row.method,
                _seconds(row.cpu_seconds),
                _seconds(row.gpu_seconds),
                f"{row.memory / 2**30:.1f} GiB",
                "unknown" if row.share is None else f"{row.expected_use} {100 * row.share:.0f} %",
                _units_for_more(row, facts),
            )
            for row in rows
        ],
    )
    say(
        "Expected use: hopeless, rough or good, and the share of the accuracy that real images give to a classifier, "
        "counted from chance. It is predicted from measurements on MNIST; for images that are harder to learn it is "
        "too high. The last column: how many the next better use takes at this ε. Times are rough ones for one core of "
        "a server and one GPU; 'sfumato plan METHOD --size N' measures them here."
    )
    limit = TIME_LIMIT if time_limit is None else 60 * time_limit
    choice = choose_method(facts, device=device, time_limit=limit)
    return say(f"Without --method, 'sfumato train' takes {choice.why}.")


def _units_for_more(row: MethodPlan, facts: PublicFacts) -> str:
    """How many units the next better use takes at this budget."""
    from sfumato.planning.expected_use import GOOD_FROM, Use, units_needed

    if row.share is None or row.expected_use is Use.GOOD:
        return ""
    hopeless = row.expected_use is Use.HOPELESS
    needed = row.rough_from if hopeless else units_needed(row.method, facts, GOOD_FROM)
    word = "rough" if hopeless else "good"
    return f"{word}: never" if needed is None else f"{word}: {needed:,}"


def _seconds(seconds: float) -> str:
    """A time with its seconds, for bills that are written in CPU or GPU seconds.

    >>> _seconds(42), _seconds(9000)
    ('42 s', '2.5 h (9,000s)')
    """
    shown = duration(seconds)
    return shown if shown.endswith(" s") else f"{shown} ({seconds:,.0f}s)"


def _measured(
    method: Method, declared_size: int | None, *, shape: tuple[int, int, int], classes: int, device: str
) -> Work:
    from sfumato.planning.plan import ASSUMED_SIZE
    from sfumato.training.profiling import rehearse

    with ProgressBar() as progress:
        progress.report("timing steps on random images", 0, 0)
        return rehearse(method, shape=shape, classes=classes, images=declared_size or ASSUMED_SIZE, device=device)


def _facts(method: Method, planned: Plan, work: Work | None) -> dict[str, Any]:
    from sfumato.privacy import Budget
    from sfumato.release.plain_numbers import best_guess

    facts = {"method": method.name, "parameters": method.parameters(), **planned.to_json()}
    facts["best_guess"] = best_guess(planned.events) if isinstance(planned.budget, Budget) else 1.0
    return facts if work is None else {**facts, "work": work.to_json()}


def plan_text(method: Method, planned: Plan) -> str:
    """The plan of a method as ``print`` shows it."""
    return f"{method.name} ({method.variant}): {planned}"


def _say_work(work: Work) -> None:
    say(
        f"{work.parameters:,} parameters; {work.operations:.2g} floating-point operations; "
        f"about {duration(work.seconds)}, extrapolated from a few steps on this machine's {work.device}"
    )
    rows = []
    for part in work.parts:
        seconds = f"{part.steps * part.seconds:.1f}" if part.seconds else "once"
        rows.append((part.name, str(part.steps), str(part.records or ""), f"{part.operations:.2g}", seconds))
    print_table(("part", "steps", "records per step", "operations per step", "seconds"), rows)
