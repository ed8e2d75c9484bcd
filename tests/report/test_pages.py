"""The pages in a real browser: they render, fit a phone, say nothing to the console and fetch nothing."""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser import DESKTOP, PHONE, Browser
from report.finished import TRAIN, evaluated, finished_run
from sfumato.data import PrivateImages
from sfumato.methods import DPMERF
from sfumato.methods.registry import load
from sfumato.privacy import Budget
from sfumato.release.plain_numbers import recognised_by_definition
from sfumato.report.pages import RunFolder, internal_page, public_page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = [finished_run(folder / f"run-{number}", epsilon=epsilon) for number, epsilon in enumerate((2.0, 2.0, 8.0))]
    for run in runs:
        evaluated(run)
    folders = [RunFolder(run.folder) for run in runs]
    seeded = DPMERF.small().fit(PrivateImages.from_images(TRAIN), Budget(2.0, 1e-5), seed=0)
    texts = {
        "public": public_page(load(runs[0].release)),
        "no guarantee": public_page(seeded),
        "internal": internal_page(folders[:1]),
        "several": internal_page(folders),
        "card": (runs[0].release / "card.html").read_text(),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.long
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["public", "no guarantee", "internal", "several", "card"])
def test_a_page_renders_and_nothing_leaves_it(
    browser: Browser, pages: dict[str, Path], name: str, size: tuple[int, int]
) -> None:
    visit = browser.open(pages[name], size)
    assert visit.problems == []
    assert visit.requests == [pages[name].resolve().as_uri()]
    assert browser.run("document.scripts.length", visit.session) == 0
    # Nothing sticks out: a reader scrolls down, never sideways.
    assert browser.run("document.documentElement.scrollWidth", visit.session) == size[0]
    assert browser.run("[...document.images].every(i => i.complete && i.naturalWidth > 0)", visit.session)
    smallest = (
        "Math.min(...[...document.querySelectorAll('svg.chart text')].map(t => t.getBoundingClientRect().height))"
    )
    height = browser.run(smallest, visit.session)
    # The least of no numbers is infinite, for which JSON has nothing: a page without charts.
    assert height is None or height > 9
    picture = np.asarray(Image.open(io.BytesIO(browser.screenshot(visit))).convert("L"))
    assert picture.shape[1] == size[0] and picture.std() > 10


@pytest.mark.long
def test_the_browser_tells_of_scripts_and_requests(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("no"); missing()</script>')
    visit = browser.open(page)
    assert "http://127.0.0.1:9/x.png" in visit.requests
    assert any("no" in problem for problem in visit.problems) and any("Uncaught" in text for text in visit.problems)


@pytest.mark.long
def test_the_policy_of_a_page_stops_what_slips_into_it(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    planted = '<img src="http://127.0.0.1:9/x.png"><script>document.title = "ran"</script></main>'
    page = tmp_path / "planted.html"
    page.write_text(pages["public"].read_text().replace("</main>", planted))
    visit = browser.open(page)
    assert browser.run("document.title", visit.session) != "ran"
    assert sum("Content Security Policy" in problem for problem in visit.problems) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["internal", "several"])
def test_not_private_stands_on_every_screen_and_printed_page(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    visit = browser.open(pages[name])
    marked = (
        "(b => b.top < innerHeight && b.bottom > 0)(document.querySelector('.watermark b').getBoundingClientRect())"
    )
    assert browser.run(marked, visit.session)
    browser.run("scrollTo(0, document.documentElement.scrollHeight)", visit.session)
    assert browser.run(marked, visit.session)
    printed = page_contents(browser.print(visit))
    assert len(printed) > 1
    assert all(turned(content) for content in printed)
    plain = browser.open(pages["public"])
    assert not any(turned(content) for content in page_contents(browser.print(plain)))


def page_contents(pdf: bytes) -> list[bytes]:
    """The drawing commands of each page."""
    contents = []
    for page in re.finditer(rb"/Type /Page\b(?!s).*?>>\s*endobj", pdf, re.DOTALL):
        number = re.search(rb"/Contents (\d+) 0 R", page[0])
        assert number
        start = re.search(rb"\n" + number[1] + rb" 0 obj\s*<<.*?>>\s*stream\r?\n", pdf, re.DOTALL)
        assert start
        contents.append(zlib.decompressobj().decompress(pdf[start.end() :]))
    return contents


def turned(content: bytes) -> bool:
    """Whether anything on a printed page is turned by 32°, as the watermark alone is."""
    matrices = re.findall(rb"([-.\d]+) ([-.\d]+) [-.\d]+ [-.\d]+ [-.\d]+ [-.\d]+ cm", content)
    return any(abs(math.degrees(math.atan2(float(b), float(a))) + 32) < 0.1 for a, b in matrices)


def test_each_chart_opens_with_its_question(pages: dict[str, Path]) -> None:
    for name in ("public", "internal", "several"):
        text = pages[name].read_text()
        captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
        assert 0 < text.count("<svg") + text.count('class="bars"') <= text.count("<figure><figcaption>")
        assert len(captions) == text.count("<figcaption>") and all(caption.endswith("?") for caption in captions)


def test_the_internal_page_has_baselines_classes_memorisation_and_cost(pages: dict[str, Path]) -> None:
    one, several = pages["internal"].read_text(), pages["several"].read_text()
    assert "The left images are PRIVATE" in one and one.count('alt="Private images, a row for each class"') == 1
    for words in ("real half against real half", "uniform noise", "worst class", "Exact copies", "256 MiB"):
        assert words in one
    assert 'class="verdict">Certified at ε = ' in one and " use: a CNN trained on the synthetic images" in one
    assert "How does accuracy change with ε?" in several and "How does accuracy change with ε?" not in one
    # Two runs share ε ≈ 2, so that its point has an error bar; the single run at ε ≈ 8 has none.
    chart = several[several.index("<svg") : several.index("</svg>")]
    assert chart.count("h8m-4") == 1


def test_a_run_without_an_evaluation_says_how_to_make_one(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    page = internal_page([RunFolder(run.folder)])
    assert "sfumato evaluate SYNTHETIC --real DATA --run RUN" in page and "its use was not measured" in page
    with pytest.raises(FileNotFoundError, match="no finished run"):
        internal_page([RunFolder(tmp_path / "nothing")])


def test_bounds_by_the_definition() -> None:
    assert recognised_by_definition(0.0, 0.0, 0.01) == pytest.approx(0.01)
    assert recognised_by_definition(1.0, 1e-5, 0.01) == pytest.approx(0.0271928, rel=1e-4)
    assert recognised_by_definition(1.0, 0.0, 0.9) == pytest.approx(1 - 0.1 / 2.718282, rel=1e-5)
    assert recognised_by_definition(800.0, 0.0, 0.001) == 1.0
