"""Make the pictures of how-to/web.md from drawn digits, in a browser in front of a server of its own.

    PYTHONPATH=tests python docs/web_screenshots.py FOLDER

``FOLDER`` keeps the run; with one that is finished only the pictures are made again. They are written to docs/images.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from web.served import Served, choose, chromium, served, write_digits

IMAGES = Path(__file__).parent / "images"
SETTINGS = "features=1000 iterations=2500 batch_size=100 learning_rate=0.003 length_scale=5"
SIZES = {"desktop": (960, 1450), "phone": (375, 1250)}
RUN = "digits-at-2"


def main(folder: Path) -> None:
    """Make the run if it is not there, and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "digits.npz").exists():
        write_digits(folder / "digits.npz", 3000)
    with served(folder) as server, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(1_800_000)
        page.goto(server.entrance)
        if not (folder / "sfumato" / "runs" / RUN / "internal" / "neighbours.png").exists():
            make_run(page, server)
        jobs = folder / "sfumato" / "jobs"
        plan = next(path.name for path in jobs.iterdir() if "-plan-" in path.name)
        collection = next((folder / "sfumato" / "collections").glob("*.json")).stem
        addresses = {"collection": f"/collections/{collection}", "plan": f"/plans/{plan}"}
        addresses |= {"review": f"/runs/{RUN}", "release": f"/runs/{RUN}/release"}
        for name, address in addresses.items():
            for kind in SIZES:
                take(page, server.address + address, name, kind)


def take(page: Page, address: str, name: str, kind: str) -> None:
    """A picture of a page in the window of a desktop or of a phone."""
    width, height = SIZES[kind]
    page.set_viewport_size({"width": width, "height": height})
    page.goto(address)
    page.wait_for_timeout(1500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    small = picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    small.save(IMAGES / f"web-{name}-{kind}.png", optimize=True)


def make_run(page: Page, server: Served) -> None:
    """The way up to the review.

    Buttons are pressed by the keyboard: a click directly after scrolling can be delivered to the frame that was at that
    place before.
    """
    choose(page, "digits.npz")
    page.locator("#epsilon").press("ArrowRight")
    page.get_by_role("button", name="Show the plan").press("Enter")
    page.wait_for_url("**/plans/*")
    page.locator("#others").evaluate("one => { one.open = true; }")
    page.get_by_role("radio", name="dp-merf").check()
    page.get_by_label("name of the run").fill(RUN)
    page.get_by_label("settings").fill(SETTINGS)
    page.get_by_label("limit").fill("4")
    page.get_by_role("button", name="Start the training").press("Enter")
    page.wait_for_url("**/jobs/*")
    page.get_by_text("ε spent by this run so far").wait_for()
    page.wait_for_timeout(20_000)  # until the first samples are there
    for kind in SIZES:
        take(page, page.url, "training", kind)
    page.wait_for_url(f"**/runs/{RUN}")
    for button in ("Compare with the real images", "Run the audits"):
        page.get_by_role("button", name=button).press("Enter")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url(f"**/runs/{RUN}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
