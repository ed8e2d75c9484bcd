"""What the papers measure besides a protocol's accuracies and distances. NOT PRIVATE: computed from real images."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.audit.membership import gan_leaks
from sfumato.data import Images
from sfumato.evaluation.density import out_of_distribution_auroc
from sfumato.experiments.trial import Measure
from sfumato.release import Release

ATTACKED = 1000


def density(release: Release, synthetic: Images, train: Images, test: Images) -> list[dict[str, Any]]:
    """How well each class's density tells the class from all others of the test set."""
    values = np.nan_to_num(release.density(test.pixels), nan=-np.inf)
    own = {
        name: out_of_distribution_auroc(values[test.labels == place, place], values[test.labels != place, place])
        for place, name in enumerate(test.classes)
        if 0 < (test.labels == place).sum() < len(test.labels)
    }
    found = {f"AUROC of class {name}": value for name, value in own.items()}
    return measured({**found, "AUROC, average": float(np.mean(list(own.values())))})


def membership(release: Release, synthetic: Images, train: Images, test: Images) -> list[dict[str, Any]]:
    """GAN-Leaks: does the nearest synthetic image tell who was there?"""
    members, others = train.pixels[:ATTACKED], test.pixels[:ATTACKED]
    return measured({"AUC": gan_leaks(synthetic.pixels, members, others).auc})


def codes(release: Release, synthetic: Images, train: Images, test: Images) -> list[dict[str, Any]]:
    """What PRIVAE draws: how sparse the codes of test images are, how far from the prior, how likely they make them."""
    from sfumato.evaluation.latent_codes import code_measures

    model: Any = release.model
    method: Any = release.method
    return measured(code_measures(model, method, test.pixels))


def measured(values: dict[str, float]) -> list[dict[str, Any]]:
    """As an evaluation writes its measurements."""
    return [{"row": "synthetic", "metric": name, "classifier": None, "mean": value} for name, value in values.items()]


MEASURES: dict[str, Measure] = {"codes": codes, "density": density, "membership": membership}
PROTOCOL = "protocol"
