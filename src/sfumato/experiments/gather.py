"""Result rows, gathered from the files that trials leave behind."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.audit.membership import gan_leaks
from sfumato.data import Images
from sfumato.evaluation.latent_codes import out_of_distribution_auroc
from sfumato.evaluation.results import METRICS, SYNTHETIC
from sfumato.experiments.results import DataUsed, Measured, ResultRow, log_hash
from sfumato.experiments.spec import Conditions, EvaluationSpec, SamplingVariant, TrainingSpec
from sfumato.experiments.training import baselines_file, evaluation_file
from sfumato.release import Release

PLAIN = SamplingVariant()
OWN_DISTANCE = "own-class distance"
_NAMES = {"fid": "FID", "kid": "KID × 1000", "label_agreement": "label agreement"}


@dataclass(frozen=True)
class Evaluated:
    """The trainings of one setting, and the sampling variant and protocol that are reported.

    ``baseline`` is the name of a baseline row to report in place of the trainings.
    """

    conditions: Conditions
    trainings: tuple[TrainingSpec, ...]
    variant: SamplingVariant = PLAIN
    protocol: int = 0
    baseline: str = ""

    @property
    def files(self) -> list[Path]:
        if self.baseline:
            return [baselines_file(self.conditions, self.protocol)]
        name = evaluation_file(self.variant, self.conditions, self.protocol)
        return [folder / "internal" / name for folder in self.folders]

    @property
    def folders(self) -> list[Path]:
        return [training.folder(self.conditions.out) for training in self.trainings]


def result_row(evaluated: Evaluated, *, setting: str, epsilon: float, data: str = "") -> ResultRow | None:
    """Everything measured about a setting; ``None`` before its first evaluation. ``data`` is the name asked for."""
    written = [path for path in evaluated.files if path.exists()]
    if not written:
        return None
    contents = [json.loads(path.read_text()) for path in written]
    wanted = evaluated.baseline or SYNTHETIC
    conditions, spec = evaluated.conditions, evaluated.conditions.evaluations[evaluated.protocol]
    method = evaluated.trainings[0].method if evaluated.trainings else None
    parameters = {} if method is None else {**method.parameters(), **evaluated.variant.parameters}
    costs = [found for path in written if (found := read_json(path.parent / "cost.json")) and method is not None]
    logs = [part for path in written for part in (path, path.parent / "cost.json", path.parents[1] / "ledger.jsonl")]
    return ResultRow(
        setting=setting,
        data=_data_used(evaluated, contents, data),
        protocol=spec.protocol,
        epsilon=epsilon if math.isfinite(epsilon) else None,
        delta=conditions.delta,
        unit=conditions.unit,
        method=None if method is None else method.name,
        variant=None if method is None else method.variant,
        parameters=json.loads(json.dumps({name: without_folder(value) for name, value in parameters.items()})),
        spent=None if method is None else _spent(contents),
        images=spec.images,
        values=_values(contents, wanted, by_seed=bool(evaluated.baseline)),
        seconds=_mean(costs, "seconds"),
        processor_seconds=_mean(costs, "processor_seconds"),
        peak_memory=_mean(costs, "peak_memory"),
        megabytes=None if method is None else _megabytes(evaluated.folders[0]),
        log_sha256=log_hash(logs),
    )


def without_folder(value: object) -> object:
    """The last part of a path: where a public collection lies on a machine is no part of a result.

    >>> without_folder("/data/fashion-mnist"), without_folder("mmd")
    ('fashion-mnist', 'mmd')
    """
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _values(contents: Sequence[Mapping[str, Any]], row: str, *, by_seed: bool) -> dict[str, Measured]:
    """Each metric in the unit in which papers print it; a baseline's values are those of its classifier seeds."""
    found: dict[str, list[float]] = {}
    for content in contents:
        for entry in (*content["measurements"], *content.get("measures", ())):
            if entry["row"] != row:
                continue
            values = entry["values"] if by_seed else [entry["mean"]]
            factor = METRICS[entry["metric"]].scale if entry["metric"] in METRICS else 1.0
            found.setdefault(metric_name(entry), []).extend(factor * value for value in values)
    return {name: Measured.of(values) for name, values in found.items()}


def metric_name(entry: Mapping[str, Any]) -> str:
    """A metric as papers call it: an accuracy by its classifier."""
    if entry["metric"] == "accuracy":
        return str(entry["classifier"])
    if entry["metric"] == "frechet_distance":
        return OWN_DISTANCE
    name = _NAMES.get(entry["metric"], entry["metric"])
    features = entry.get("features")
    own = features is not None and not features["name"].startswith("inception")
    return f"own-class {name}" if own else str(name)


def _data_used(evaluated: Evaluated, contents: Sequence[Mapping[str, Any]], asked: str) -> DataUsed:
    data = evaluated.conditions.data
    facts = read_json(evaluated.folders[0] / "internal" / "data.json") if evaluated.trainings else None
    counts = contents[0].get("counts") or {}
    return DataUsed(
        name=asked or data.name,
        split="drawn" if data.drawn else data.split or "not stated",
        records=facts["records"] if facts else counts.get("real_train"),
        test_records=facts["test_records"] if facts else counts.get("real_test"),
        sha256=facts["sha256"] if facts else contents[0].get("data_sha256"),
        remark=data.remark,
    )


def _spent(contents: Sequence[Mapping[str, Any]]) -> float | None:
    spent = [content["guarantee"]["epsilon"] for content in contents]
    return None if None in spent else max(spent)


def _mean(costs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """``None`` where a training has no such number, since it was measured before this one was kept."""
    return (
        statistics.fmean(float(cost[key]) for cost in costs) if costs and all(key in cost for cost in costs) else None
    )


def _megabytes(folder: Path) -> float | None:
    path = folder / "release" / "model.safetensors"
    return path.stat().st_size / 1e6 if path.exists() else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file, if it exists."""
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


ATTACKED = 1000
PROTOCOL = "protocol"
"""Among the measures of an entry: the protocol's own."""


@dataclass(frozen=True)
class Sampled:
    """A release, images sampled from it, and what they are measured with."""

    release: Release
    synthetic: Images
    train: Images
    test: Images
    evaluation: EvaluationSpec
    device: str


Measure = Callable[[Sampled], list[dict[str, Any]]]


def density(sampled: Sampled) -> list[dict[str, Any]]:
    """AUROC of each class's density on the test set: this class against all others."""
    test = sampled.test
    values = np.nan_to_num(sampled.release.density(test.pixels, device=sampled.device), nan=-np.inf)
    own = {
        name: out_of_distribution_auroc(values[test.labels == place, place], values[test.labels != place, place])
        for place, name in enumerate(test.classes)
        if 0 < (test.labels == place).sum() < len(test.labels)
    }
    found = {f"AUROC of class {name}": value for name, value in own.items()}
    return as_measurements({**found, "AUROC, average": float(np.mean(list(own.values())))})


def membership(sampled: Sampled) -> list[dict[str, Any]]:
    """AUC of GAN-Leaks: the distance to the nearest synthetic image as a membership attack."""
    members, others = sampled.train.pixels[:ATTACKED], sampled.test.pixels[:ATTACKED]
    return as_measurements({"AUC": gan_leaks(sampled.synthetic.pixels, members, others).auc})


def codes(sampled: Sampled) -> list[dict[str, Any]]:
    """PRIVAE's measures: sparsity of the codes of test images, distance from the prior, log-likelihood."""
    from sfumato.evaluation.latent_codes import code_measures

    model: Any = sampled.release.model
    method: Any = sampled.release.method
    return as_measurements(code_measures(model.to(sampled.device), method, sampled.test.pixels))


def agreement(sampled: Sampled) -> list[dict[str, Any]]:
    """Share of synthetic images in which a classifier trained on real images sees the label they were made for."""
    from sfumato.evaluation.classifiers import score, train_classifier

    train, synthetic = sampled.train, sampled.synthetic
    protocol = sampled.evaluation.chosen_protocol()
    spec = next(spec for spec in protocol.classifiers if spec.name == protocol.agreement_classifier)
    classes = len(train.classes)
    classifier = train_classifier(spec, train.pixels, train.labels, classes=classes, seed=0, device=sampled.device)
    found = score(classifier, synthetic.pixels, synthetic.labels, classes=classes)
    return as_measurements({"label_agreement": found.overall}, classifier=spec.name)


def as_measurements(values: dict[str, float], *, classifier: str | None = None) -> list[dict[str, Any]]:
    """Numbers in the form of an evaluation's measurements."""
    return [
        {"row": "synthetic", "metric": name, "classifier": classifier, "features": None, "mean": value, "std": None}
        for name, value in values.items()
    ]


MEASURES: dict[str, Measure] = {
    "agreement": agreement,
    "codes": codes,
    "density": density,
    "membership": membership,
}
