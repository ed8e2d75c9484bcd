"""What the page of audits says about the seeds of the case studies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audit.studies import case_studies

STORED = Path(__file__).parents[2] / "docs" / "results" / "case-studies.json"


@pytest.mark.long
def test_the_bound_for_dp2_vae_is_above_the_claim_for_other_seeds_as_well() -> None:
    """The page says "between 3.6 and 4.3"; the stored one is seed 0, which is not the largest."""
    stored = {one["name"]: one["measured"]["epsilon"] for one in json.loads(STORED.read_text())["case_studies"]}
    found = [case_studies.dp2_vae(np.random.default_rng(seed)).to_json()["measured"]["epsilon"] for seed in (1, 2)]
    assert all(3.6 <= epsilon <= 4.3 for epsilon in (*found, stored["DP²-VAE, published"]))
    assert max(found) > stored["DP²-VAE, published"]
