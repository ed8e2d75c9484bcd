"""The contents of a run's folder that a report reads: the release, and the results in ``internal/``."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.evaluation import side_by_side
from sfumato.evaluation.results import EvaluationResult
from sfumato.release.card import Card
from sfumato.training.run_folder import Run, release_folder


@dataclass(frozen=True)
class RunFolder:
    """A run: the folder above ``release/``, or a release alone."""

    path: Path

    @property
    def release(self) -> Path:
        """The folder of the release."""
        return release_folder(self.path)

    @property
    def internal(self) -> Path:
        """The folder of what only the custodian may see."""
        return Run(self.path).internal

    @property
    def name(self) -> str:
        """The last parts of its path, which tell runs apart."""
        parts = self.path.resolve().parts[-3:] if self.path.name.startswith("run-") else (self.path.resolve().name,)
        return " / ".join(parts)

    def card(self) -> Card:
        """The release's card."""
        return Card.from_json(self.card_entries())

    def card_entries(self) -> dict[str, Any]:
        """The entries of ``card.json`` as they are, for the scan, which also looks at a card that is not valid."""
        path = self.release / "card.json"
        if not path.is_file():
            raise FileNotFoundError(f"{self.path} holds no finished run: there is no release/card.json")
        entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return entries

    def notes(self) -> dict[str, Any]:
        """Every JSON file of ``internal/`` by name."""
        found = {}
        for path in sorted(self.internal.glob("*.json")):
            try:
                found[path.name] = json.loads(path.read_text())
            except ValueError:
                raise ValueError(f"{path} is not JSON; remove it or write it again") from None
        return found

    def evaluations(self) -> list[EvaluationResult]:
        """What ``sfumato evaluate --json`` wrote."""
        found = [
            note
            for note in self.notes().values()
            if isinstance(note, dict) and {"measurements", "protocol"} <= set(note)
        ]
        return [EvaluationResult.from_json(note) for note in found]

    def cost(self) -> dict[str, Any] | None:
        """Seconds and memory of the training, where they were measured."""
        cost: dict[str, Any] | None = self.notes().get("cost.json")
        return cost

    def neighbours(self) -> str | None:
        """The picture of nearest private neighbours as a ``data:`` address."""
        return _picture(self.internal / "neighbours.png")

    def side_by_side(self) -> tuple[str, str] | None:
        """The pictures of real and of synthetic images of each class as ``data:`` addresses."""
        folder = self.internal / "side_by_side"
        real, synthetic = _picture(folder / side_by_side.REAL), _picture(folder / side_by_side.SYNTHETIC)
        return None if real is None or synthetic is None else (real, synthetic)


def _picture(path: Path) -> str | None:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode() if path.is_file() else None
