"""The short way in a real browser: choose a file, see what is in it, plan, train, and see the public page."""

from __future__ import annotations

from pathlib import Path

from web.live import live
from web.served import SMALL, choose, chromium, write_digits


def test_from_a_file_to_a_public_page(tmp_path: Path) -> None:
    write_digits(tmp_path / "digits.npz", 120)
    with live(tmp_path) as server, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(120_000)
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.entrance)
        assert page.url == f"{server.address}/"
        choose(page, "digits.npz")
        assert "INSIDE ONLY" in page.locator(".banner").inner_text()
        right = int(page.locator("#right").inner_text())
        page.locator("#epsilon").press("ArrowRight")
        assert int(page.locator("#right").inner_text()) > right
        assert page.locator("circle.added").count() == int(page.locator("#right").inner_text()) - 50
        page.get_by_label("Plan for").select_option("dp-merf")
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_url("**/plans/*")
        page.get_by_label("name of the run").fill("first")
        page.get_by_label("settings").fill(SMALL)
        page.get_by_role("button", name="Start the training").click()
        page.wait_for_url("**/jobs/*")
        assert "sfumato train" in page.locator("pre").last.inner_text()
        page.wait_for_url("**/runs/first")
        assert "ε = 2" in page.frame_locator("iframe").first.locator(".numbers").inner_text()
        assert problems == []
