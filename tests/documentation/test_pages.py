"""Pages are up to date, complete and free of dead links, long lines and misspellings."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from documentation.blocks import BLOCK, ROOT, blocks, pages

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


def test_the_case_studies_are_measured_with_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    from sfumato.audit import case_studies
    from sfumato.experiments.results import current_commit

    cheap = {"certified": partial(case_studies.certified, draws=1000)}
    monkeypatch.setattr(case_studies, "CASE_STUDIES", cheap)
    found = script("docs/case_studies.py").measure()
    assert found["commit"] == current_commit() and found["command"].endswith("--measure")
    assert [sorted(one) for one in found["case_studies"]] == [["above_claim", "claimed", "measured", "name", "note"]]


def test_the_numbers_of_the_page_on_scale_are_those_of_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by: python docs/scale_numbers.py"""
    module = script("docs/scale_numbers.py")
    page = module.PAGE.read_text(encoding="utf-8")
    assert module.rendered(page) == page
    assert {found["name"] for found in module.REGION.finditer(page)} == set(module.PARTS)
    run = {"seconds_to_the_end_of_all": 1.23, "charged_steps": 4, "finished_before_the_kill": False, "passed": True}
    finished = {**run, "charged_steps": 9, "finished_before_the_kill": True}
    found = {"kills": 3, "passed": 3, "steps": 9, "runs": [run, run, finished]}
    monkeypatch.setattr(module, "result", lambda name: found if name == "killed-ranks" else None)
    assert "| 1.2 s |" in module.rendered(page)  # another file, another page
    assert "at the planned ε | 2 |" in module.rendered(page)  # a run that had finished was not resumed


API = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
PUBLIC_MODULES = (
    "sfumato",
    "sfumato.data",
    "sfumato.methods",
    "sfumato.privacy",
    "sfumato.privacy.gradients",
    "sfumato.release",
)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_the_api_reference_has_every_public_name_and_an_example_that_uses_it(module: str) -> None:
    """The blocks themselves are run by test_commands.py, doctests by test_public_names.py."""
    text = "".join(path.read_text(encoding="utf-8") for path in API)
    documented = [pkgutil.resolve_name(name) for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)]
    examples = "".join(block.body for path in API for block in blocks(path) if block.language == "python")
    public = importlib.import_module(module)
    for one in sorted(set(public.__all__) - {"__version__"}):
        found = getattr(public, one)
        assert any(found is other for other in documented), f"{module}.{one} is not in docs/reference/api"
        assert re.search(rf"\b{one}\b", examples), f"no example in docs/reference/api uses {module}.{one}"


@pytest.mark.parametrize("section", ("tutorials", "how-to", "explanation", "reference", "reference/api", "results"))
def test_the_index_of_a_section_links_to_each_of_its_pages(section: str) -> None:
    folder = ROOT / "docs" / section
    linked = set(LINK.findall((folder / "index.md").read_text(encoding="utf-8")))
    assert {page.name for page in folder.glob("*.md")} - {"index.md"} <= linked


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


@pytest.mark.parametrize("name", ["audits.md", "checks.md", "engine.md"])
def test_the_tables_of_the_checks_are_those_of_the_result_files(name: str) -> None:
    """Written by: python docs/results/checks.py"""
    module = script("docs/results/checks.py")
    page = (module.HERE / name).read_text(encoding="utf-8")
    assert "| --- |" in page and module.rendered(page) == page


def test_the_page_of_a_newcomers_route_is_that_of_the_result_file() -> None:
    """Written by: python benchmarks/newcomer.py"""
    module = script("benchmarks/newcomer.py")
    found = json.loads(module.PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert module.page(found) == module.PAGE.read_text(encoding="utf-8")
