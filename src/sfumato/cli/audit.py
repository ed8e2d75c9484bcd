"""``sfumato audit``: attacks on a guarantee. Exit status 1 when something is flagged, 0 when nothing is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import ProgressBar, print_json, print_table, say
from sfumato.cli.options import AllowCustom

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget, Budget, PrivateRecords


LIMIT = 200
"""Units of a user's collection that take part in an audit: replay's cost grows with them, what it shows does not."""


def find_method(name: str, variant: str, settings: list[str] | None, *, real_schedule: bool = False) -> Method:
    """A registered method, or a class of the user's own, in its small form with some parameters changed.

    With ``real_schedule`` sampling rates and numbers of steps are those of the default form, the networks stay small.
    """
    from sfumato.methods import find

    kind = find(name)
    small = kind.small(variant)
    values: dict[str, Any] = {}
    if real_schedule:
        default = kind(variant=small.variant).parameters()
        values = {name: value for name, value in default.items() if name.endswith(("sampling_rate", "steps"))}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes key=value, not {setting!r}")
        values[key.strip()] = value.strip()
    return kind.configured({**small.parameters(), **values}) if values else small


def budget_for(method: Method, epsilon: float, delta: float, unit: str) -> AnyBudget:
    """A budget, or none for an algorithm that needs the raw records."""
    from sfumato.privacy import Budget, NoGuarantee

    if method.raw_access:
        return NoGuarantee(unit=unit)  # type: ignore[arg-type]
    budget: Budget = Budget(epsilon, delta, unit=unit)  # type: ignore[arg-type]
    return budget


def collection(data: Path | None, size: int | None, unit: str, seed: int, classes: str | None = None) -> PrivateRecords:
    """Random and worst-case images, or some of the user's own."""
    import numpy as np

    from sfumato.audit.worst_case import worst_case_images
    from sfumato.data import PrivateImages

    if data is None:
        return worst_case_images(96, size=size or 28, persons=unit == "person")
    names = None if classes is None else int(classes) if classes.isdigit() else classes.split(",")
    private = PrivateImages.read(data, size=size, classes=names)
    rows = np.sort(np.random.default_rng(seed).permutation(len(private._labels))[:LIMIT])
    persons = private._persons
    if persons is not None:
        persons = np.unique(np.asarray(persons)[rows], return_inverse=True)[1]
    return PrivateImages(
        private._pixels[rows], np.asarray(private._labels)[rows], classes=private.classes, persons=persons
    )


def release_images(path: Path, classes: tuple[str, ...], split: str, size: int | None, limit: int) -> tuple[Any, Any]:
    """Pixels and labels, the labels numbered as the release numbers its classes."""
    from sfumato.data.images import read

    found = read(path, split=split, size=size, classes=classes)
    return found.pixels[:limit], found.labels[:limit]


audit_app = typer.Typer(help="Attack a guarantee: exit status 1 when something is found.", no_args_is_help=True)

MethodName = Annotated[str, typer.Argument(help="A method's name, or your own class as module:Class.")]
Variant = Annotated[str, typer.Option(help="A variant of the method.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A parameter: --set steps=20. Default: small().")]
Data = Annotated[Path | None, typer.Option(help="Audit on these images instead of drawn ones. Results are internal.")]
Size = Annotated[int | None, typer.Option(help="Resize to a square of this many pixels.")]
UnitOption = Annotated[str, typer.Option("--unit", help="image or person.")]
Epsilon = Annotated[float, typer.Option(help="The budget under which the method runs.")]
Delta = Annotated[float, typer.Option(help="δ of the budget.")]
Seed = Annotated[int, typer.Option(help="Of the audit's own draws.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@audit_app.command("replay")
def replay_command(
    method: MethodName,
    *,
    variant: Variant = "certified",
    data: Data = None,
    size: Size = None,
    classes: Annotated[str | None, typer.Option(help="With --data: a number, or names with commas between.")] = None,
    unit: UnitOption = "image",
    pairs: Annotated[int, typer.Option(min=1, help="Neighbours for each kind of unit.")] = 40,
    search: Annotated[int, typer.Option(min=0, help="Units that the search for a larger movement tries.")] = 40,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    settings: Settings = None,
    full: Annotated[
        int, typer.Option(min=0, help="Instead: this many neighbours at the method's real sampling rate and steps.")
    ] = 0,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run a method on D and on D without one unit, for every kind of worst-case unit, and compare."""
    from sfumato.audit.replay import replay
    from sfumato.audit.worst_case import Sweep, sweep

    chosen = find_method(method, variant, settings, real_schedule=full > 0)
    budget = budget_for(chosen, epsilon, delta, unit)
    private = collection(data, size, unit, seed, classes)
    options: dict[str, Any] = {"budget": budget, "seed": seed}
    with ProgressBar(still=True) as bar:
        options["progress"] = bar.report
        if full:
            result = Sweep({"any": replay(chosen, private, pairs=full, fresh_process=True, **options)})
        else:
            result = sweep(chosen, private, pairs=pairs, tries=search, **options)
    if as_json:
        print_json({"method": chosen.name, "variant": chosen.variant, **result.to_json()})
        raise typer.Exit(int(result.total.flagged))
    total = result.total
    kind = "claimed" if budget.to_json()["epsilon"] is None else "paid for"
    print_table(
        ("unit", "pairs", f"largest movement ÷ {kind}", "broken rules"),
        [
            (
                name,
                str(one.pairs),
                "\n".join(f"{where}: {value:.6f}" for where, value in one.movement.items()),
                "\n".join(str(finding) for finding in one.findings) or "none",
            )
            for name, one in result.kinds.items()
        ],
    )
    for where in total.vacuous():
        say(f"VACUOUS: no unit moved {where} near its bound; replay shows nothing about it")
    say(f"{'FLAGGED' if total.flagged else 'nothing flagged'}: {total.pairs} pairs, {result.tried} by search")
    raise typer.Exit(int(total.flagged))


@audit_app.command("noise")
def noise_command(
    method: Annotated[str | None, typer.Argument(help="A method; without one, the generator alone.")] = None,
    *,
    variant: Variant = "certified",
    unit: UnitOption = "image",
    runs: Annotated[int, typer.Option(min=2, help="Runs of the method.")] = 10,
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Test the scale, normality and independence of the noise, and the Poisson sampling."""
    from sfumato.audit.noise import audit_generator, audit_noise

    found = {"generator": audit_generator()}
    if method is not None:
        chosen = find_method(method, variant, settings)
        private = collection(None, None, unit, 0)
        allowed = budget_for(chosen, epsilon, delta, unit)
        with ProgressBar(still=True) as bar:
            found[method] = audit_noise(chosen, private, budget=allowed, runs=runs, progress=bar.report)
    flagged = any(one.flagged for one in found.values())
    if as_json:
        print_json({name: one.to_json() for name, one in found.items()})
        raise typer.Exit(int(flagged))
    for name, one in found.items():
        print_table(
            (f"test of {name}", "numbers", "chance", "would expose", ""),
            [(t.name, str(t.size), f"{t.chance:.2g}", t.exposes, "FAILED" if t.failed else "") for t in one.tests],
        )
    raise typer.Exit(int(flagged))


@audit_app.command("canary")
def canary_command(
    method: MethodName,
    *,
    variant: Variant = "certified",
    canaries: Annotated[int, typer.Option(min=10, help="In one run; at most the size of an answer.")] = 1000,
    runs: Annotated[int, typer.Option(min=1, help="Each with canaries of its own.")] = 1,
    black_box: Annotated[bool, typer.Option("--black-box", help="Attack released images as well.")] = False,
    unit: UnitOption = "image",
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    settings: Settings = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Lower bounds on ε by attack. Exit 1 when a method's measured ε is above the printed one."""
    from sfumato.audit import canary
    from sfumato.privacy import Budget

    chosen = find_method(method, variant, settings)
    budget = budget_for(chosen, epsilon, delta, unit)
    if not isinstance(budget, Budget):
        raise ValueError("this variant has no guarantee, so there is no ε to refute; audit replay measures its claims")
    private = collection(None, None, unit, seed)
    options: dict[str, Any] = {"budget": budget, "seed": seed}
    audits = [
        canary.white_box(chosen, private, canaries=canaries, runs=runs, **options),
        canary.accountant_check(chosen.plan(budget).events, delta=delta, seed=seed),
    ]
    if black_box:
        audits.append(canary.black_box(chosen, private, **options))
    if as_json:
        print_json({"method": chosen.name, "variant": chosen.variant, "audits": [one.to_json() for one in audits]})
    for one in audits if not as_json else ():
        say(f"{one}; the attacker {one.bound.threat}; assumes {one.bound.assumes}")
    raise typer.Exit(int(any(one.flagged for one in audits)))


@audit_app.command("membership")
def membership_command(
    release: Annotated[Path, typer.Argument(help="A run's folder or a release folder.")],
    *,
    members: Annotated[Path, typer.Option(help="Images that were in the collection.")],
    others: Annotated[Path, typer.Option(help="Images of the same kind that were not.")],
    split: Annotated[str, typer.Option(help="Which part of --members.")] = "train",
    others_split: Annotated[str, typer.Option(help="Which part of --others.")] = "test",
    limit: Annotated[int, typer.Option(min=10, help="Images of each.")] = 1000,
    samples: Annotated[int, typer.Option(min=10, help="Released images to look through.")] = 5000,
    size: Size = None,
    shadows: Annotated[int, typer.Option(min=0, help="Shadow models for LiRA, of the small form; 0 for none.")] = 0,
    allow_custom: AllowCustom = False,
    as_json: Json = False,
) -> None:
    """Membership attacks: GAN-Leaks, likelihood and, with --shadows, LiRA. INTERNAL."""
    from sfumato.audit.membership import NOTICE, attacks_on, distance, likelihood, lira
    from sfumato.methods.registry import load
    from sfumato.privacy import Budget

    found = load(release, allow_custom=allow_custom)
    inside = release_images(members, found.classes, split, size, limit)
    outside = release_images(others, found.classes, others_split, size, limit)
    attacks = attacks_on(found, inside, outside, samples=samples)
    if shadows:
        small = find_method(found.card.method, found.card.variant, None)
        score = likelihood if hasattr(small, "density") else distance(500)
        budget = Budget(found.card.epsilon or 1e3, found.card.delta or 1e-5)
        pool = (inside[0][:100], inside[1][:100])
        attacks.append(lira(small, *pool, classes=found.classes, budget=budget, score=score, shadows=shadows))
    if as_json:
        return print_json({"notice": NOTICE, "attacks": [one.to_json() for one in attacks]})
    for one in attacks:
        say(str(one))
    say(NOTICE)
    return None


@audit_app.command("release")
def release_command(
    path: Annotated[Path, typer.Argument(help="A run's folder or a release folder.")],
    *,
    members: Annotated[Path | None, typer.Option(help="Images that were in the collection. Internal.")] = None,
    others: Annotated[Path | None, typer.Option(help="Images of the same kind that were not.")] = None,
    size: Size = None,
    limit: Annotated[int, typer.Option(min=10, help="Images of each.")] = 1000,
    pairs: Annotated[int, typer.Option(min=1)] = 10,
    canaries: Annotated[int, typer.Option(min=10)] = 250,
    card: Annotated[bool, typer.Option(help="Put the audits' lines on the release's card.")] = True,
    allow_custom: AllowCustom = False,
    as_json: Json = False,
) -> None:
    """Run the audits that apply, write audit.json beside the release and add the public lines to its card."""
    from sfumato.audit.release_audit import audit_release, write
    from sfumato.methods.registry import load

    found = load(path, allow_custom=allow_custom)
    inside = None if members is None else release_images(members, found.classes, "train", size, limit)
    outside = None if others is None else release_images(others, found.classes, "test", size, limit)
    with ProgressBar(still=True) as bar:
        audit = audit_release(path, members=inside, others=outside, pairs=pairs, canaries=canaries, progress=bar.report)
    written = write(audit, path, on_card=card)
    if as_json:
        print_json(audit)
        raise typer.Exit(int(audit["flagged"]))
    for line in (*audit["card"]["problems"], *audit["lines"]):
        say(line)
    say(f"Written: {written}")
    raise typer.Exit(int(audit["flagged"]))


@audit_app.command("recompute")
def recompute_command(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was trained with --keep-key.")],
    *,
    data: Annotated[
        Path | None, typer.Option(help="The collection, if it lies elsewhere than when it was trained on.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="The collection's ledger [default: the run's own].")] = None,
    until: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda [default: as the card says].")] = None,
    allow_custom: AllowCustom = False,
    as_json: Json = False,
) -> None:
    """Train again from data and key, and compare every noisy answer with the ledger. INTERNAL. Charges nothing.

    Exit status 1 if an answer, or in the end the weights, are others.
    """
    from sfumato.audit.recompute import recompute
    from sfumato.cli.options import device_named
    from sfumato.cli.train import read_as_trained

    images, facts = read_as_trained(run, data)
    from sfumato.data import PrivateImages

    private = PrivateImages.from_images(images, declared_size=facts["declared_size"])
    with ProgressBar() as bar:
        found = recompute(
            run,
            private,
            ledger=ledger,
            until=until,
            device=None if device is None else device_named(device),
            allow_custom=allow_custom,
            progress=bar,
        )
    if as_json:
        print_json(found.to_json())
        raise typer.Exit(int(not found.agrees))
    for remark in found.remarks:
        say(remark)
    same = found.compared - found.different
    say(f"{same} of {found.compared} answers have the hash on the ledger, which has {found.answers}")
    if found.first is not None:
        event, step, block = found.first
        say(f"DIFFERENT from {event!r}, step {step}, block {block!r} on")
    if found.weights is not None:
        told = "the same, bit for bit" if found.weights == 0 else f"DIFFERENT by {found.weights:.2g} of their norm"
        say(f"the weights are {told}")
    raise typer.Exit(int(not found.agrees))
