"""Which audit detects which broken method."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sfumato.audit.broken_methods import BROKEN_METHODS, ControlMethod
from sfumato.audit.canary import white_box
from sfumato.audit.noise import audit_noise
from sfumato.audit.replay import replay
from sfumato.audit.worst_case import worst_case_images
from sfumato.privacy import Budget


@dataclass(frozen=True)
class Detection:
    """One mistake and what each audit reports: a refusal before training, broken rules, failed tests, a measured ε."""

    mistake: str
    refused: str | None
    replay: tuple[str, ...]
    noise: tuple[str, ...]
    measured: float | None
    printed: float | None

    @property
    def canary(self) -> bool:
        return self.measured is not None and self.printed is not None and self.measured > self.printed

    @property
    def caught(self) -> bool:
        return bool(self.refused or self.replay or self.noise or self.canary)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "caught": self.caught}


def detect(
    broken: type[ControlMethod], *, budget: Budget, pairs: int = 12, canaries: int = 60, runs: int = 1, seed: int = 0
) -> Detection:
    """Run all audits of one method on a small worst-case collection."""
    private, method = worst_case_images(size=8), broken.small()
    mistake = "none (control method)" if broken is ControlMethod else (broken.__doc__ or "").strip()
    found = replay(method, private, budget=budget, pairs=pairs, seed=seed)
    refusals = [finding.detail for finding in found.findings if finding.rule == "refused"]
    if refusals:
        return Detection(mistake, refusals[0], (), (), None, None)
    rules = tuple(sorted({finding.rule for finding in found.findings}))
    noise = tuple(test.name for test in audit_noise(method, private, budget=budget).tests if test.failed)
    canary = white_box(method, private, budget=budget, canaries=canaries, runs=runs, seed=seed)
    return Detection(mistake, None, rules, noise, canary.bound.epsilon, canary.printed)


def detection_matrix(*, budget: Budget, pairs: int = 12, canaries: int = 60, runs: int = 20) -> list[Detection]:
    """The control method first, then every broken method."""
    methods: tuple[type[ControlMethod], ...] = (ControlMethod, *BROKEN_METHODS)
    return [detect(method, budget=budget, pairs=pairs, canaries=canaries, runs=runs) for method in methods]
