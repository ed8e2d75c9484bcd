"""The internal page: how good the synthetic images are, what they repeat, what they cost. NOT PRIVATE."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from typing import Any

from sfumato.privacy.events import RawAccess
from sfumato.release.card import Card
from sfumato.report.chart import Bar, Point, Series, bars, curve, figure
from sfumato.report.folder import RunFolder
from sfumato.report.metric import REAL, SYNTHETIC, heading, headline, printed, scaled, with_classes
from sfumato.report.watermark import not_private_page


def internal_page(runs: Sequence[RunFolder]) -> str:
    """One page for one run or for several, which then share a privacy-utility curve."""
    cards = [run.card() for run in runs]
    title = f"{cards[0].method}, ε = {epsilon_text(cards[0])}" if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>Internal report: {escape(title)}</h1>"]
    if len(runs) > 1:
        body.append(_together(runs, cards))
    for run, card in zip(runs, cards, strict=True):
        if len(runs) > 1:
            body.append(f'<h2 class="run">{escape(run.name)}: {escape(card.method)}, ε = {epsilon_text(card)}</h2>')
        body += [_quality(run), _memorisation(run), _cost(run, card)]
    return not_private_page(f"internal report, {title}", "".join(body))


def epsilon_text(card: Card) -> str:
    return "∞" if card.epsilon is None else f"{card.epsilon:g}"


# Several runs


def _together(runs: Sequence[RunFolder], cards: Sequence[Card]) -> str:
    """A curve for each pair of protocol and data: numbers of different protocols never share one."""
    groups: dict[tuple[str, str], dict[tuple[str, float], list[float]]] = {}
    references: dict[tuple[str, str], tuple[str, float]] = {}
    for run, card in zip(runs, cards, strict=True):
        for evaluation in run.evaluations():
            key = (evaluation["protocol"]["name"], evaluation["data"])
            main, real = headline(evaluation["measurements"]), headline(evaluation["measurements"], REAL)
            if main is None or card.epsilon is None:
                continue
            name = f"{card.method} ({card.variant})"
            groups.setdefault(key, {}).setdefault((name, card.epsilon), []).append(100 * main["mean"])
            if real is not None:
                references.setdefault(key, (main["classifier"], 100 * real["mean"]))
    if not groups:
        return _nothing_measured()
    parts = ["<h2>Privacy and utility</h2>"]
    for (protocol, data), found in groups.items():
        classifier, real_level = references.get((protocol, data), ("", None))
        chart = curve(
            _series(found),
            x="ε spent (left: more private)",
            y=f"{classifier} accuracy on real test images, %".strip(),
            references={} if real_level is None else {REAL: real_level},
            within=(0.0, 100.0),
        )
        parts.append(
            figure(
                "How much use does a larger ε buy?",
                chart,
                f"Protocol {protocol}, data {data}. A classifier learns from synthetic images alone. "
                "Error bars: one standard deviation over runs of the same method and ε.",
            )
        )
    return "".join(parts)


def _series(found: dict[tuple[str, float], list[float]]) -> list[Series]:
    lines: dict[str, list[Point]] = {}
    for (name, epsilon), values in sorted(found.items()):
        deviation = statistics.stdev(values) if len(values) > 1 else None
        lines.setdefault(name, []).append(Point(epsilon, statistics.fmean(values), deviation))
    return [Series(name, tuple(points)) for name, points in lines.items()]


# One run


def _nothing_measured() -> str:
    return (
        "<p>No evaluation was found in <code>internal/</code>. To measure one:</p><p><code>sfumato sample RUN --out "
        "SYNTHETIC</code><br><code>sfumato evaluate SYNTHETIC --real DATA --json RUN/internal/evaluation.json "
        "--neighbours RUN/internal/neighbours.png</code></p>"
    )


def _quality(run: RunFolder) -> str:
    evaluations = run.evaluations()
    parts = ["<h2>Are the images any use?</h2>"]
    if not evaluations:
        return parts[0] + _nothing_measured()
    for evaluation in evaluations:
        parts.append(_metrics(evaluation) + _classes(evaluation))
    return "".join(parts)


def _metrics(evaluation: dict[str, Any]) -> str:
    entries = evaluation["measurements"]
    rows = list(dict.fromkeys(entry["row"] for entry in entries))
    table: dict[str, dict[str, str]] = {}
    for entry in entries:
        table.setdefault(heading(entry), {})[entry["row"]] = printed(entry["metric"], entry["mean"], entry["std"])
        worst = entry["worst_class"]
        if entry["metric"] == "accuracy" and worst is not None:
            name = f"worst class, {entry['classifier']}"
            table.setdefault(name, {})[entry["row"]] = f"{scaled('accuracy', worst['mean']):.1f} ({worst['class']})"
    head = "".join(f'<th class="number">{escape(row)}</th>' for row in rows)
    body = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(
            f'<td class="number{" own" if not place else ""}">{escape(cells.get(row, "–"))}</td>'
            for place, row in enumerate(rows)
        )
        + "</tr>"
        for name, cells in table.items()
    )
    protocol, counts = evaluation["protocol"], evaluation["counts"]
    bound = counts["feature_images_at_most"]
    left_out = "".join(f" Left out: {entry['metric']}: {entry['reason']}." for entry in evaluation["left_out"])
    note = (
        f"Protocol {protocol['name']} ({protocol['papers']}), data {evaluation['data']}, seeds "
        f"{', '.join(map(str, evaluation['seeds']))}. {counts['synthetic'][0]} synthetic, {counts['real_train']} real "
        f"training and {counts['real_test']} real test images; distances from "
        f"{'all' if bound is None else f'at most {bound}'} of each set.{left_out}"
    )
    return figure(
        "How do the synthetic images score beside real images and noise?",
        f'<div class="scroll"><table class="wide"><tr><th></th>{head}</tr>{body}</table></div>',
        note,
    )


def _classes(evaluation: dict[str, Any]) -> str:
    entry, real = (with_classes(evaluation["measurements"], row) for row in (SYNTHETIC, REAL))
    if entry is None:
        return ""
    known = [item for item in entry["per_class"] if item["mean"] is not None]
    marks = {} if real is None else {item["class"]: item["mean"] for item in real["per_class"]}
    worst = entry["worst_class"]["class"] if entry["worst_class"] else None
    chart = bars([Bar(i["class"], i["mean"], marks.get(i["class"]), worst=i["class"] == worst) for i in known])
    line = " The line marks what the same classifier reaches when it learns from real images." if marks else ""
    return figure(
        "Which classes are served worst?",
        chart,
        f"Of each class's real test images, the share that a {entry['classifier']} recognises after learning from "
        f"synthetic images. Red: the worst class, {worst}.{line}",
    )


def _memorisation(run: RunFolder) -> str:
    found = [evaluation["internal"]["memorisation"] for evaluation in run.evaluations()]
    picture = run.neighbours()
    if not found and picture is None:
        return ""
    parts = ["<h2>Does it repeat private images?</h2>"]
    for summary in found[:1]:
        share = summary["share_nearer_than_one_percent_of_test"]
        parts.append(
            figure(
                "Are synthetic images closer to private ones than fresh real images are?",
                bars([Bar("synthetic", share, 0.01), Bar("fresh real", 0.01)], full=max(0.05, 1.2 * share)),
                f"The share of {summary['synthetic_count']} synthetic images that lie nearer to a training image than "
                f"99 % of {summary['test_count']} real test images do; 1 % (the line) is what fresh images show. Exact "
                f"copies: {summary['exact_copies']}. Median distance to the nearest training image: "
                f"{summary['median_distance']:.3f}, of real test images {summary['median_distance_of_test']:.3f} (root "
                "mean square on 0..1). This finds copies; finding none proves nothing. What holds is the ledger.",
            )
        )
    if picture is not None:
        parts.append(
            figure(
                "Which private image is nearest?",
                f'<img src="{picture}" style="width:100%" alt="Synthetic images above their nearest private ones">',
                "In each pair a synthetic image above, its nearest PRIVATE training image below; nearest pairs first.",
            )
        )
    return "".join(parts)


def _cost(run: RunFolder, card: Card) -> str:
    rows = {"privacy": "ε = ∞" if card.epsilon is None else f"ε = {card.epsilon:g} at δ = {card.delta:g}"}
    rows["questions"] = ", ".join(
        event.name if isinstance(event, RawAccess) else f"{event.name} × {event.steps}" for event in card.events
    )
    cost = run.cost()
    if cost is None:
        rows["time and memory"] = "not recorded for this run"
    else:
        rows["training"] = seconds_text(cost["seconds"]) + (", since it was resumed" if cost["resumed"] else "")
        rows["peak memory"] = memory_text(cost)
        rows["machine"] = f"{cost['device']}, {cost['threads']} thread{'s' * (cost['threads'] != 1)}"
    body = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in rows.items())
    return f'<h2>What did it cost?</h2><table class="short">{body}</table>'


def seconds_text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def memory_text(cost: dict[str, Any]) -> str:
    """Of the process; and of the accelerator, where there was one."""
    text = f"{cost['peak_memory'] / 2**20:.0f} MiB"
    device = cost.get("peak_device_memory")
    return text if device is None else f"{text}, accelerator {device / 2**20:.0f} MiB"
