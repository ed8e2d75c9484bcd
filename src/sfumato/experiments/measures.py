"""Measures of a release besides those of the protocols, in the form of an evaluation's measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.audit.membership import gan_leaks
from sfumato.data import Images
from sfumato.evaluation.classifiers import score, train_classifier
from sfumato.evaluation.latent_codes import code_measures, out_of_distribution_auroc
from sfumato.experiments.spec import EvaluationSpec
from sfumato.release import Release

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
    model: Any = sampled.release.model
    method: Any = sampled.release.method
    return as_measurements(code_measures(model.to(sampled.device), method, sampled.test.pixels))


def agreement(sampled: Sampled) -> list[dict[str, Any]]:
    """Share of synthetic images in which a classifier trained on real images sees the label they were made for."""
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
