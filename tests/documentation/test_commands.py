"""Every block of the documentation runs, at a small size."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from blocks import NOT_RUN, blocks, pages
from documentation.small_commands import INSTALLING, make_collection, sfumato, smaller
from sfumato.cli import demo as demonstration

ROOT = Path(__file__).parents[2]
WITH_BLOCKS = [page for page in pages() if any(block.language in ("sh", "python") for block in blocks(page))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a collection, a run and synthetic images, copied for each page."""
    folder = tmp_path_factory.mktemp("prepared")
    make_collection(folder / "xrays")
    words = ["sfumato", "train", str(folder / "xrays"), "--method", "dp-merf", "--epsilon", "3", "--hold-out", "0.2"]
    assert sfumato(smaller([*words, "--out", str(folder / "run")])) == 0
    assert (
        sfumato(smaller(["sfumato", "sample", str(folder / "run"), "--out", str(folder / "synthetic"), "--count", "9"]))
        == 0
    )
    return folder


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name)
def test_the_blocks_of_a_page_run(page: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demonstration, "DIGITS", 400)
    shutil.copytree(prepared / "xrays", tmp_path / "xrays")
    shutil.copytree(prepared / "xrays", tmp_path / "DATA")
    if "<!-- needs: run -->" in page.read_text(encoding="utf-8"):
        for folder in ("run", "synthetic"):
            shutil.copytree(prepared / folder, tmp_path / folder)
    page_module = ModuleType("page_of_the_documentation")  # classes of a page look up the module they are in
    monkeypatch.setitem(sys.modules, page_module.__name__, page_module)
    for block in blocks(page):
        if block.tag in NOT_RUN:
            continue
        if block.language == "python":
            _python(block.body, page_module)
        elif block.language == "sh":
            for words in block.commands():
                if words[0] == "PYTHONPATH=tests":  # as the tests are run
                    words = words[1:]
                if words[0] not in INSTALLING:
                    assert words[0] == "sfumato", words
                    assert sfumato(smaller(words)) == 0, words


@pytest.mark.long
def test_commands_for_clusters_are_accepted_here(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared / "xrays", tmp_path / "xrays")
    found = [block for block in blocks(ROOT / "docs" / "how-to" / "scale.md") if block.tag == "cluster"]
    started = [words[words.index("sfumato") :] for block in found for words in block.commands() if "sfumato" in words]
    for number, words in enumerate(started):
        here = [word.replace("/data/", "") for word in words]
        if words[1] == "train" and number:
            here[here.index("--out") + 1] = f"run-{number}"
        assert sfumato(smaller(here)) == 0, words
    assert [words[1] for words in started] == ["train", "train", "train"]


def _python(body: str, module: ModuleType) -> None:
    """Run a block; one that begins with the name of a file is written to that file."""
    first = body.splitlines()[0]
    if first.startswith("# ") and first.endswith(".py"):
        file = Path(first[2:])
        file.write_text(body, encoding="utf-8")
        sys.modules.pop(file.stem, None)
        importlib.invalidate_caches()
        return
    exec(compile(_smaller_python(body), "<page>", "exec"), module.__dict__)


def _smaller_python(body: str) -> str:
    """The same code with small methods and few samples."""
    for usual in ("DP2VAE", "DPMERF", "DPLFlow", "DPPM"):
        body = body.replace(f"sf.{usual}()", f"sf.{usual}.small()")
    return body.replace("60_000", "60").replace("10_000", "60").replace("1_000", "60")
