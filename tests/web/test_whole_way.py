"""The whole way in a real browser, by keyboard alone, with an accessibility check of every page; and interruptions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page

from sfumato.privacy import Ledger
from sfumato.web.jobs import Process
from web.served import SMALL, Served, choose, chromium, served, write_digits

pytestmark = pytest.mark.long

PHONE = {"width": 375, "height": 812}
DESKTOP = {"width": 1280, "height": 900}
PATIENCE = 900_000
# Some seconds of training: long enough to be stopped.
SLOW = "steps=600 sampling_rate=0.05 width=16"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_digits(tmp_path / "digits.npz")
    return tmp_path


def entered(browser: Browser, server: Served) -> Page:
    """A browser of its own, with its own cookies."""
    page = browser.new_context(viewport=DESKTOP).new_page()
    page.set_default_timeout(PATIENCE)
    page.goto(server.entrance)
    return page


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until the element has the focus, as someone without a mouse does."""
    for _ in range(150):
        if target.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {target}")


def press(page: Page, name: str, role: str = "button") -> None:
    tab_to(page, page.get_by_role(role, name=name).first)  # type: ignore[arg-type]
    page.keyboard.press("Enter")


def type_into(page: Page, label: str, text: str) -> None:
    tab_to(page, page.get_by_label(label))
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def check_page(page: Page) -> None:
    """No serious accessibility fault, a banner, a command line, and nothing wider than a phone."""
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")] == []
    assert page.locator(".banner").inner_text().startswith(("INSIDE ONLY", "MAY LEAVE", "ON THIS MACHINE"))
    assert (page.locator(".command pre").first.text_content() or "").startswith("sfumato ")
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], page.url
    page.set_viewport_size(DESKTOP)


def test_the_whole_way_by_keyboard_from_a_folder_to_an_exported_set(browser: Browser, root: Path) -> None:
    with served(root) as server:
        page = entered(browser, server)
        check_page(page)
        press(page, "Choose a collection", "link")
        page.wait_for_url("**/browse")
        check_page(page)
        press(page, "Use digits.npz")
        page.wait_for_url("**/collections/*")
        check_page(page)
        tab_to(page, page.get_by_role("slider"))
        page.keyboard.press("ArrowRight")
        assert page.locator("#epsilon-value").inner_text() == "2"
        press(page, "Show the plan")
        page.wait_for_url("**/plans/*")
        check_page(page)
        tab_to(page, page.locator("#others summary"))
        page.keyboard.press("Enter")
        methods = page.get_by_role("radio").evaluate_all("all => all.map(one => one.value)")
        assert {"dp-merf", "dp-vae", "dpaf"} <= set(methods)
        tab_to(page, page.get_by_role("radio").first)
        for _ in range(20):
            if page.get_by_role("radio", name="dp-merf").is_checked():
                break
            page.keyboard.press("ArrowDown")
        type_into(page, "name of the run", "first")
        type_into(page, "settings", SMALL)
        press(page, "Start the training")
        page.wait_for_url("**/jobs/*")
        check_page(page)
        page.wait_for_url("**/runs/first")
        check_page(page)
        # Nobody asked for it: after a training real images stand beside synthetic ones.
        beside = page.frame_locator("iframe[title^=Internal]").locator(".rows img")
        assert beside.count() == 2 and page.locator(".banner").inner_text().startswith("INSIDE ONLY")
        press(page, "Compare with the real images")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url("**/runs/first")
        internal = page.frame_locator("iframe[title^=Internal]")
        found = internal.locator("body").inner_text()
        assert "Does it repeat private images?" in found and "NOT PRIVATE" in found
        assert internal.locator(".rows .names").inner_text().split() == [str(digit) for digit in range(10)]
        assert internal.locator(".rows img").count() == 2
        assert "No audit has been run" in page.locator("#audited").inner_text()
        press(page, "Run the audits")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url("**/runs/first")
        assert "found nothing that contradicts" in page.locator("#audited").inner_text()
        assert "neighbour replay" in page.locator("main").inner_text()
        check_page(page)
        press(page, "To the release", "link")
        page.wait_for_url("**/release")
        check_page(page)
        assert page.locator(".banner").inner_text().startswith("MAY LEAVE")
        assert "is on the collection's ledger" in page.locator("main").inner_text()
        tab_to(page, page.get_by_label("format"))
        page.keyboard.type("npz")
        press(page, "Export")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url("**/release")
        with np.load(root / "sfumato" / "exports" / "first-1" / "images.npz") as exported:
            assert exported["images"].shape == (1000, 28, 28) and "at most a factor" in str(exported["sentence"])
        with page.expect_download() as fetched:
            press(page, "Download first-1", "link")
        assert fetched.value.suggested_filename == "first-1.npz"
        assert fetched.value.path().read_bytes() == (root / "sfumato/exports/first-1/images.npz").read_bytes()
        page.goto(server.address)
        check_page(page)
        assert re.search(r"ε 2 of 2 spent, 0 left|ε 1\.\d+ of 2 spent", page.locator("main").inner_text())


def test_stop_go_on_a_killed_server_and_two_browsers(browser: Browser, root: Path) -> None:
    server = Served(root)
    try:
        page, other = entered(browser, server), entered(browser, server)
        choose(page, "digits.npz")
        other.goto(page.url)
        plan(page, "dp-vae")
        plan(other, "dp-merf")
        start(page, "slow", SLOW)
        start(other, "second", SMALL)
        page.locator("#parts label", has_text="training").wait_for()
        assert 0 < float(page.locator("#epsilon-spent").inner_text()) <= 1
        assert other.locator("#state").inner_text() == "queued"
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Go on").wait_for()
        assert page.locator("#state").inner_text() == "stopped"
        assert (root / "sfumato" / "runs" / "slow" / "internal" / "checkpoint").is_dir()
        check_page(page)
        other.wait_for_url("**/runs/second")
        page.get_by_role("button", name="Go on").click()
        page.wait_for_url("**/jobs/*")
        assert "--resume" in (page.locator(".command pre").last.text_content() or "")
        page.locator("#parts label", has_text="training").wait_for()
        job = page.url.rpartition("/")[2]
        server.kill()
        status = json.loads((root / "sfumato" / "jobs" / job / "status.json").read_text())
        assert Process(**status["command"]).alive
        server = Served(root)
        assert page.goto(f"{server.address}/jobs/{job}").status == 403  # type: ignore[union-attr]
        page.goto(server.entrance)
        page.goto(f"{server.address}/jobs/{job}")
        page.wait_for_url("**/runs/slow")
        ledgers = list((root / "sfumato" / "ledgers").glob("*.jsonl"))
        assert len(ledgers) == 1 and len(Ledger.read(ledgers[0]).runs()) == 2
    finally:
        server.close()


def plan(page: Page, method: str) -> None:
    page.get_by_role("button", name="Show the plan").click()
    page.wait_for_url("**/plans/*")
    page.locator("#others").evaluate("one => { one.open = true; }")
    page.get_by_role("radio", name=method).check()


def start(page: Page, name: str, settings: str) -> None:
    page.get_by_label("name of the run").fill(name)
    page.get_by_label("settings").fill(settings)
    page.get_by_label("limit").fill("4")
    page.get_by_role("button", name="Start the training").click()
    page.wait_for_url("**/jobs/*")
