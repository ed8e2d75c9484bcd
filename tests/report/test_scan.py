"""The release scan lets a clean run pass and catches what was added to a page, a picture, a card or the weights."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin
from safetensors.numpy import load_file, save_file

from report.finished import TRAIN, evaluated, finished_run
from sfumato.cli.main import main
from sfumato.methods.registry import load
from sfumato.release.pages import data_address
from sfumato.report.pages import public_page
from sfumato.report.scan import scan


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


def test_an_edited_page_is_caught_by_its_place_and_the_number_is_not_told(run: Path) -> None:
    edit(run / "public.html", lambda page: page.replace("the image size", "317 images; the image size", 1))
    found = told(run).replace(str(run), "")
    assert "it is not the page that the release alone gives" in found and "What is treated as public" in found
    assert "317" not in found


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
