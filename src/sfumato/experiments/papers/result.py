"""An entry's numbers, gathered from the files of its trainings: the paper's beside ours. NOT PRIVATE."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from sfumato.evaluation.metrics import METRICS
from sfumato.evaluation.results import NOTICE, SYNTHETIC, mean_and_std
from sfumato.experiments.papers.collection import collections
from sfumato.experiments.papers.rows import Layout, Row
from sfumato.experiments.papers.scale import REPETITIONS, Scale
from sfumato.experiments.papers.specification import Entry, Paper, Value
from sfumato.methods import Method

RESULT = "result.json"
TORCH = torch.__version__
OWN_DISTANCE = "own-class distance"
_CLASSIFIERS = ("LR", "MLP", "CNN")
_METRICS = {"fid": "FID", "inception_score": "IS", "frechet_distance": OWN_DISTANCE}


def gather(paper: Paper, entry: Entry, layout: Layout, *, scale: Scale, failed: dict[str, str]) -> dict[str, Any]:
    """JSON-ready: one row for each setting in each case."""
    size = {
        "records_at_most": scale.records,
        "images": None if entry.experiment else scale.images,
        "trainings": scale.trainings,
        "inception": scale.inception,
    }
    rows = [_measured(paper, entry, row) for row in layout.rows]
    command = f"sfumato reproduce {paper.key} {entry.name} --scale {scale.name}"
    head = heading(paper, entry, scale=scale.name, size=size, command=command, machine=machine(), torch=TORCH)
    return {**head, "rows": rows, "failed": failed}


def heading(
    paper: Paper, entry: Entry, *, scale: str, size: dict[str, Any], command: str, machine: str, torch: str
) -> dict[str, Any]:
    """What a result says before its rows."""
    return {
        "notice": NOTICE,
        "paper": paper.key,
        "entry": entry.name,
        "title": entry.title,
        "scale": scale,
        "matches": None if scale == "full" else "nothing: the small scale shows that it runs",
        "size": size,
        "protocol": entry.protocol,
        "delta": entry.delta,
        "command": command,
        "machine": machine,
        "torch": torch,
    }


def _measured(paper: Paper, entry: Entry, row: Row) -> dict[str, Any]:
    written = [json.loads(path.read_text()) for path in row.files if path.exists()]
    wanted = row.setting.baseline or SYNTHETIC
    method = row.cells[0].method if row.cells else None
    trained = bool(written) and bool(row.setting.method)
    return filled(
        paper,
        entry,
        row,
        found=[_values(one["measurements"], wanted) for one in written],
        spent=[one["guarantee"]["epsilon"] for one in written] if trained else [],
        holds=written[0].get("holds") if written else None,
        method=method,
        parameters=written[0].get("parameters", {}) if row.experiments and written else {},
        megabytes=_megabytes(row),
        seconds=_seconds(row),
    )


def filled(
    paper: Paper,
    entry: Entry,
    row: Row,
    *,
    found: Sequence[Mapping[str, float]],
    spent: Sequence[float | None],
    method: Method | None,
    holds: float | None = None,
    parameters: Mapping[str, Any] | None = None,
    megabytes: float | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """A row of the result: ``found`` are the numbers of each training, ``spent`` the ε of each."""
    printed = {metric: values[row.place] for metric, values in row.setting.paper.items()}
    names = list(entry.metrics)
    if found and "FID" in names and "FID" not in found[0]:
        names.insert(names.index("FID") + 1, OWN_DISTANCE)
    values = {name: _compared(printed.get(name), [one[name] for one in found if name in one]) for name in names}
    given = dict(parameters or {}) if method is None else {**method.parameters(), **row.look.sampling}
    return {
        "setting": row.setting.name,
        "data": collections()[row.case.data].title,
        "used": None if row.found is None else row.found.collection.title,
        "remark": "" if row.found is None else row.found.remark,
        "records": row.case.records,
        "missing": row.setting.missing,
        "method": row.setting.method or None,
        "variant": None if method is None else method.variant,
        "parameters": given,
        "claimed": "–" if row.setting.baseline else _text(row.case.epsilon),
        "holds": _holds(paper, row, holds),
        "ran": bool(found) and not row.setting.baseline,
        "trained": bool(spent),
        "epsilon": None if None in spent or not spent else max(value for value in spent if value is not None),
        "trainings": len(found),
        "counts": {key: value for key, value in given.items() if key in REPETITIONS and spent},
        "megabytes": megabytes,
        "seconds": seconds,
        "values": {name: value for name, value in values.items() if value is not None},
    }


def _values(measurements: list[dict[str, Any]], row: str) -> dict[str, float]:
    """The numbers of one training by the name that papers use, in the unit they print."""
    found = {}
    for entry in measurements:
        if entry["row"] != row:
            continue
        if entry["metric"] == "accuracy" and entry["classifier"] in _CLASSIFIERS:
            found[entry["classifier"]] = METRICS["accuracy"].scale * entry["mean"]
        else:
            scale = METRICS[entry["metric"]].scale if entry["metric"] in METRICS else 1.0
            found[_METRICS.get(entry["metric"], entry["metric"])] = scale * entry["mean"]
    return found


def _compared(paper: Value | None, ours: list[float]) -> dict[str, Any] | None:
    if paper is None and not ours:
        return None
    mean, deviation = mean_and_std(ours) if ours else (None, None)
    return {
        "paper": None if paper is None else paper.mean,
        "paper_std": None if paper is None else paper.std,
        "mean": mean,
        "std": deviation,
        "values": ours,
    }


def _megabytes(row: Row) -> float | None:
    if row.terms is None or not row.cells:
        return None
    path = row.cells[0].folder(row.terms.out) / "release" / "model.safetensors"
    return path.stat().st_size / 1e6 if path.exists() else None


def _seconds(row: Row) -> float | None:
    if row.terms is None:
        return None
    costs = [cell.folder(row.terms.out) / "internal" / "cost.json" for cell in row.cells]
    found = [float(json.loads(path.read_text())["seconds"]) for path in costs if path.exists()]
    return mean_and_std(found)[0] if found else None


def _text(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else "∞"


def _holds(paper: Paper, row: Row, found: float | None) -> str:
    """What the paper's ε is worth: known for its own method, not checked where it cites others."""
    if row.setting.baseline or math.isinf(row.case.epsilon):
        return "–"
    if row.setting.holds:
        return row.setting.holds
    if found is not None:
        return f"{found:.3g}"
    if row.setting.method != paper.key:
        return "?"
    if not paper.holds:
        return "none"
    really = paper.really(row.case.epsilon)
    return "?" if really is None else _text(really)


def machine() -> str:
    """The device that torch computes on here."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() != 1)}"
