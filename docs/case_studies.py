"""Write the figure and the table of docs/explanation/five-printed-epsilons.md from docs/results/case-studies.json.

    python docs/case_studies.py [--measure]

With ``--measure`` the attacks of ``benchmarks/case_studies.py`` are run and the file is written first.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE = DOCS / "explanation" / "five-printed-epsilons.md"
REGION = re.compile(r"(<!-- case studies -->\n).*?(<!-- /case studies -->)", re.DOTALL)


def case_studies() -> list[dict[str, Any]]:
    """The measurements."""
    found: list[dict[str, Any]] = json.loads((DOCS / "results" / "case-studies.json").read_text())["case_studies"]
    return found


def measure(seed: int = 0) -> dict[str, Any]:
    """Attack every case study. The seconds are left out: they differ between machines, and nothing else does."""
    import numpy as np

    sys.path.insert(0, str(DOCS.parent / "benchmarks"))
    from case_studies import CASE_STUDIES  # type: ignore[import-not-found]
    from sfumato.experiments.results import current_commit

    found = [make(np.random.default_rng(seed)).to_json() for make in CASE_STUDIES.values()]
    for one in found:
        del one["seconds"]
    command = "python docs/case_studies.py --measure"
    return {"command": command, "commit": current_commit(), "seed": seed, "case_studies": found}


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
        text = json.dumps(measure(), indent=1, ensure_ascii=False) + "\n"
        (DOCS / "results" / "case-studies.json").write_text(text, encoding="utf-8")
    draw(case_studies(), DOCS / "images" / "case-studies.png")
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
