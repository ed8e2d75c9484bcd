"""Releases of every kind for the verifier, trained in small forms on drawn images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sfumato.methods import METHODS, find
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dp_realnvp import DPRealNVP
from sfumato.methods.dpaf import DPAF
from sfumato.methods.scored import ScoredMethod, Tuning
from sfumato.privacy import Budget, BudgetExceeded, Ledger
from sfumato.privacy.budget import Unit
from sfumato.release.export import export
from sfumato.release.release import Release
from sfumato.release.signature import write_transcript
from sfumato.training.run import RunOptions
from worst_case import worst_case_images

METHOD_CASES = [f"{name} {variant}" for name in METHODS for variant in find(name).certified_variants()]
DELTAS = (1e-5, 1e-9, 1e-11, 1e-13)
OTHER_CASES = [
    "unit person",
    "accuracy released",
    "tuned",
    "lineage on this ledger",
    "lineage elsewhere",
    "second run on the ledger",
    *(f"delta {delta:g}" for delta in DELTAS),
]


def made(case: str, folder: Path) -> Path:
    """Train what the case names; ``folder`` gets the release, ledger and transcript."""
    folder.mkdir(parents=True, exist_ok=True)
    unit: Unit = "person" if case == "unit person" else "image"
    delta = float(case.split()[1]) if case.startswith("delta ") else 1e-5
    images = worst_case_images(persons=unit == "person")
    with Ledger(folder / "ledger.jsonl", Budget(1000.0, delta, unit)) as ledger:
        release = _trained(case, ledger, Budget(3.0, delta, unit), images, folder)
        release.save(folder / "release")
        write_transcript(ledger, release.card.run, folder / "transcript.jsonl")
    return folder


def _trained(case: str, ledger: Ledger, budget: Budget, images: Any, folder: Path) -> Release:
    if case in METHOD_CASES:
        name, variant = case.split()
        method = find(name).small(variant)
        for larger in (3.0, 30.0, 300.0):
            try:
                method.plan(replace(budget, epsilon=larger))
            except BudgetExceeded:
                continue
            return method.fit(images, replace(budget, epsilon=larger), ledger, device="cpu")
    if case == "accuracy released":
        return ScoredMethod.of(DPMERF.small(), noise=30.0).fit(images, budget, ledger, device="cpu")
    if case == "tuned":
        candidates = [replace(DPMERF.small(), features=features) for features in (32, 64)]
        return Tuning.planned(candidates, budget, expected_trials=2.0).fit(images, ledger, RunOptions(device="cpu"))
    if case.startswith("lineage"):
        first = DPMERF.small().fit(images, budget, ledger if "this" in case else None, device="cpu")
        public = export(first.sample(6, seed=0), folder / "public")
        return replace(DPAF.small(), public=str(public)).fit(images, budget, ledger, device="cpu")
    if case.startswith("second"):
        DPMERF.small().fit(images, budget, ledger, device="cpu")
    if case == "seeded":
        return DPRealNVP.small().fit(images, budget, ledger, device="cpu", seed=0)
    method = DPRealNVP.small() if case.startswith("delta") else DPMERF.small()
    return method.fit(images, budget, ledger, device="cpu")
