"""How a measured number is named and printed on a page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

SYNTHETIC = "synthetic"
REAL = "real training data"
_NAMES = {
    "accuracy": "accuracy, %",
    "label_agreement": "label agreement, %",
    "fid": "FID",
    "kid": "KID × 1000",
    "frechet_distance": "Fréchet distance",
    "inception_score": "Inception Score",
}
_SMALLER_IS_BETTER = {"fid", "kid", "frechet_distance"}
_SHARES = {"accuracy", "label_agreement"}
_FINE = {"precision", "recall", "density", "coverage"}


def heading(entry: dict[str, Any]) -> str:
    """The metric with its classifier or features, and an arrow towards better."""
    name = _NAMES.get(entry["metric"], entry["metric"].replace("_", " "))
    arrow = "↓" if entry["metric"] in _SMALLER_IS_BETTER else "↑"
    if entry["classifier"] is not None:
        name = f"{entry['classifier']} {name}"
    elif entry["features"] is not None and not entry["features"]["name"].startswith("inception"):
        name = f"own-class {name}"
    return f"{name} {arrow}"


def scaled(metric: str, value: float) -> float:
    """In the unit it is printed in."""
    return value * (100 if metric in _SHARES else 1000 if metric == "kid" else 1)


def printed(metric: str, mean: float, deviation: float | None) -> str:
    """Mean ± deviation."""
    digits = 3 if metric in _FINE else 1
    text = f"{scaled(metric, mean):.{digits}f}"
    return text if deviation is None else f"{text} ± {scaled(metric, deviation):.{digits}f}"


def headline(measurements: Iterable[dict[str, Any]], row: str = SYNTHETIC) -> dict[str, Any] | None:
    """The one accuracy that a curve shows: the protocol's last, which is its network or the mean of its networks."""
    found = [entry for entry in measurements if entry["metric"] == "accuracy" and entry["row"] == row]
    return found[-1] if found else None


def with_classes(measurements: Iterable[dict[str, Any]], row: str = SYNTHETIC) -> dict[str, Any] | None:
    """The last accuracy that is known for each class."""
    found = [entry for entry in measurements if entry["metric"] == "accuracy" and entry["row"] == row]
    return next((entry for entry in reversed(found) if entry["per_class"]), None)
