"""``sfumato compare``: every certified method on the same data, with the same sampler, accountant and metrics.

Each training is a run of its own: a folder with its release, its ledger and its evaluation, each written whole. So a
comparison that was killed goes on where it was when the same command is given again. Its numbers are NOT PRIVATE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import console, errors
from sfumato.experiments.processes import run_tasks
from sfumato.experiments.trial import Baselines, Cell, Terms, Trial, begin

if TYPE_CHECKING:
    from sfumato.methods import Method

# Torch is imported where it is used: ``sfumato --help`` should not wait for it.


def compare_command(
    data: Annotated[Path, typer.Argument(help="The private collection: image folder, npz, idx folder, parquet.")],
    *,
    out: Annotated[Path, typer.Option(help="The comparison's folder. The same command again goes on in it.")],
    methods: Annotated[str, typer.Option(help="'all', or names with commas between; NAME:VARIANT for a variant.")] = (
        "all"
    ),
    epsilon: Annotated[str, typer.Option(help="Budgets, with commas between.")] = "1,10",
    delta: Annotated[float, typer.Option(help="δ of the guarantee; well below one over the number of units.")] = 1e-5,
    unit: Annotated[str, typer.Option(help="What is protected: 'image', or 'person' by a person column.")] = "image",
    seeds: Annotated[int, typer.Option(min=1, help="Independent trainings of each method at each ε.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="steps=200 for every method that has it; dp-merf.features=500.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="sinkhorn, dppm, dpdm or bench.")] = "sinkhorn",
    images: Annotated[int | None, typer.Option(help="Synthetic images of each run [default: the protocol's].")] = None,
    feature_images: Annotated[int | None, typer.Option(min=12, help="Images of each set for FID and its kin.")] = None,
    no_inception: Annotated[bool, typer.Option("--no-inception", help="Do without FID and KID.")] = False,
    test: Annotated[Path | None, typer.Option(help="The real test images, if they lie elsewhere.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time [default: one for each core, one on a GPU].")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    size: Annotated[int | None, typer.Option(help="Resize to a square of this many pixels.")] = None,
    colour: Annotated[str | None, typer.Option(help="grey or rgb; by default as the files are.")] = None,
    classes: Annotated[str | None, typer.Option(help="The label set: a number, or names with commas.")] = None,
    label_column: Annotated[str | None, typer.Option(help="parquet: the label's column.")] = None,
    person_column: Annotated[str | None, typer.Option(help="parquet: the person's column.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Train and judge every certified method alike, and write a table, a curve and a page. NOT PRIVATE."""
    import torch

    from sfumato.evaluation.protocols import protocol_named
    from sfumato.experiments.comparison import gather, print_table, write

    count = images or protocol_named(protocol).synthetic_count
    options: dict[str, Any] = {"size": size, "colour": colour, "classes": _classes(classes)}
    options |= {"label_column": label_column, "person_column": person_column}
    chosen_device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    terms = Terms(
        data=data,
        test=test,
        options={key: value for key, value in options.items() if value is not None},  # type: ignore[arg-type]
        delta=delta,
        unit=unit,
        protocol=protocol,
        images=count,
        feature_images=feature_images,
        with_inception=not no_inception,
        device=chosen_device,
        out=out,
    )
    chosen = chosen_methods(methods, settings or [])
    cells = [Cell(m, e, number) for number in range(seeds) for e in _budgets(epsilon) for m in chosen]
    _show_plan(cells, terms)
    failed = run_all(cells, terms, jobs=jobs or (1 if chosen_device == "cuda" else os.cpu_count() or 1))
    result = gather(cells, terms, failed=failed)
    written = write(result, out)
    if as_json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        print_table(result, console)
        console.print(f"Written: {', '.join(path.name for path in written)} in {out}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


# What is compared


def chosen_methods(names: str, settings: Iterable[str]) -> list[Method]:
    """Configured methods: each registered one in its first certified form, or those that are named."""
    from sfumato.methods import METHODS, find

    wanted = []
    for name in METHODS if names == "all" else [part.strip() for part in names.split(",")]:
        base, _, variant = name.partition(":")
        certified = find(base).certified_variants()
        if variant and variant not in certified:
            listed = ", ".join(certified) or "none"
            raise ValueError(f"{base} has no certified variant {variant!r}; it has {listed}. Only these are compared")
        if certified:
            wanted.append((base, variant or certified[0]))
    values: dict[str, dict[str, str]] = {base: {} for base, _ in wanted}
    for setting in settings:
        key, separator, value = (part.strip() for part in setting.partition("="))
        if not separator:
            raise ValueError(f"--set takes key=value or method.key=value, not {setting!r}")
        owner, dot, own_key = key.rpartition(".")
        takers = [owner] if dot else [base for base, _ in wanted if key in find(base)().parameters()]
        if not takers or takers[0] not in values:
            raise ValueError(f"--set {key}: none of the compared methods ({', '.join(values)}) takes it")
        for taker in takers:
            values[taker][own_key] = value
    return [find(base).configured({"variant": variant, **values[base]}) for base, variant in wanted]


def _budgets(text: str) -> list[float]:
    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"--epsilon takes numbers with commas between, such as 1,10, not {text!r}") from None
    return found


def _classes(text: str | None) -> int | tuple[str, ...] | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else tuple(name.strip() for name in text.split(","))


def _show_plan(cells: Sequence[Cell], terms: Terms) -> None:
    """What all runs will cost together, before anything is touched; a budget that cannot be met is refused here."""
    from sfumato.experiments.comparison import together
    from sfumato.privacy import Budget

    budgets = {cell.epsilon: Budget(cell.epsilon, terms.delta, terms.unit) for cell in cells}  # type: ignore[arg-type]
    plans = {(cell.name, cell.epsilon): cell.method.plan(budgets[cell.epsilon]) for cell in cells if not cell.number}
    events = [event for cell in cells for event in plans[cell.name, cell.epsilon].events]
    total = together(events, terms.delta)
    errors.print(
        f"{len(cells)} run{'s' * (len(cells) != 1)}: together they will cost ε = {total:.3g} at δ = {terms.delta:g} "
        f"for each {terms.unit}.",
        highlight=False,
        soft_wrap=True,
    )


# Running


def run_all(cells: Sequence[Cell], terms: Terms, *, jobs: int) -> dict[str, str]:
    """Do what is not done yet, ``jobs`` at a time; what failed, and why."""
    places = {"path": str(terms.data.resolve()), "test": None if terms.test is None else str(terms.test.resolve())}
    begin(terms.out, {**terms.facts(), **places}, what="comparison")
    return run_tasks([Baselines(terms), *(Trial(cell, terms) for cell in cells)], jobs=jobs)
