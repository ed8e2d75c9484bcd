"""``sfumato plan``: what a run would spend and cost, before any data is read; and ``sfumato methods``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import ProgressBar, duration, print_json, print_table, remark, remark_table, say
from sfumato.cli.options import BudgetOptions, Device, Json, MethodOptions, device_named

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import Plan
    from sfumato.training.profiling import Work


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
    size: Annotated[int | None, typer.Option(min=1, help="Also measure what a run costs, at this image size.")] = None,
    images: Annotated[int, typer.Option(min=1, help="With --size: the number of images.")] = 60_000,
    channels: Annotated[int, typer.Option(min=1, max=3, help="With --size: 1 for grey, 3 for colour.")] = 1,
    classes: Annotated[int, typer.Option(min=1, help="With --size: the number of classes.")] = 10,
    device: Device = "auto",
    epsilon_table: Annotated[bool, typer.Option("--epsilon-table", help="Say in plain numbers what ε means.")] = False,
    as_json: Json = False,
) -> None:
    """What a run would spend and, with --size, what it costs in work and time. Reads no data."""
    if epsilon_table:
        return _print_epsilon_table(as_json=as_json)
    allowed = budget.budget()
    device = device_named(device)
    chosen = [parameters.configured(method)] if method is not None else certified_methods(parameters)
    shape = None if size is None else (channels, size, size)
    plans = ((one, one.plan(allowed)) for one in chosen)
    if method is None:
        return _plan_all(list(plans), shape=shape, classes=classes, images=images, device=device, as_json=as_json)
    one, planned = next(plans)
    if not as_json:
        _say_plan(one, planned)
    work = None if shape is None else _measured(one, shape=shape, classes=classes, images=images, device=device)
    if as_json:
        print_json(_facts(one, planned, work))
    elif work is not None:
        _say_work(work)
    return None


def _print_epsilon_table(*, as_json: bool) -> None:
    """What an ε means for someone in the data: how far it can move any probability, and an attacker's belief."""
    facts = [
        {
            "epsilon": epsilon,
            "factor": math.exp(epsilon),
            "belief_from_half": attacker_belief(0.5, epsilon),
            "belief_from_one_percent": attacker_belief(0.01, epsilon),
        }
        for epsilon in EPSILONS
    ]
    if as_json:
        return print_json(facts)
    say("Someone guesses whether a person (or an image) is in the data, and then sees everything that is released.")
    headings = ("ε", "any probability changes by a factor of at most", "a guess of 50 % becomes at most", "of 1 %")
    beliefs = ("belief_from_half", "belief_from_one_percent")
    rows = [(f"{f['epsilon']:g}", f"{f['factor']:,.1f}", *(percent(f[key]) for key in beliefs)) for f in facts]
    print_table(headings, rows)
    return say(
        "ε 1 or less is a strong guarantee, ε 3 a moderate one; at ε 10 the bound itself protects little, and known "
        "attacks reach much less than it. δ is the probability with which the bound may fail altogether."
    )


EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


def attacker_belief(prior: float, epsilon: float) -> float:
    """The largest probability that an attacker can reach who started at ``prior`` (Bayes' rule, δ left out).

    >>> round(attacker_belief(0.5, 1.0), 3)
    0.731
    """
    return prior * math.exp(epsilon) / (prior * math.exp(epsilon) + 1 - prior)


def percent(share: float) -> str:
    """A share as per cent, rounded up, so that a bound stays a bound.

    >>> percent(0.7311), percent(0.99995)
    ('73.2 %', '99.995 %')
    """
    for digits in (1, 2, 3, 4):
        shown = math.ceil(share * 10 ** (digits + 2) - 1e-9) / 10**digits
        if shown < 100:
            return f"{shown:.{digits}f} %"
    return "almost 100 %"


def certified_methods(parameters: MethodOptions) -> list[Method]:
    """Every registered method in its certified form, with those of the parameters that it has."""
    from sfumato.methods import METHODS, find

    chosen = []
    for name in METHODS:
        kind = find(name)
        if kind.certified_variants():
            variant = kind.certified_variants()[0]
            known = kind(variant=variant).parameters()
            given = {key: value for key, value in parameters.values().items() if key in known}
            chosen.append(kind.configured({"variant": variant, **given}))
    unknown = [key for key in parameters.values() if not any(key in one.parameters() for one in chosen)]
    if unknown:
        raise ValueError(f"--set {unknown[0]}: no method has such a parameter")
    return chosen


def _plan_all(
    plans: Sequence[tuple[Method, Plan]],
    *,
    shape: tuple[int, int, int] | None,
    classes: int,
    images: int,
    device: str,
    as_json: bool,
) -> None:
    works: list[Work | None] = [None] * len(plans)
    if shape is not None:
        with ProgressBar() as progress:
            for number, (method, _) in enumerate(plans):
                progress.report("measuring", number, len(plans))
                works[number] = _measured(method, shape=shape, classes=classes, images=images, device=device)
            progress.report("measuring", len(plans), len(plans))
    if as_json:
        return print_json([_facts(method, planned, work) for (method, planned), work in zip(plans, works, strict=True)])
    rows = []
    for (method, planned), work in zip(plans, works, strict=True):
        noise = "\n".join(f"{event.name}: {event.noise_multiplier:.3g}" for event in planned.events)
        steps = "\n".join(str(event.steps) for event in planned.events)
        cost = () if work is None else (f"{work.parameters:,}", f"{work.operations:.2g}", duration(work.seconds))
        rows.append((method.name, f"{planned.epsilon:.3f}", steps, noise, *cost))
    headings = ("method", "ε", "steps", "noise multiplier")
    measured = () if shape is None else ("parameters", "operations", f"time on this {device}")
    return print_table((*headings, *measured), rows)


def _measured(method: Method, *, shape: tuple[int, int, int], classes: int, images: int, device: str) -> Work:
    from sfumato.training.profiling import rehearse

    return rehearse(method, shape=shape, classes=classes, images=images, device=device)


def _facts(method: Method, planned: Plan, work: Work | None) -> dict[str, Any]:
    from sfumato.privacy import Budget
    from sfumato.release.attack_bounds import best_guess

    facts = {"method": method.name, "parameters": method.parameters(), **planned.to_json()}
    facts["best_guess"] = best_guess(planned.events) if isinstance(planned.budget, Budget) else 1.0
    return facts if work is None else {**facts, "work": work.to_json()}


def _headline(method: Method, planned: Plan) -> str:
    facts = planned.to_json()
    spent = "no guarantee" if facts["epsilon"] is None else f"ε {facts['epsilon']:.4g} at δ {planned.budget.delta:g}"
    return f"{method.name} ({method.variant}): {spent}, {facts['relation']} ({planned.budget.unit})"


QUERY_HEADINGS = ("query", "steps", "sampling rate", "noise multiplier", "blocks")


def query_rows(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of a table of ledger events, as ``Event.to_json`` gives them."""
    for event in events:
        if event["kind"] == "raw access":
            yield event["name"], "", "", "", f"RAW RECORDS: {event['reason']}"
            continue
        blocks = ", ".join(f"{block['name']} {block['noise_multiplier']:.4g}" for block in event["blocks"])
        yield event["name"], str(event["steps"]), f"{event['rate']:g}", f"{event['noise_multiplier']:.4g}", blocks


def _say_plan(method: Method, planned: Plan) -> None:
    say(_headline(method, planned))
    print_table(QUERY_HEADINGS, query_rows(planned.to_json()["events"]))


def remark_plan(method: Method, planned: Plan) -> None:
    """Show the plan on standard error, before a training."""
    remark(_headline(method, planned))
    remark_table(QUERY_HEADINGS, query_rows(planned.to_json()["events"]))


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
