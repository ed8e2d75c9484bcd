"""What a run will spend, known before any data is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.accounting import ACCOUNTANT, calibrate, epsilon, relation
from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded
from sfumato.privacy.events import SubsampledGaussian
from sfumato.tables import aligned


@dataclass(frozen=True)
class Plan:
    """Calibrated events and what they cost together. A Curator answers what the plan lists and nothing else."""

    budget: AnyBudget
    events: tuple[SubsampledGaussian, ...]

    @classmethod
    def calibrated(cls, events: Sequence[SubsampledGaussian], budget: AnyBudget) -> Plan:
        """With the least noise that keeps the budget. Under NoGuarantee the noise stays as it was given."""
        if len({event.name for event in events}) != len(events):
            raise ValueError("each planned event needs a name of its own")
        if not events and isinstance(budget, Budget):
            raise BudgetExceeded(
                "nothing is planned that a Curator could answer: the method needs the raw records, whose cost is "
                "ε = ∞. It runs only under NoGuarantee(), or --no-guarantee"
            )
        return cls(budget, calibrate(events, budget) if isinstance(budget, Budget) else tuple(events))

    def event(self, name: str) -> SubsampledGaussian:
        for event in self.events:
            if event.name == name:
                return event
        raise LookupError(
            f"{name!r} is not in the plan, which lists {[event.name for event in self.events]}; "
            "a method lists every query before its first answer"
        )

    @property
    def epsilon(self) -> float:
        """What the events cost at the budget's δ."""
        return epsilon(self.events, self.budget.delta) if isinstance(self.budget, Budget) else float("inf")

    def __str__(self) -> str:
        """What it spends, and a line for each kind of query."""
        spent = (
            f"ε {self.epsilon:.4g} at δ {self.budget.delta:g}" if isinstance(self.budget, Budget) else "no guarantee"
        )
        rows = [("query", "steps", "sampling rate", "noise multiplier", "blocks")]
        for event in self.events:
            blocks = ", ".join(f"{block.name} {block.noise_multiplier:.4g}" for block in event.blocks)
            numbers = (str(event.steps), f"{event.sampling_rate:g}", f"{event.noise_multiplier:.4g}")
            rows.append((event.name, *numbers, blocks))
        return f"{spent}, {relation(self.events)} ({self.budget.unit})\n{aligned(rows)}"

    def to_json(self) -> dict[str, Any]:
        guaranteed = isinstance(self.budget, Budget)
        return {
            "budget": self.budget.to_json(),
            "epsilon": self.epsilon if guaranteed else None,
            "relation": relation(self.events),
            "accountant": ACCOUNTANT,
            "events": [event.to_json() for event in self.events],
        }
