"""The page of a comparison: one curve, one table, samples of every method at every ε. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from sfumato.report.chart import Point, Series, curve, figure
from sfumato.report.internal import seconds_text
from sfumato.report.metric import REAL, headline, printed
from sfumato.report.watermark import not_private_page


def comparison_page(result: dict[str, Any], pictures: Sequence[str]) -> str:
    """``pictures`` are ``data:`` addresses, one for each entry."""
    composed, entries = result["composed"], result["entries"]
    spent = f'ε = {composed["epsilon"]:g} at δ = <span class="whole">{composed["delta"]:g}</span>'
    body = [
        f"<h1>Comparison on {escape(result['data'])}</h1>",
        f"<p>{_count(len({entry['name'] for entry in entries}))}, the same data, sampler, accountant and metrics "
        f"(protocol {escape(result['protocol'])}). Every run kept a ledger of its own; together the "
        f"{composed['ledgers']} runs cost this collection {spent} for each {escape(result['unit'])}.</p>",
    ]
    if entries:
        body += [_curve(result), _table(result), _samples(entries, pictures), _settings(result)]
    body += [f"<p>Failed: {escape(name)}: {escape(reason)}</p>" for name, reason in result["failed"].items()]
    return not_private_page(f"comparison on {result['data']}", "".join(body))


def _count(methods: int) -> str:
    return "One certified method" if methods == 1 else f"{methods} certified methods"


def _curve(result: dict[str, Any]) -> str:
    lines: dict[str, list[Point]] = {}
    classifier = ""
    for entry in result["entries"]:
        found = [metric for metric in entry["metrics"] if metric["metric"] == "accuracy"]
        if not found:
            return ""
        main, classifier = found[-1], found[-1]["classifier"]
        deviation = None if main["std"] is None else 100 * main["std"]
        lines.setdefault(entry["name"], []).append(Point(entry["epsilon"], 100 * main["mean"], deviation))
    real = headline(result["baselines"], REAL)
    chart = curve(
        [Series(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in lines.items()],
        x="ε (left: more private)",
        y=f"{classifier} accuracy on real test images, %",
        references={} if real is None else {REAL: 100 * real["mean"]},
        within=(0.0, 100.0),
    )
    runs = max(len(entry["runs"]) for entry in result["entries"])
    bars = (
        f"Error bars: one standard deviation over {runs} trainings."
        if runs > 1
        else "One training each: no error bars."
    )
    return "<h2>Privacy and utility</h2>" + figure("Which method makes the most of a given ε?", chart, bars)


def _table(result: dict[str, Any]) -> str:
    entries = result["entries"]
    shown = [metric for metric in entries[0]["metrics"] if metric["metric"] in ("accuracy", "fid", "kid", "coverage")]
    names = [metric["heading"] for metric in shown]
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in (*names, "worst class, %", "time", "memory"))
    rows = []
    for entry in entries:
        found = {metric["heading"]: metric for metric in entry["metrics"]}
        worst = entry["worst_class"]
        cells = [printed(found[name]["metric"], found[name]["mean"], found[name]["std"]) for name in names]
        cells.append("–" if worst is None else f"{100 * worst['mean']:.1f} ({worst['class']})")
        cells += [_time(entry), _memory(entry)]
        rows.append(_row(f"{entry['name']}, ε {entry['epsilon']:g}", cells))
    by_row: dict[str, dict[tuple[str, str | None, str | None], str]] = {}
    for entry in result["baselines"]:
        by_row.setdefault(entry["row"], {})[_key(entry)] = printed(entry["metric"], entry["mean"], entry["std"])
    for row, cells_of in by_row.items():
        rows.append(_row(row, [*(cells_of.get(_key(metric), "–") for metric in shown), "–", "–", "–"]))
    counts = result["counts"]
    note = (
        "Mean ± standard deviation over trainings. Time and peak memory are those of one training in a process of its "
        f"own with {entries[0]['threads']} thread{'s' * (entries[0]['threads'] != 1)} ({result['device']})."
    )
    if counts is not None:
        bound = counts["feature_images_at_most"]
        note += (
            f" {result['images']} synthetic images of each run; distances from "
            f"{'all' if bound is None else f'at most {bound}'} of each set."
        )
    resumed = sum(entry["resumed"] for entry in entries)
    if resumed:
        note += (
            f" {resumed} training{'s were' if resumed > 1 else ' was'} resumed after an interruption: the time counts "
            "from there, and steps that were charged and then lost are missing."
        )
    note += "".join(f" Left out: {entry['metric']}: {entry['reason']}." for entry in result["left_out"])
    table = f'<div class="scroll"><table class="wide"><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'
    return "<h2>Every number</h2>" + figure("How good is each method, and what does it take?", table, note)


def _key(entry: dict[str, Any]) -> tuple[str, str | None, str | None]:
    return entry["metric"], entry["classifier"], (entry["features"] or {}).get("name")


def _row(name: str, cells: Sequence[str]) -> str:
    return f"<tr><th>{escape(name)}</th>{''.join(f'<td class=number>{escape(cell)}</td>' for cell in cells)}</tr>"


def _time(entry: dict[str, Any]) -> str:
    seconds = entry["seconds"]
    text = seconds_text(seconds["mean"])
    return text if seconds["std"] is None else f"{text} ± {seconds['std']:.1f} s"


def _memory(entry: dict[str, Any]) -> str:
    text = f"{entry['peak_memory']['mean'] / 2**20:.0f} MiB"
    device = entry["peak_device_memory"]
    return text if device is None else f"{text} + {device / 2**20:.0f} MiB on the GPU"


def _samples(entries: Sequence[dict[str, Any]], pictures: Sequence[str]) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(entry['name'])}, ε {entry['epsilon']:g}</figcaption>"
        f'<img src="{picture}" alt="Samples of {escape(entry["name"])} at ε {entry["epsilon"]:g}"></figure>'
        for entry, picture in zip(entries, pictures, strict=True)
    )
    return (
        "<h2>Samples</h2><p><i>What do the images look like?</i> A row for each class, ten images of the first "
        f'training.</p><div class="gallery">{figures}</div>'
    )


def _settings(result: dict[str, Any]) -> str:
    rows = {}
    for entry in result["entries"]:
        parameters = ", ".join(f"{key} = {value}" for key, value in entry["parameters"].items())
        rows[entry["name"]] = f"{entry['paper']}. {parameters}"
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items())
    versions = ", ".join(f"{name} {version}" for name, version in (result["versions"] or {}).items())
    return f'<h2>Settings</h2><table class="made">{body}</table><p class="note">{escape(versions)}</p>'
