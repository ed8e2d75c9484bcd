"""The page of a job says when it has lost the server, tries again, and holds no connection while it is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from web.live import Live, live
from web.served import PATIENCE, chromium
from web.still import finish, jobs_of, without_workers

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        yield page


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    without_workers(monkeypatch)
    with live(tmp_path) as running:
        yield running


def test_a_lost_connection_is_told_and_tried_again(server: Live, page: Page) -> None:
    jobs = jobs_of(server)
    job = jobs.start("inspect", "What is in it", [("inspect", "x")])
    page.goto(server.entrance)
    page.route("**/events", lambda route: route.fulfill(status=403, body="another token"))
    page.goto(f"{server.address}/jobs/{job.id}")
    expect(page.locator("#lost")).to_be_visible()
    assert "open the address that sfumato web printed" in page.locator("#lost").inner_text()
    page.unroute("**/events")
    finish(jobs, job, "failed")
    expect(page.locator("#state")).to_have_text("failed")
    expect(page.locator("#lost")).to_be_hidden()


def test_a_hidden_tab_has_no_stream(server: Live, page: Page) -> None:
    job = jobs_of(server).start("inspect", "What is in it", [("inspect", "x")])
    page.goto(server.entrance)
    with page.expect_request("**/events"):
        page.goto(f"{server.address}/jobs/{job.id}")
    show = "hidden => Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})"
    changed = "() => document.dispatchEvent(new Event('visibilitychange'))"
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        page.evaluate(show, True)
        page.evaluate(changed)
    with page.expect_request("**/events"):
        page.evaluate(show, False)
        page.evaluate(changed)
