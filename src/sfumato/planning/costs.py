"""Seconds that a training takes, from the measured cost of a record in a step (``costs.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sfumato.methods import Method

REFERENCE_VALUES = 784
"""Numbers in the images of the measurement, 28×28 grey pixels."""


@cache
def costs() -> dict[str, Any]:
    """The content of ``costs.toml``."""
    return tomllib.loads(Path(__file__).with_name("costs.toml").read_text(encoding="utf-8"))


def training_seconds(method: Method, *, records: int, values: int, device: str) -> float:
    """Seconds on one CPU core (``cpu``) or one GPU (``cuda``) for images of ``values`` numbers each."""
    known = costs()["methods"]
    name = method.name if method.name in known else method.name.removesuffix("-published")
    return float(known[name][device] * record_steps(method, records) * values / REFERENCE_VALUES)


def record_steps(method: Method, records: int) -> float:
    """How often a training processes a record, or an image of its own."""
    parameters: Mapping[str, Any] = method.parameters()
    if method.raw_access:
        return float(parameters["iterations"] * parameters["batch_size"])
    queried = sum(event.sampling_rate * event.steps * records for event in method.queries())
    generated = parameters.get("iterations", 0) * parameters.get("batch_size", 2 * parameters.get("fakes_per_class", 0))
    single = "steps" not in parameters or parameters["steps"] == 1
    return float(queried * parameters.get("draws", 1) + (generated if single else 0))
