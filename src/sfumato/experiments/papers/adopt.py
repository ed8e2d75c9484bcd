"""Numbers of ``benchmarks/utility.py`` and ``privae.py`` put into the entries whose configurations they are of.

A benchmark trains side by side on one device what an entry would train one after another. Its numbers count for a row
when collection, method, every parameter and ε are the row's own; nothing else is taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.experiments.papers.collection import DatasetLocator
from sfumato.experiments.papers.measures import PROTOCOL
from sfumato.experiments.papers.result import filled, heading
from sfumato.experiments.papers.rows import Row
from sfumato.experiments.papers.scale import Scale
from sfumato.experiments.papers.specification import Entry, papers
from sfumato.experiments.trial import Look
from sfumato.methods import METHODS

_AS_DRAWN, _SHARPENED = "as drawn", "sharpened"


@dataclass(frozen=True)
class Benchmark:
    """A results.json of the benchmark."""

    report: dict[str, Any]

    def trainings(self, row: Row, parameters: dict[str, Any], epsilon: float) -> list[dict[str, Any]]:
        """Those that were made with a row's own configuration."""
        if self.report["method"] != row.setting.method or self.report.get("records") is not None:
            return []
        wanted = json.loads(json.dumps(parameters))
        return [
            run
            for run in self.report["results"]
            if run["data"] == row.case.data
            and run["epsilon"] == epsilon
            and run["parameters"] == wanted
            and not run.get("trial")
        ]


def adopted(reports: Sequence[dict[str, Any]], *, shelf: DatasetLocator) -> Iterator[dict[str, Any]]:
    """A full-scale result for every entry of which the reports hold at least one row."""
    for paper in papers().values():
        for entry in paper.entries.values():
            own = [Benchmark(report) for report in reports if _serves(report, entry)]
            if not any(report["method"] in entry.methods for report in reports):
                continue
            rows, trainings = [], 0
            for case, place, setting in entry.rows():
                sampling = setting.drawn_on(case)
                look = Look(setting.name, sampling) if sampling else Look()
                row = Row(case, place, setting, found=shelf.find(case.data), look=look)
                if setting.method not in METHODS or setting.missing or case.records is not None:
                    rows.append(filled(paper, entry, row, found=[], spent=[], method=None))
                    continue
                method = Scale.of("full", entry).method(setting, case)
                epsilon = setting.budget(case.epsilon)
                runs = [run for one in own for run in one.trainings(row, method.parameters(), epsilon)]
                runs = [run for run in runs if "codes" in run or _form(sampling) in run["accuracy"]]
                trainings = max(trainings, len(runs))
                rows.append(
                    filled(
                        paper,
                        entry,
                        row,
                        found=[_values(run, _form(sampling)) for run in runs],
                        spent=[run["card_epsilon"] for run in runs],
                        method=method if runs else None,
                        seconds=sum(run["seconds"] for run in runs) / len(runs) if runs else None,
                    )
                )
            if trainings:
                first = own[0].report
                size = {
                    "records_at_most": None,
                    "images": first.get("images"),
                    "trainings": trainings,
                    "inception": "images" in first,
                }
                command = first.get("command") or _utility(own)
                head = heading(paper, entry, scale="full", size=size, command=command, machine=first["machine"],
                               torch=first["torch"])  # fmt: skip
                yield {**head, "rows": rows, "failed": {}}


def _utility(reports: Sequence[Benchmark]) -> str:
    names = " ".join(f"--only {one.report['experiment']}" for one in reports)
    return f"python benchmarks/utility.py benchmarks/experiments.toml {names}"


def _serves(report: dict[str, Any], entry: Entry) -> bool:
    """One benchmark judges by a protocol and by densities, the other looks at codes."""
    if "codes" in entry.measures or "protocol" not in report:
        return set(entry.measures) == set(report.get("measures", ()))
    same = report["protocol"] == entry.protocol and report["images"] == Scale.of("full", entry).images
    return not entry.experiment and set(entry.measures) <= {PROTOCOL, "density"} and same


def _form(sampling: dict[str, Any]) -> str:
    """How the benchmark calls what it draws; another change of the sampler it does not have."""
    if not sampling:
        return _AS_DRAWN
    return _SHARPENED if set(sampling) == {"sharpness"} else "unknown"


def _values(run: dict[str, Any], form: str) -> dict[str, float]:
    if "codes" in run:
        return dict(run["codes"])
    found = dict(run["accuracy"][form])
    if form in (run.get("fid") or {}):
        found["FID"] = run["fid"][form]
    if run.get("auroc"):
        found |= {f"AUROC of class {place}": value for place, value in enumerate(run["auroc"])}
        found["AUROC, average"] = sum(run["auroc"]) / len(run["auroc"])
    return found
