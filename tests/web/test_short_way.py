"""The short way in a real browser: choose a folder, see what is in it, plan, train, and see the public page."""

from __future__ import annotations

from pathlib import Path

import pytest

from web.live import live
from web.served import SMALL, choose, chromium, write_classes

CLASSES = ("<img src=x onerror=alert(1)>", "two")

pytestmark = pytest.mark.long


def test_from_a_folder_to_a_public_page(tmp_path: Path) -> None:
    """One of the class names is an attack; it is shown as text and nothing runs."""
    write_classes(tmp_path / "root" / "digits", 120, CLASSES)
    with live(tmp_path / "root") as server, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(600_000)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.goto(server.entrance)
        assert page.url == f"{server.address}/"
        choose(page, "digits")
        page.get_by_text("2 classes").click()
        assert CLASSES[0] in page.locator("table.short").inner_text()
        assert "INSIDE ONLY" in page.locator(".banner").inner_text()
        right = int(page.locator("#right").inner_text())
        page.locator("#epsilon").press("ArrowRight")
        assert int(page.locator("#right").inner_text()) > right
        assert page.locator("circle.added").count() == int(page.locator("#right").inner_text()) - 50
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_url("**/plans/*")
        page.locator("#others").evaluate("one => { one.open = true; }")
        page.get_by_role("radio", name="dp-merf").check()
        page.get_by_label("name of the run").fill("first")
        page.get_by_label("settings").fill(SMALL)
        page.get_by_role("button", name="Start the training").click()
        page.wait_for_url("**/jobs/*")
        assert "sfumato train" in (page.locator("pre").last.text_content() or "")
        page.wait_for_url("**/runs/first")
        public = page.frame_locator("iframe[title^=Public]")
        assert "ε = 2" in public.locator(".numbers").inner_text()
        assert CLASSES[0] in public.locator(".strip").inner_text()
        assert problems == []
