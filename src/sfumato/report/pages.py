"""The public page of a release, and the internal page: how useful the images are, what they repeat, what they cost.

The public one shows the card, its guarantee in probabilities, and samples of every class. The internal one is
NOT PRIVATE.
"""

from __future__ import annotations

import base64
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from sfumato.evaluation import private_views
from sfumato.evaluation.results import REAL, EvaluationResult, MemorisationSummary
from sfumato.planning.expected_use import Use
from sfumato.privacy.events import RawAccess
from sfumato.release import Release
from sfumato.release.card import FALSE_ALARMS, Card
from sfumato.release.pages import data_address, grid, render, render_card
from sfumato.release.plain_numbers import guesses_text, of_hundred, percent, recognised_by_definition
from sfumato.report.chart import (
    Bar,
    Point,
    Series,
    bars,
    counts_text,
    curve,
    dots,
    left_out_text,
    measurement_table,
    mebibytes_text,
)
from sfumato.texts import duration
from sfumato.training.run import Run, release_folder

TEMPLATES = Path(__file__).parent / "templates"
WATERMARK = "NOT PRIVATE"


def not_private_page(title: str, body: str) -> str:
    """``body``, which is markup, under the watermark."""
    return render_not_private("not_private.html.jinja", title=title, content=Markup(body))


def render_not_private(template: str, *, title: str, **values: Any) -> str:
    """A page by a template that extends ``not_private.html.jinja``."""
    return render(template, folders=(TEMPLATES,), title=title, **values)


def recognised(card: Card) -> list[tuple[int, float]]:
    """For one false alarm in so many, the bound: the card's, computed from its events, or that of (ε, δ) alone."""
    if card.epsilon is None or card.delta is None:
        return []
    known = card.recognised or {}
    return [
        (often, min(known.get(str(often), 1.0), recognised_by_definition(card.epsilon, card.delta, 1 / often)))
        for often in FALSE_ALARMS
    ]


@dataclass(frozen=True)
class AttackBounds:
    """What the public page says about the best possible attacker."""

    guess: str
    dots: Markup
    recognised: list[tuple[int, str]]


def attack_bounds(card: Card) -> AttackBounds | None:
    """The bounds of a certified card; ``None`` where nothing bounds an attacker."""
    if not card.certified:
        return None
    right = of_hundred(card.best_guess)
    label = f"Of 100 guesses, 50 are right by chance and at most {right} in all"
    shares = [(often, percent(share)) for often, share in recognised(card)]
    text = guesses_text(card.epsilon or 0.0, card.delta or 0.0, card.unit, card.best_guess)
    return AttackBounds(text, dots(common=50, added=right - 50, label=label), shares)


EACH = 10
CLASSES_AT_MOST = 50


def public_page(release: Release) -> str:
    """The whole page. The same release always gives the same page: the samples come from a fixed seed."""
    card = release.card
    return render_card(
        "public.html.jinja", card, folders=(TEMPLATES,), attack=attack_bounds(card), strips=_strips(release)
    )


def sample_rows(release: Release, *, each: int) -> str:
    """One picture with a row of ``each`` samples for every class, as a ``data:`` address."""
    images = _samples(release, each)
    return data_address(grid(images, columns=each, scale=max(1, 32 // images.shape[-1])))


def _strips(release: Release) -> list[tuple[str, str]]:
    images = _samples(release, EACH)
    scale = max(1, 56 // images.shape[-1])
    parts = images.reshape(-1, EACH, *images.shape[1:])
    pictures = (data_address(grid(part, columns=EACH, scale=scale)) for part in parts)
    return list(zip(release.classes, pictures, strict=False))


def _samples(release: Release, each: int) -> np.ndarray:
    labels = np.repeat(np.arange(len(release.classes[:CLASSES_AT_MOST])), each)
    return release.sample(len(labels), labels=labels, seed=1, device="cpu").images


@dataclass(frozen=True)
class RunFolder:
    """A run: the folder above ``release/``, or a release alone."""

    path: Path

    @property
    def release(self) -> Path:
        return release_folder(self.path)

    @property
    def internal(self) -> Path:
        """The folder of what only the custodian may see."""
        return Run(self.path).internal

    @property
    def name(self) -> str:
        """The last parts of its path, which tell runs apart."""
        parts = self.path.resolve().parts[-3:] if self.path.name.startswith("run-") else (self.path.resolve().name,)
        return " / ".join(parts)

    def card(self) -> Card:
        return Card.from_json(self.card_entries())

    def card_entries(self) -> dict[str, Any]:
        """The entries of ``card.json`` as they are, for the scan, which also looks at a card that is not valid."""
        path = self.release / "card.json"
        if not path.is_file():
            raise FileNotFoundError(f"{self.path} holds no finished run: there is no release/card.json")
        entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return entries

    def notes(self) -> dict[str, Any]:
        """Every JSON file of ``internal/`` by name."""
        found = {}
        for path in sorted(self.internal.glob("*.json")):
            try:
                found[path.name] = json.loads(path.read_text())
            except ValueError:
                raise ValueError(f"{path} is not JSON; remove it or write it again") from None
        return found

    def evaluations(self) -> list[EvaluationResult]:
        """What ``sfumato evaluate --json`` wrote."""
        found = [
            note
            for note in self.notes().values()
            if isinstance(note, dict) and {"measurements", "protocol"} <= set(note)
        ]
        return [EvaluationResult.from_json(note) for note in found]

    def cost(self) -> dict[str, Any] | None:
        """Seconds and memory of the training, where they were measured."""
        cost: dict[str, Any] | None = self.notes().get("cost.json")
        return cost

    def neighbours(self) -> str | None:
        """The picture of nearest private neighbours as a ``data:`` address."""
        return _picture(self.internal / "neighbours.png")

    def side_by_side(self) -> tuple[str, str] | None:
        """The pictures of real and of synthetic images of each class as ``data:`` addresses."""
        folder = self.internal / "side_by_side"
        real, synthetic = _picture(folder / private_views.REAL), _picture(folder / private_views.SYNTHETIC)
        return None if real is None or synthetic is None else (real, synthetic)


def _picture(path: Path) -> str | None:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.is_file() else None


_USUAL_SHARE = 0.02
"""The share of fresh images below the threshold is 0.01; up to twice that is within the spread of small sets."""


def verdict(card: Card, evaluations: Sequence[EvaluationResult]) -> str:
    """Guarantee, use and copies in one sentence."""
    guarantee = "No guarantee"
    if card.epsilon is not None:
        guarantee = f"Certified at ε = {card.epsilon:g} for each {card.unit}"
    parts = [guarantee, _use(evaluations)]
    found = next((one.memorisation for one in evaluations if one.memorisation is not None), None)
    if found is not None:
        parts.append(_copies(found))
    return "; ".join(parts) + "."


def _use(evaluations: Sequence[EvaluationResult]) -> str:
    for one in evaluations:
        main, real = one.headline(), one.headline(REAL)
        if main is None or real is None:
            continue
        chance = 1 / len(one.classes)
        share = (main.mean - chance) / (real.mean - chance) if real.mean > chance else 0.0
        return (
            f"{Use.of(share)} use: a {main.classifier} trained on the synthetic images labels {100 * main.mean:.1f} % "
            f"of real test images correctly, trained on real images {100 * real.mean:.1f} %, by guessing "
            f"{100 * chance:.1f} %"
        )
    return "its use was not measured"


def _copies(found: MemorisationSummary) -> str:
    share = found.share_nearer_than_one_percent_of_test
    if found.exact_copies:
        return f"LOOK AT THE PAIRS: {found.exact_copies} synthetic images are exact copies of private ones"
    if share > _USUAL_SHARE:
        return f"look at the nearest pairs: {100 * share:.1f} % of the images are nearer to private ones than is usual"
    return "no copies were found"


def internal_page(runs: Sequence[RunFolder]) -> str:
    """One page for one run or for several, which then share a privacy-utility curve."""
    cards = [run.card() for run in runs]
    heading = f"{cards[0].method}, ε = {epsilon_text(cards[0])}" if len(runs) == 1 else f"{len(runs)} runs"
    return render_not_private(
        "internal.html.jinja",
        title=f"internal report, {heading}",
        heading=heading,
        curves=_curves(runs, cards) if len(runs) > 1 else [],
        runs=[_section(run, card) for run, card in zip(runs, cards, strict=True)],
    )


def epsilon_text(card: Card) -> str:
    """The ε of a card, or ∞."""
    return "∞" if card.epsilon is None else f"{card.epsilon:g}"


def _section(run: RunFolder, card: Card) -> dict[str, Any]:
    evaluations = run.evaluations()
    found = next((one.memorisation for one in evaluations if one.memorisation is not None), None)
    return dict(
        title=f"{run.name}: {card.method}, ε = {epsilon_text(card)}",
        verdict=verdict(card, evaluations),
        evaluations=[_evaluation(one) for one in evaluations],
        memorisation=None if found is None else _memorisation(found),
        neighbours=run.neighbours(),
        side_by_side=_side_by_side(run, card),
        cost=_cost(run.cost(), card),
    )


def _side_by_side(run: RunFolder, card: Card) -> dict[str, Any] | None:
    found = run.side_by_side()
    if found is None:
        return None
    most = private_views.CLASSES_AT_MOST
    which = "each class" if len(card.classes) <= most else f"each of the first {most} classes"
    note = f"A row for {which}. The left images are PRIVATE; the right ones are drawn from the release."
    return dict(classes=card.classes[:most], real=found[0], synthetic=found[1], note=note)


def _curves(runs: Sequence[RunFolder], cards: Sequence[Card]) -> list[dict[str, Any]]:
    """A curve for each pair of protocol and data: values of different protocols never share one."""
    groups: dict[tuple[str, str], dict[tuple[str, float], list[float]]] = {}
    real: dict[tuple[str, str], tuple[str, float]] = {}
    for run, card in zip(runs, cards, strict=True):
        for evaluation in run.evaluations():
            key = (evaluation.protocol.name, evaluation.data)
            main, baseline = evaluation.headline(), evaluation.headline(REAL)
            if main is None or card.epsilon is None:
                continue
            name = f"{card.method} ({card.variant})"
            groups.setdefault(key, {}).setdefault((name, card.epsilon), []).append(100 * main.mean)
            if baseline is not None:
                real.setdefault(key, (str(main.classifier), 100 * baseline.mean))
    return [dict(protocol=key[0], data=key[1], chart=_chart(found, real.get(key))) for key, found in groups.items()]


def _chart(found: dict[tuple[str, float], list[float]], real: tuple[str, float] | None) -> Markup:
    lines: dict[str, list[Point]] = {}
    for (name, epsilon), values in sorted(found.items()):
        deviation = statistics.stdev(values) if len(values) > 1 else None
        lines.setdefault(name, []).append(Point(epsilon, statistics.fmean(values), deviation))
    return curve(
        [Series(name, tuple(points)) for name, points in lines.items()],
        x="ε spent (left: more private)",
        y=f"{real[0] if real else ''} accuracy on real test images, %".strip(),
        references={} if real is None else {REAL: real[1]},
    )


def _evaluation(evaluation: EvaluationResult) -> dict[str, Any]:
    protocol = evaluation.protocol
    note = (
        f"Protocol {protocol.name} ({protocol.papers}), data {evaluation.data}, seeds "
        f"{', '.join(map(str, evaluation.seeds))}. {counts_text(evaluation.counts)}{left_out_text(evaluation.left_out)}"
    )
    chart, below = _classes(evaluation)
    table = measurement_table(evaluation.measurements)
    return dict(table=table, note=note, classes=chart, classes_note=below)


def _classes(evaluation: EvaluationResult) -> tuple[Markup | None, str]:
    entry, real = evaluation.by_class(), evaluation.by_class(REAL)
    if entry is None or entry.per_class is None:
        return None, ""
    marks = {} if real is None else {one.name: one.mean for one in real.per_class or ()}
    worst = None if entry.worst_class is None else entry.worst_class.name
    chart = bars(
        [
            Bar(one.name, one.mean, marks.get(one.name), worst=one.name == worst)
            for one in entry.per_class
            if one.mean is not None
        ]
    )
    line = " The line marks the accuracy of the same classifier trained on real images." if marks else ""
    note = (
        f"The share of each class's real test images that a {entry.classifier} recognises after training on synthetic "
        f"images. Red: the class with the lowest accuracy, {worst}.{line}"
    )
    return chart, note


def _memorisation(summary: MemorisationSummary) -> dict[str, Any]:
    share = summary.share_nearer_than_one_percent_of_test
    chart = bars([Bar("synthetic", share, 0.01), Bar("fresh real", 0.01)], full=max(0.05, 1.2 * share))
    note = (
        f"The share of {summary.synthetic_count} synthetic images that are nearer to a training image than 99 % of "
        f"{summary.test_count} real test images are; 1 % (the line) is what fresh images show. Exact copies: "
        f"{summary.exact_copies}. Median distance to the nearest training image: {summary.median_distance:.3f}, of "
        f"real test images {summary.median_distance_of_test:.3f} (root mean square on 0..1). This finds copies; "
        "finding none proves nothing. The guarantee rests on the ledger."
    )
    return dict(chart=chart, note=note)


def _cost(cost: dict[str, Any] | None, card: Card) -> list[tuple[str, str]]:
    spent = "ε = ∞" if card.epsilon is None else f"ε = {card.epsilon:g} at δ = {card.delta:g}"
    queries = ", ".join(
        event.name if isinstance(event, RawAccess) else f"{event.name} × {event.steps}" for event in card.events
    )
    rows = [("privacy", spent), ("queries", queries)]
    if cost is None:
        return [*rows, ("time and memory", "not recorded for this run")]
    device = cost.get("peak_device_memory")
    memory = mebibytes_text(cost["peak_memory"]) + ("" if device is None else f", GPU {mebibytes_text(device)}")
    return [
        *rows,
        ("training", duration(cost["seconds"]) + (", since it was resumed" if cost["resumed"] else "")),
        ("peak memory", memory),
        ("machine", f"{cost['device']}, {cost['threads']} thread{'s' * (cost['threads'] != 1)}"),
    ]
