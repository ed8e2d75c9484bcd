"""A benchmark's numbers count for a row only where every parameter is the row's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sfumato.cli.main import main
from sfumato.experiments.papers.page import page, read_results
from sfumato.experiments.papers.scale import Scale
from sfumato.experiments.papers.specification import find
from sfumato.experiments.papers.table import verdict
from sfumato.methods import DPLFlow


def training(number: int, **settings: Any) -> dict[str, Any]:
    """As ``benchmarks/utility.py`` writes it."""
    return {
        "data": "mnist",
        "epsilon": 10.0,
        "card_epsilon": 9.99,
        "parameters": DPLFlow.configured(settings).parameters(),
        "seconds": 60.0 + number,
        "accuracy": {
            "as drawn": {"LR": 84.0, "MLP": 92.0, "CNN": 95.0 + number},
            "sharpened": {"LR": 85.0, "MLP": 60.0, "CNN": 96.0},
        },
        "fid": {"as drawn": 26.0, "sharpened": 5.0},
        "auroc": [0.9] * 10,
    }


def report(*results: dict[str, Any]) -> dict[str, Any]:
    head = {
        "experiment": "flows",
        "method": "dp-lflow",
        "protocol": "sinkhorn",
        "images": 60_000,
        "machine": "a GPU",
        "torch": "2.11",
    }
    return {**head, "results": list(results)}


def test_what_a_benchmark_measured_enters_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, kept = tmp_path / "results.json", tmp_path / "kept"
    file.write_text(
        json.dumps(report(training(0), training(1), training(2, steps=77), training(3, variant="conditional")))
    )
    monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", "adopt", str(file), "--results", str(kept)])
    with pytest.raises(SystemExit):
        main()
    results = read_results(kept)
    assert set(results) == {("dp-lflow", f"table-{number}", "full") for number in (1, 3, 4)}
    table = results["dp-lflow", "table-1", "full"]
    rows = {row["setting"]: row for row in table["rows"] if row["data"] == "MNIST"}
    assert rows["DP-LFlow"]["values"]["CNN"]["values"] == [95.0, 96.0], "not the one with other steps"
    assert rows["DP-LFlow"]["epsilon"] == 9.99 and rows["DP-LFlow"]["seconds"] == 60.5
    assert rows["DP-LFlow, sharpened"]["values"]["FID"]["mean"] == 5.0
    assert not rows["DP-MERF"]["ran"] and not rows["DP-LFlow, the authors' noise"]["ran"]
    assert table["size"]["trainings"] == 2
    # CNN 95.5 ± 0.7, LR and MLP twice and FID 26.0 are near enough; FID 5 is better and an MLP of 60 is not.
    assert verdict(table) == "Against the paper's 8 numbers, at our ε: 1 better, 6 equal, 1 worse."
    assert results["dp-lflow", "table-3", "full"]["rows"][0]["values"]["AUROC, average"]["mean"] == pytest.approx(0.9)
    last = results["dp-lflow", "table-4", "full"]["rows"]
    assert [row["trainings"] for row in last] == [2, 1, 0, 0]
    assert "0 run at full scale, 3 in part" in page(results) and "experiments.toml --only flows" in page(results)


def test_codes_enter_without_their_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``benchmarks/privae.py`` writes it."""
    entry = find("privae", "figure-1")[1]
    setting = next(setting for setting in entry.settings if setting.name == "with MMD, linearised")
    one = {
        "data": "fashion-mnist-unlabelled", "epsilon": 3.0, "card_epsilon": 2.99, "seconds": 9.0, "trial": False,
        "parameters": Scale.of("full", entry).method(setting, entry.cases[1]).parameters(),
        "codes": {"sparsity": 0.25, "log-likelihood": -300.0, "MMD": 0.01},
    }  # fmt: skip
    head = {"method": "privae", "measures": ["codes"], "machine": "a CPU", "torch": "2.13", "command": "python this"}
    file, kept = tmp_path / "results.json", tmp_path / "kept"
    file.write_text(json.dumps({**head, "results": [one, one, {**one, "trial": True}]}))
    monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", "adopt", str(file), "--results", str(kept)])
    with pytest.raises(SystemExit):
        main()
    results = read_results(kept)
    assert set(results) == {("privae", "figure-1", "full")}
    [row] = [row for row in results["privae", "figure-1", "full"]["rows"] if row["trained"]]
    assert (row["setting"], row["claimed"], row["epsilon"], row["trainings"]) == (setting.name, "3", 2.99, 2)
    assert row["values"]["MMD"]["mean"] == pytest.approx(0.01)
    assert "2 trainings of each; privae 600 steps." in page(results) and "`python this` · a CPU" in page(results)


def test_fewer_records_or_images_count_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    for number, change in enumerate(({"records": 2000}, {"images": 500}, {"protocol": "dppm"}, {"method": "dp-merf"})):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({**report(training(0)), **change}))
        monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", "adopt", str(file), "--results", str(kept)])
        with pytest.raises(SystemExit):
            main()
    assert read_results(kept) == {}
