"""What an evaluation says about a release, in one sentence. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.evaluation.results import REAL, EvaluationResult, MemorisationSummary
from sfumato.experiments.expected_use import Use
from sfumato.release.card import Card

_USUAL_SHARE = 0.02
"""The share of fresh images below the threshold is 0.01; up to twice that is within the spread of small sets."""


def verdict(card: Card, evaluations: Sequence[EvaluationResult]) -> str:
    """Guarantee, use and copies in one sentence."""
    guarantee = "No guarantee"
    if card.epsilon is not None:
        guarantee = f"Certified at ε = {card.epsilon:g} for each {card.unit}"
    parts = [guarantee, _use(evaluations)]
    found = next((one.memorisation for one in evaluations if one.memorisation is not None), None)
    if found is not None:
        parts.append(_copies(found))
    return "; ".join(parts) + "."


def _use(evaluations: Sequence[EvaluationResult]) -> str:
    for one in evaluations:
        main, real = one.headline(), one.headline(REAL)
        if main is None or real is None:
            continue
        chance = 1 / len(one.classes)
        share = (main.mean - chance) / (real.mean - chance) if real.mean > chance else 0.0
        return (
            f"{Use.of(share)} use: a {main.classifier} trained on the synthetic images labels {100 * main.mean:.1f} % "
            f"of real test images correctly, trained on real images {100 * real.mean:.1f} %, by guessing "
            f"{100 * chance:.1f} %"
        )
    return "its use was not measured"


def _copies(found: MemorisationSummary) -> str:
    share = found.share_nearer_than_one_percent_of_test
    if found.exact_copies:
        return f"LOOK AT THE PAIRS: {found.exact_copies} synthetic images are exact copies of private ones"
    if share > _USUAL_SHARE:
        return f"look at the nearest pairs: {100 * share:.1f} % of the images are nearer to private ones than is usual"
    return "no copies were found"
