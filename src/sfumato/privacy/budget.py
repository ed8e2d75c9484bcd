"""How much may be spent, and for whom."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal

_REFUSED_DELTA, _LARGE_DELTA = 0.1, 1e-2

Unit = Literal["image", "person"]


class BudgetExceeded(RuntimeError):
    """A spend was refused before anything was drawn."""


@dataclass(frozen=True)
class Budget:
    """At most ``epsilon`` at ``delta``, for adding or removing one ``unit`` (an image, or a person's images).

    >>> Budget(epsilon=1, delta=1e-5)
    Budget(epsilon=1, delta=1e-05, unit='image')
    """

    epsilon: float
    delta: float
    unit: Unit = "image"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be a positive number, not {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, not {self.delta:g}; 1e-5 is a common choice")
        if self.delta >= _REFUSED_DELTA:
            raise ValueError(
                f"delta {self.delta:g} is refused: with this probability nothing is guaranteed. It should be far "
                "below one over the number of units; 1e-5 is a common choice"
            )
        if self.delta > _LARGE_DELTA:
            told = f"delta {self.delta:g} is large; it should be far below one over the number of units"
            warnings.warn(told, stacklevel=3)
        if self.unit not in ("image", "person"):
            raise ValueError(f"unit must be 'image' or 'person', not {self.unit!r}")

    def check_delta(self, declared_size: int | None) -> None:
        """δ ≥ 1/N lets a mechanism publish a record outright; N is known only where the owner declares it."""
        if declared_size is None:
            return
        if self.delta >= 1 / declared_size:
            raise ValueError(
                f"delta {self.delta:g} is not below 1/{declared_size}, one over the declared size: "
                "at such a delta publishing a whole record would count as private. Choose a smaller delta"
            )
        if self.delta > 1 / (10 * declared_size):
            warnings.warn(
                f"delta {self.delta:g} is above 1/(10 × {declared_size}), a tenth of one over the declared size",
                stacklevel=2,
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class NoGuarantee:
    """The budget of an algorithm that needs the raw records: nothing is promised, and the release says so."""

    unit: Unit = "image"
    epsilon: float = math.inf
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.epsilon != math.inf or self.delta != 0.0:
            raise ValueError("NoGuarantee has no epsilon or delta to choose; for a guarantee use Budget")

    def check_delta(self, declared_size: int | None) -> None:
        """There is no δ to check."""

    def to_json(self) -> dict[str, Any]:
        return {"epsilon": None, "delta": None, "unit": self.unit}


AnyBudget = Budget | NoGuarantee


def budget_from_json(data: dict[str, Any]) -> AnyBudget:
    """The budget that ``to_json`` wrote."""
    if data["epsilon"] is None:
        return NoGuarantee(unit=data["unit"])
    return Budget(epsilon=data["epsilon"], delta=data["delta"], unit=data["unit"])
