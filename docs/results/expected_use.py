"""Compare the expected use that ``sfumato plan`` predicts with measurements on data that is not in its table.

    python docs/results/expected_use.py

reads the measured accuracies from the result files in this folder, predicts each from public facts alone, and writes
``expected-use.json`` and the tables of ``expected-use.md``: first the settings whose number of images and ε are in no
row of the table that predictions are made from, then those whose data alone is not in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sfumato.planning.expected_use import (
    Use,
    expected_share,
    share_of_real,
    signal_to_noise,
    table_facts,
    table_rows,
)
from sfumato.experiments.results import ResultRow, ResultSet, current_commit
from sfumato.files import json_text

HERE = Path(__file__).parent
DATA, CLASSIFIER = "fashion-mnist", "CNN"
# Result files, and the settings in them; other settings are variants in sampling or with other parameters.
COMPARED = {
    "transcribed-methods": ("DP-MERF", "DPPM, certified", "DPAF, certified"),
    "dp-lflow-table-1-full": ("DP-LFlow",),
    "dp-lflow-table-2-full": ("DP-LFlow",),
    "dp2-vae-table-1-full": ("DP²-VAE, certified",),
    "dp2-vae-table-2-full": ("DP²-VAE, certified",),
    "dp2-vae-figure-8-full": ("DP²-VAE, certified",),
    "dp-diffusion-full": ("DP-Diffusion",),
}
OTHER_SETTINGS, OTHER_DATA = "other settings", "other data"
MARKS = ("<!-- expected use: {} -->\n", "<!-- /expected use -->")


def measured() -> list[dict[str, Any]]:
    """A row for every measurement on Fashion-MNIST: what was predicted, and what came out."""
    files = {**COMPARED, **{path.stem: () for path in sorted(HERE.glob("predicted-*.json"))}}
    rows = []
    for name, settings in files.items():
        for row in ResultSet.load(HERE / f"{name}.json").rows:
            if row.data.name == DATA and CLASSIFIER in row.values and (not settings or row.setting in settings):
                rows.append(compared(name, row))
    return sorted(rows, key=lambda row: (row["images"], row["epsilon"], row["method"]))


def compared(name: str, row: ResultRow) -> dict[str, Any]:
    """One row: public facts, the prediction from them, and the measurement."""
    images, method = row.data.subset or row.data.records, row.method or ""
    public = {"data": DATA, "images": images, "epsilon": row.epsilon, "delta": row.delta}
    ratio = signal_to_noise(table_facts(public))
    predicted, found = expected_share(method, ratio) or 0.0, share_of_real(row.values[CLASSIFIER].mean, DATA)
    return {
        "method": method,
        **public,
        "kind": OTHER_DATA if images in _known("images") or row.epsilon in _known("epsilon") else OTHER_SETTINGS,
        "signal_to_noise": round(ratio, 1),
        "predicted_share": round(predicted, 3),
        "measured_share": round(found, 3),
        "predicted_use": Use.of(predicted).value,
        "measured_use": Use.of(found).value,
        "result": name,
    }


def _known(key: str) -> set[float]:
    """The numbers of images, or the budgets, of the table that predictions are made from."""
    return {row[key] for row in table_rows()}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, and a sentence about all of them."""
    lines = ["| method | images | ε | predicted | measured |", "|---|---:|---:|---|---|"]
    for row in rows:
        shown = [f"{row[f'{kind}_use']} ({row[f'{kind}_share']:.2f})" for kind in ("predicted", "measured")]
        lines.append(f"| {row['method']} | {row['images']:,} | {row['epsilon']:g} | {shown[0]} | {shown[1]} |")
    same = sum(row["predicted_use"] == row["measured_use"] for row in rows)
    mean = sum(abs(row["predicted_share"] - row["measured_share"]) for row in rows) / len(rows)
    lines += ["", f"The word is right for {same} of {len(rows)} settings; the share is off by {mean:.2f} on average."]
    return "\n".join(lines) + "\n"


def rendered(page: str, rows: list[dict[str, Any]]) -> str:
    """The page with its tables written again."""
    for kind in (OTHER_SETTINGS, OTHER_DATA):
        start, end = MARKS[0].format(kind), MARKS[1]
        before, _, rest = page.partition(start)
        page = before + start + table([row for row in rows if row["kind"] == kind]) + end + rest.partition(end)[2]
    return page


def main() -> None:
    """Write the result file and the tables."""
    rows = measured()
    result = {"command": "python docs/results/expected_use.py", "commit": current_commit(), "rows": rows}
    (HERE / "expected-use.json").write_text(json_text(result), encoding="utf-8")
    page = HERE / "expected-use.md"
    page.write_text(rendered(page.read_text(encoding="utf-8"), rows), encoding="utf-8")


if __name__ == "__main__":
    main()
