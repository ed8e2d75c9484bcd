"""Pages are up to date, complete and free of dead links, long lines and misspellings."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import sfumato
from documentation.blocks import BLOCK, ROOT, pages

TEXTS = [*pages(), *(ROOT / name for name in ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"))]
TEXTS += sorted((ROOT / "src").rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LONGEST = 132


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def script(path: str) -> ModuleType:
    """A script of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    found = set()
    for heading in HEADING.findall(text):
        plain = re.sub(r"[`*\[\]]|\(.*?\)", "", heading).lower()
        found.add(re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), (target, sorted(anchors(place)))


@pytest.mark.parametrize("page", pages(), ids=name)
def test_no_line_is_too_long(page: Path) -> None:
    """Tables, pictures, code and generated text have lines as long as they need."""
    if page.stem in ("reproduction", "command-line"):
        return
    text = re.sub(r"<!-- results.*?<!-- /results -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in BLOCK.sub("", text).splitlines():
        assert len(line) <= LONGEST or line.startswith(("|", "![", "    ")), line


def test_spelling() -> None:
    words = [
        sys.executable,
        "-m",
        "codespell_lib",
        "-L",
        "bu,fpr,befores,smal,trainigs,protocoll",
        "-S",
        "*.json,*.png",
    ]
    places = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "docs",
        "src",
        "tests",
        "examples/own_model.py",
    ]
    done = subprocess.run([*words, *places], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    wrong = subprocess.run([*words, "-"], input="reci" + "eve", cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode != 0, "a misspelling is found"


def test_the_command_line_reference_is_current() -> None:
    """Written by: python docs/reference/command_line.py"""
    made = script("docs/reference/command_line.py").page()
    current = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert current == made, "write it again: python docs/reference/command_line.py"


def test_the_case_studies_are_those_of_the_result_file() -> None:
    """Written by: python docs/case_studies.py"""
    module = script("docs/case_studies.py")
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.rendered(page) == page
    assert module.table(module.case_studies()) in page
    changed = page.replace("**3.47**", "**4.47**")
    assert changed != page and module.rendered(changed) == page


def test_the_api_reference_has_every_public_name() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    documented = set(re.findall(r"^::: sfumato\.([\w.]+)$", text, re.MULTILINE))
    for public, module in sfumato._MODULES.items():
        assert any(one.startswith(module) and one.endswith(f".{public}") for one in documented), public
    for one in documented:
        found: object = sfumato
        for part in one.split("."):
            found = (
                getattr(found, part) if hasattr(found, part) else importlib.import_module(f"{found.__name__}.{part}")
            )  # type: ignore[attr-defined]


def test_every_page_has_one_title() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page


@pytest.mark.long
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'(<script[^>]* src|<link[^>]*stylesheet[^>]* href|<img[^>]* src)="?(https?:)?//', text), (
            page
        )


def test_the_replay_table_is_that_of_the_result_file() -> None:
    """Written by: python docs/results/replay.py"""
    module = script("docs/results/replay.py")
    page = module.PAGE.read_text(encoding="utf-8")
    rows = json.loads(module.RESULT.read_text(encoding="utf-8"))["replays"]
    assert module.table(rows) in page and module.rendered(page, rows) == page
    assert not any(row["findings"] for row in rows)
