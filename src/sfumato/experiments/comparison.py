"""A comparison's results, gathered from the files of its runs: JSON, CSV, a table, and what it cost in all."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.experiments.trial import BASELINES, EVALUATION, Cell, Terms
from sfumato.files import json_text, write_file, write_json
from sfumato.methods.registry import load
from sfumato.privacy import Event, Ledger
from sfumato.privacy.accounting import epsilon
from sfumato.release.card import rounded_up
from sfumato.report.comparison import comparison_page
from sfumato.report.internal import seconds_text
from sfumato.report.metric import SYNTHETIC, heading, printed, with_classes
from sfumato.report.public import sample_rows

if TYPE_CHECKING:
    from rich.console import Console


def gather(cells: Sequence[Cell], terms: Terms, *, failed: Mapping[str, str]) -> dict[str, Any]:
    """Everything that was measured, one entry for each method and ε. NOT PRIVATE."""
    base = _json(terms.out / BASELINES)
    baselines = [] if base is None else base["measurements"]
    groups: dict[tuple[str, float], list[Cell]] = {}
    order = list(dict.fromkeys(cell.name for cell in cells))
    for cell in sorted(cells, key=lambda cell: (order.index(cell.name), cell.epsilon, cell.number)):
        groups.setdefault((cell.name, cell.epsilon), []).append(cell)
    entries = [entry for group in groups.values() if (entry := _entry(group, terms.out, baselines)) is not None]
    # A file without an entry belongs to a run that was killed before it asked anything.
    ledgers = [path for path in sorted((terms.out / "runs").glob("*/*/*/ledger.jsonl")) if path.stat().st_size]
    events = [event for path in ledgers for event in Ledger.read(path).events()]
    total = together(events, terms.delta)
    return {
        "notice": "NOT PRIVATE: computed from real data; for internal use, not covered by any (ε, δ)",
        **terms.facts(),
        "device": terms.device,
        "protocol_details": None if base is None else base["protocol"],
        "counts": None if base is None else base["counts"],
        "versions": None if base is None else base["versions"],
        "left_out": [] if base is None else base["left_out"],
        "composed": {"epsilon": rounded_up(total), "delta": terms.delta, "ledgers": len(ledgers)},
        "entries": entries,
        "baselines": baselines,
        "failed": dict(failed),
    }


def together(events: Iterable[Event], delta: float) -> float:
    """What all runs cost one unit that is added or removed.

    Runs over shards are counted under replacement, and everything on their ledger with them: for many runs of all kinds
    that has no finite answer. The two kinds apart, at half of δ each, have one, and add up.
    """
    kinds: dict[bool, list[Event]] = {}
    for event in events:
        kinds.setdefault(getattr(event, "shards", None) is not None, []).append(event)
    total = epsilon([event for kind in kinds.values() for event in kind], delta)
    return total if math.isfinite(total) else sum(epsilon(kind, delta / 2) for kind in kinds.values())


def _entry(group: Sequence[Cell], out: Path, baselines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Mean and deviation over the finished runs of one method at one ε."""
    folders = [cell.folder(out) for cell in group]
    done = [folder for folder in folders if (folder / "internal" / EVALUATION).exists()]
    if not done:
        return None
    evaluations = [_with_baselines(folder / "internal" / EVALUATION, baselines) for folder in done]
    cards = [_json(folder / "release" / "card.json") or {} for folder in done]
    costs = [_json(folder / "internal" / "cost.json") or {} for folder in done]
    values: dict[tuple[str, str | None], list[float]] = {}
    kept: dict[tuple[str, str | None], dict[str, Any]] = {}
    for evaluation in evaluations:
        for entry in evaluation["measurements"]:
            if entry["row"] == SYNTHETIC:
                key = (heading(entry), entry["classifier"])
                values.setdefault(key, []).append(entry["mean"])
                kept.setdefault(key, {name: entry[name] for name in ("metric", "classifier", "features")})
    cell = group[0]
    return {
        "method": cell.method.name,
        "variant": cell.method.variant,
        "name": cell.name,
        "paper": cell.method.paper,
        "parameters": cell.method.parameters(),
        "epsilon": cell.epsilon,
        "spent": max(card["epsilon"] for card in cards),
        "runs": [str(folder.relative_to(out)) for folder in done],
        "metrics": [{"heading": key[0], **kept[key], **_spread(found)} for key, found in values.items()],
        "worst_class": _worst(evaluations),
        "seconds": _spread([cost["seconds"] for cost in costs]),
        "peak_memory": _spread([float(cost["peak_memory"]) for cost in costs]),
        "peak_device_memory": max((cost["peak_device_memory"] or 0 for cost in costs), default=0) or None,
        "threads": max(cost["threads"] for cost in costs),
        "resumed": sum(bool(cost["resumed"]) for cost in costs),
    }


def _with_baselines(path: Path, baselines: list[dict[str, Any]]) -> dict[str, Any]:
    """A run's evaluation, with the baselines that were measured once for all runs put beside it in its file."""
    evaluation: dict[str, Any] = json.loads(path.read_text())
    if baselines and all(entry["row"] == SYNTHETIC for entry in evaluation["measurements"]):
        evaluation["measurements"] += baselines
        write_json(path, evaluation, private=True)
    return evaluation


def _worst(evaluations: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The class that is recognised least on average over the runs."""
    shares: dict[str, list[float]] = {}
    for evaluation in evaluations:
        entry = with_classes(evaluation["measurements"])
        for item in entry["per_class"] if entry else []:
            if item["mean"] is not None:
                shares.setdefault(item["class"], []).append(item["mean"])
    if not shares:
        return None
    name = min(shares, key=lambda key: statistics.fmean(shares[key]))
    return {"class": name, **_spread(shares[name])}


def _spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


def _json(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


# Showing


def write(result: dict[str, Any], out: Path) -> list[Path]:
    """``comparison.json``, ``comparison.csv`` and ``comparison.html``; readable by their owner alone."""
    pictures = [sample_rows(load(out / entry["runs"][0] / "release"), each=10) for entry in result["entries"]]
    contents = {
        "comparison.json": json_text(result),
        "comparison.csv": _csv(result),
        "comparison.html": comparison_page(result, pictures),
    }
    return [write_file(out / name, text, private=True) for name, text in contents.items()]


def _csv(result: dict[str, Any]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = ("method", "variant", "epsilon", "spent", "delta", "unit", "data", "protocol", "metric", "classifier")
    writer.writerow((*columns, "features", "mean", "std", "runs", "private"))
    shared = (result["delta"], result["unit"], result["data"], result["protocol"])

    def line(who: tuple[Any, ...], metric: str, found: dict[str, Any], runs: int) -> None:
        features = found.get("features") or {}
        named = (metric, found.get("classifier") or "", features.get("name", ""))
        writer.writerow(
            (*who, *shared, *named, found["mean"], "" if found["std"] is None else found["std"], runs, False)
        )

    for entry in result["entries"]:
        who, runs = (entry["method"], entry["variant"], entry["epsilon"], entry["spent"]), len(entry["runs"])
        for found in entry["metrics"]:
            line(who, found["metric"], found, runs)
        for name in ("seconds", "peak_memory"):
            line(who, name, entry[name], runs)
        if entry["worst_class"] is not None:
            line(who, f"accuracy of class {entry['worst_class']['class']}, the worst", entry["worst_class"], runs)
    for found in result["baselines"]:
        line((found["row"], "baseline", "", ""), found["metric"], found, 1)
    return buffer.getvalue()


def print_table(result: dict[str, Any], console: Console) -> None:
    """One line for each method and ε: accuracies, FID where it was measured, seconds, memory."""
    from rich.table import Table

    shown = (
        [m for m in result["entries"][0]["metrics"] if m["metric"] in ("accuracy", "fid")] if result["entries"] else []
    )
    table = Table("method", "ε", title=f"protocol {result['protocol']} · {result['data']}", title_justify="left")
    for name in (*(_short(metric) for metric in shown), "worst class, %", "seconds", "peak MiB"):
        table.add_column(name, justify="right")
    for entry in result["entries"]:
        found = {metric["heading"]: metric for metric in entry["metrics"]}
        cells = [_cell(found[metric["heading"]]) for metric in shown]
        worst = entry["worst_class"]
        cells.append("–" if worst is None else f"{100 * worst['mean']:.1f} ({worst['class']})")
        cells += [seconds_text(entry["seconds"]["mean"]), f"{entry['peak_memory']['mean'] / 2**20:.0f}"]
        table.add_row(entry["name"], f"{entry['epsilon']:g}", *cells)
    console.print(table)
    composed = result["composed"]
    console.print(
        f"In all, {composed['ledgers']} run{'s' * (composed['ledgers'] != 1)} asked this collection, one ledger each: "
        f"together ε = {composed['epsilon']:g} at δ = {composed['delta']:g} for each {result['unit']}.",
        soft_wrap=True,
        highlight=False,
    )
    console.print(result["notice"], style="bold red", highlight=False, soft_wrap=True)


def _short(metric: dict[str, Any]) -> str:
    """A terminal is narrow: a classifier's name stands for its accuracy."""
    return f"{metric['classifier']}, %" if metric["metric"] == "accuracy" else metric["heading"]


def _cell(found: dict[str, Any]) -> str:
    return printed(found["metric"], found["mean"], found["std"])
