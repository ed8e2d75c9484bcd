"""What ``sfumato plan --json`` says about every method, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_KNOWN = {"method", "parameters", "budget", "epsilon", "relation", "accountant", "events", "best_guess", "work"}


@dataclass(frozen=True)
class MethodRow:
    """One method: what it would spend, what a training costs, and what else the plan says about it."""

    method: str
    epsilon: str
    guess: str
    steps: str
    noise: str
    cost: str
    remarks: tuple[tuple[str, str], ...]


def method_rows(plans: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None) -> list[MethodRow]:
    """A row for each method, in the order of the plan."""
    if plans is None:
        return []
    listed = [plans] if isinstance(plans, Mapping) and "method" in plans else plans
    if isinstance(listed, Mapping):
        listed = next(value for value in listed.values() if isinstance(value, list))
    return [_row(plan) for plan in listed]


def _row(plan: Mapping[str, Any]) -> MethodRow:
    events = [event for event in plan["events"] if "blocks" in event]
    work = plan.get("work")
    remarks = [(key.replace("_", " "), _plain(value)) for key, value in plan.items() if key not in _KNOWN]
    return MethodRow(
        plan["method"],
        "∞" if plan["epsilon"] is None else f"{plan['epsilon']:.3g}",
        f"{100 * plan['best_guess']:.1f} %",
        ", ".join(f"{event['name']}: {event['steps']:,}" for event in events),
        ", ".join(f"{event['name']}: {event['noise_multiplier']:.3g}" for event in events),
        "" if work is None else _duration(work["seconds"]),
        tuple((key, text) for key, text in remarks if text),
    )


def _plain(value: Any) -> str:
    """A value as text; what is nested is written out in words."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return "; ".join(f"{key.replace('_', ' ')}: {_plain(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
