"""Write the figure and the table of docs/explanation/five-printed-epsilons.md from docs/results/case-studies.json.

    python docs/case_studies.py [--measure [NAME …]]

With ``--measure`` the attacks of ``benchmarks/case_studies.py``, or those that are named, are run first and written to
the file. Each starts from the seed anew, so that it does not depend on the others.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULT = DOCS / "results" / "case-studies.json"
PAGE = DOCS / "explanation" / "five-printed-epsilons.md"
REGION = re.compile(r"(<!-- case studies -->\n).*?(<!-- /case studies -->)", re.DOTALL)


def case_studies() -> list[dict[str, Any]]:
    """The measurements."""
    found: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["case_studies"]
    return found


def measure(names: list[str], seed: int = 0) -> dict[str, Any]:
    """Attack the case studies of these names, by default all; the others stay. The seconds are left out: they differ between machines, and nothing else does."""
    import numpy as np

    sys.path.insert(0, str(DOCS.parent / "benchmarks"))
    from case_studies import CASE_STUDIES  # type: ignore[import-not-found]
    from sfumato.experiments.results import current_commit

    stored = json.loads(RESULT.read_text(encoding="utf-8"))
    known = {one["name"]: one for one in case_studies()} if names else {}
    for name in names or CASE_STUDIES:
        found = CASE_STUDIES[name](np.random.default_rng(seed)).to_json()
        del found["seconds"]
        known[found["name"]] = {**found, "commit": current_commit()}
    made = {"command": "python docs/case_studies.py --measure", "commit": current_commit(), "seed": seed}
    return {**(stored if names else made), "case_studies": sorted(known.values(), key=_order)}


def _order(one: dict[str, Any]) -> tuple[float, bool, float]:
    """By claim and by what was measured, the sound control last."""
    return one["claimed"], not one["above_claim"], one["measured"]["epsilon"]


def table(found: list[dict[str, Any]]) -> str:
    """A line for each attack."""
    lines = [
        "| attacked | claimed ε | measured ε, at least | bound, 95 of 100 | the attacker |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        measured = one["measured"]
        number = f"{measured['epsilon']:.2f}"
        shown = f"**{number}**" if one["above_claim"] else number
        lines.append(f"| {one['name']} | {one['claimed']:g} | {shown} | {measured['method']} | {measured['threat']} |")
    return "\n".join(lines) + "\n"


def rendered(page: str) -> str:
    """The page with its table written again."""
    return REGION.sub(lambda found: found[1] + table(case_studies()) + found[2], page)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Claimed and measured ε side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.4))
    for place, one in enumerate(reversed(found)):
        claimed, measured = one["claimed"], one["measured"]["epsilon"]
        colour = "#b3261e" if one["above_claim"] else "#2e7d32"
        axes.plot([claimed, measured], [place, place], color="#bbbbbb", zorder=1)
        axes.scatter([claimed], [place], marker="|", s=220, color="#333333", zorder=2)
        axes.scatter([measured], [place], color=colour, s=60, zorder=3)
        right = measured > claimed
        shift = {"xytext": (8 if right else -8, -4), "textcoords": "offset points", "ha": "left" if right else "right"}
        axes.annotate(f"≥ {measured:.2f}", (measured, place), color=colour, **shift)
    axes.set_yticks(range(len(found)), [one["name"] for one in reversed(found)])
    axes.set_xlim(0, 24)
    axes.set_xlabel("ε: the claim (line) and what an attack found (dot)")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        names = sys.argv[sys.argv.index("--measure") + 1 :]
        RESULT.write_text(json.dumps(measure(names), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draw(case_studies(), DOCS / "images" / "case-studies.png")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
