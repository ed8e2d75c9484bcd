"""Every metric in one place: its name, its unit, and which direction is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """How the values of a metric are read and printed.

    Attributes:
        name: The name in result files.
        title: The name on pages and in tables, without its unit.
        unit: The unit that it is printed in; empty for a plain number.
        scale: Stored values are multiplied by this to be printed in that unit.
        digits: Decimal places.
        higher_is_better: Whether a larger value is better.
    """

    name: str
    title: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    higher_is_better: bool = True

    @property
    def heading(self) -> str:
        """Title and unit with an arrow towards better values."""
        unit = f" {self.unit}" if self.unit.startswith("×") else f", {self.unit}" if self.unit else ""
        return f"{self.title}{unit} {'↑' if self.higher_is_better else '↓'}"

    def text(self, mean: float, std: float | None = None) -> str:
        """A mean, or a mean ± its standard deviation, in the printed unit."""
        text = f"{self.scale * mean:.{self.digits}f}"
        return text if std is None else f"{text} ± {self.scale * std:.{self.digits}f}"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "%", 100.0),
        Metric("label_agreement", "label agreement", "%", 100.0),
        Metric("fid", "FID", higher_is_better=False),
        Metric("kid", "KID", "× 1000", 1000.0, higher_is_better=False),
        Metric("frechet_distance", "Fréchet distance", higher_is_better=False),
        Metric("inception_score", "Inception Score"),
        Metric("precision", "precision", digits=3),
        Metric("recall", "recall", digits=3),
        Metric("density", "density", digits=3),
        Metric("coverage", "coverage", digits=3),
    )
}


def metric_named(name: str) -> Metric:
    """The metric of this name; the error lists them all."""
    if name not in METRICS:
        raise LookupError(f"there is no metric {name!r}; there are {', '.join(METRICS)}")
    return METRICS[name]
