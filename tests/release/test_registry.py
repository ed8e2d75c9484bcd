"""An entry for the DP Deployments Registry, and the layers of NIST SP 800-226."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from release.cards import certified, without_guarantee
from sfumato.release.registry import Stated, check_entry, nist_layers, registry_entry, yaml_text

STATED = Stated("A clinic", "Europe", "Health", 'teaching: "rare" findings', "ε was chosen by the board")


def test_an_entry_is_complete_and_survives_yaml() -> None:
    card = certified(delta=1e-13)
    entry = registry_entry(card, STATED)
    assert yaml.safe_load(yaml_text(entry)) == entry
    assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 1e-13}
    assert entry["basic"]["publication_date"] == card.made[:10]
    assert isinstance(yaml.safe_load(yaml_text(entry))["basic"]["publication_date"], str)


def test_nothing_without_a_guarantee_is_entered() -> None:
    with pytest.raises(ValueError, match="guarantee"):
        registry_entry(without_guarantee(), STATED)


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda entry: entry.update(colour="blue"),
    lambda entry: entry["basic"].pop("name"),
    lambda entry: entry["basic"].update(data_product_type="Photographs"),
    lambda entry: entry["basic"].update(data_curators=[]),
    lambda entry: entry["implementation"].update(justification=" "),
    lambda entry: entry["privacy_loss"]["privacy_parameters"].update(epsilon="1"),
    lambda entry: entry.update(tier=1),
]


def test_an_entry_that_the_registry_would_refuse_is_refused() -> None:
    for change in CHANGES:
        entry = copy.deepcopy(registry_entry(certified(), STATED))
        change(entry)
        with pytest.raises(ValueError, match="entry"):
            check_entry(entry)


def test_the_layers_say_what_is_not_covered() -> None:
    layers = nist_layers(certified(epsilon=12.0))
    assert len(layers) == 7 and "no meaningful protection" in layers["privacy parameters and unit"]
    assert layers["data collection"] == layers["utility and bias"] == "not covered"
    assert "above" not in nist_layers(certified())["privacy parameters and unit"]
    assert "no guarantee" in json.dumps(nist_layers(without_guarantee()))
