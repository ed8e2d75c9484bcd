"""The release scan lets a clean run pass and catches private statistics wherever they are planted."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image, PngImagePlugin
from safetensors.numpy import load_file, save_file

from report.finished import TRAIN, evaluated, finished_run
from sfumato.cli.main import main
from sfumato.data import PrivateImages
from sfumato.methods.dppm import DPPM
from sfumato.methods.registry import load
from sfumato.privacy import Budget
from sfumato.release import Card
from sfumato.release.pages import data_address
from sfumato.report.pages import AttackBounds, public_page
from sfumato.report.scan import scan
from sfumato.training.run import Run


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = finished_run(tmp_path_factory.mktemp("scan") / "run")
    evaluated(run)
    (run.folder / "public.html").write_text(public_page(load(run.release)))
    return run.folder


@pytest.fixture
def run(clean: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clean, tmp_path / "run"))


def edit(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text()
    after = change(before)
    assert after != before
    path.write_text(after)


def told(run: Path) -> str:
    return "\n".join(map(str, scan(run)))


def test_a_clean_run_passes(run: Path) -> None:
    assert scan(run) == []
    assert scan(run / "release") == []


def test_a_private_statistic_on_the_public_page_is_caught(run: Path) -> None:
    """An accuracy on real images and the true number of records, both known to the internal evaluation."""
    path = run / "internal" / "evaluation.json"
    evaluation = json.loads(path.read_text())
    assert evaluation["counts"]["real_train"] == 317
    # A number that the page does not have anyway, as 10.0 %, which a short training may well reach.
    evaluation["measurements"][0]["mean"] = 0.68347
    path.write_text(json.dumps(evaluation))
    edit(run / "public.html", lambda page: page.replace("</ul>", "<li>Accuracy 68.35 %</li></ul>", 1))
    assert "stands in internal/evaluation.json, measurements[0].mean" in told(run)
    edit(run / "public.html", lambda page: page.replace("the image size", "317 images; the image size", 1))
    found = told(run).replace(str(run), "")
    assert "counts.real_train" in found and "it is not the page that the release alone gives" in found
    assert "What is treated as public" in found
    # The scan's own words must not repeat what it found.
    assert "317" not in found and "68.35" not in found


def test_a_page_maker_that_reads_too_much_is_caught(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering such a page again repeats its mistake; the origin of the number reveals it."""
    import sfumato.report.pages as public
    from sfumato.report.pages import attack_bounds

    def leaking_bounds(card: Card) -> AttackBounds | None:
        found = attack_bounds(card)
        return found and replace(found, dots=found.dots + Markup("<p>From {} images.</p>").format(len(TRAIN.labels)))

    monkeypatch.setattr(public, "attack_bounds", leaking_bounds)
    leaking = public_page(load(run / "release"))
    findings = scan(run, page=leaking)
    assert [finding.where for finding in findings] == ["public.html"]
    assert "stands in internal/evaluation.json, counts.real_train" in findings[0].what


def test_negative_parameters_come_from_the_card(tmp_path: Path) -> None:
    """DPPM has a parameter of −0.7: it must not be taken for a number that the card does not have."""
    run = Run(tmp_path / "run")
    run.begin({"method": "dppm"}, resume=False)
    method = DPPM.small()
    assert any(isinstance(value, float) and value < 0 for value in method.parameters().values())
    run.finish(method.fit(PrivateImages.from_images(TRAIN), Budget(5.0, 1e-5), run.ledger))
    page = public_page(load(run.release))
    assert re.search(r"= -\d", page)
    assert scan(run.folder, page=page) == []
    planted = page.replace("</main>", "<p>-0.4321 and −0.9876</p></main>")
    assert sum("does not come from the card" in finding.what for finding in scan(run.folder, page=planted)) == 2


def test_what_is_hidden_in_the_markup_is_caught(run: Path) -> None:
    clean = (run / "public.html").read_text()
    for planted in [
        "<!-- 0.7312 -->",
        "<p hidden>mostly sevens</p>",
        '<p data-x="0.7312">',
        '<script src="http://a/b"></script>',
    ]:
        (run / "public.html").write_text(clean.replace("</main>", f"{planted}</main>"))
        assert "it is not the page that the release alone gives" in told(run)


def test_a_private_picture_is_caught(run: Path) -> None:
    private = Image.fromarray(np.tile(TRAIN.pixels[0, 0], (2, 2)))
    page = (run / "public.html").read_text()
    start = page.index("data:image/png")
    end = page.index('"', start)
    (run / "public.html").write_text(page[:start] + data_address(private) + page[end:])
    assert "picture 1 is not one that the release draws" in told(run)


def test_words_inside_a_picture_are_caught(run: Path) -> None:
    import base64

    page = (run / "public.html").read_text()
    start = page.index("data:image/png;base64,") + len("data:image/png;base64,")
    end = page.index('"', start)
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Comment", "accuracy 0.7312")
    buffer = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(page[start:end]))).save(buffer, format="PNG", pnginfo=notes)
    (run / "public.html").write_text(page[:start] + base64.b64encode(buffer.getvalue()).decode() + page[end:])
    assert told(run) == "public.html: picture 1 carries more than pixels"


def test_what_does_not_belong_into_a_release_is_caught(run: Path) -> None:
    shutil.copy(run / "internal" / "evaluation.json", run / "release")
    assert "evaluation.json is not part of a release" in told(run)


def test_a_header_with_more_than_the_sentence_is_caught(run: Path) -> None:
    tensors = load_file(run / "release" / "model.safetensors")
    save_file(tensors, run / "release" / "model.safetensors", metadata={"accuracy": "0.7312"})
    assert "its header holds more" in told(run)


def test_a_card_with_private_facts_is_caught(run: Path) -> None:
    evaluation = json.loads((run / "internal" / "evaluation.json").read_text())
    path = run / "release" / "card.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "accuracy": 0.7312}))
    assert "the entry 'accuracy' is not one that a card has" in told(run)
    distance = evaluation["internal"]["memorisation"]["median_distance"]
    path.write_text(json.dumps({**card, "audits": [f"median distance {distance:.4f}"]}))
    assert "'audits' holds a number of internal/evaluation.json, internal.memorisation.median_distance" in told(run)
    (run / "internal" / "share.json").write_text(json.dumps({"share": 1.0, "other": 0.56}))
    path.write_text(json.dumps({**card, "audits": ["largest movement ÷ paid 1.0000, measured ≥ 0.56"]}))
    assert "'audits' holds" not in told(run), "numbers that are met by chance"
    path.write_text(json.dumps({**card, "class_counts": np.bincount(TRAIN.labels).tolist()}))
    assert "class_counts are whole numbers" in told(run)


def test_the_command_scans_and_refuses(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answered(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["sfumato", "report", str(run), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert answered("--scan") == 0
    shutil.copy(run / "internal" / "cost.json", run / "release")
    (run / "public.html").unlink()
    assert answered() == 1
    assert not (run / "public.html").exists() and "cost.json is not part" in capsys.readouterr().err
    (run / "release" / "cost.json").unlink()
    assert answered() == 0
    assert (run / "public.html").exists()
    assert (run / "internal" / "internal.html").stat().st_mode & 0o777 == 0o600
