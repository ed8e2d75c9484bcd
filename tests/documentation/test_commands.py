"""Every block of the documentation runs, at a small size."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from documentation.blocks import INSTALLING, NOT_RUN, ROOT, blocks, make_collection, pages, sfumato, smaller
from sfumato.cli import demonstration
from sfumato.cli.main import app
from sfumato.experiments.papers.entries import find as find_entry
from sfumato.methods import DPMERF, METHODS, find

WITH_BLOCKS = [page for page in pages() if any(block.language in ("sh", "python") for block in blocks(page))]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_block_has_a_language_and_a_known_tag(page: Path) -> None:
    for block in blocks(page):
        assert block.language in ("sh", "python", "text", "json", "toml", "yaml", "html", "css"), block.body
        assert block.tag in ("", *NOT_RUN), block.tag
        assert block.language != "sh" or block.tag != "fragment", "commands are run unless they need a GPU or a cluster"
    assert "\n    sfumato " not in page.read_text(encoding="utf-8").replace("```", ""), (
        "commands stand in fenced blocks"
    )


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
    monkeypatch.setattr(demonstration, "best_method", DPMERF.small)
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
                if words[0] not in INSTALLING:
                    assert words[0] == "sfumato", words
                    assert sfumato(smaller(words)) == 0, words


def test_commands_for_clusters_and_stores_are_accepted_here(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(prepared / "xrays", tmp_path / "xrays")
    scale, data = ROOT / "docs" / "how-to" / "scale.md", ROOT / "docs" / "reference" / "data.md"
    found = [block for page in (scale, data) for block in blocks(page) if block.tag == "cluster"]
    started = [words[words.index("sfumato") :] for block in found for words in block.commands() if "sfumato" in words]
    for number, words in enumerate(started):
        here = [word.replace("/data/", "").replace("s3://bucket/", "") for word in words]
        if words[1] == "train" and number:
            here[here.index("--out") + 1] = f"run-{number}"
        assert sfumato(smaller(here)) == 0, words
    assert [words[1] for words in started] == ["train", "sample", "train", "train", "train"]


INLINE = re.compile(r"`(?:OMP_NUM_THREADS=1 )?(sfumato [^`]+)`")
EXPERIMENTS = {
    path.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "experiments").glob("*.toml")
}


def _not_run(page: Path) -> Iterator[list[str]]:
    """The words of each command of sfumato that is not run above: in blocks for a GPU, and in sentences."""
    for block in blocks(page):
        if block.language == "sh" and block.tag == "gpu" and "<<" not in block.body:
            yield from (words[words.index("sfumato") + 1 :] for words in block.commands() if "sfumato" in words)
    for found in INLINE.findall(re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)):
        yield shlex.split(" ".join(found.split()))[1:]


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_command_that_is_not_run_here_has_options_experiments_and_parameters_that_exist(page: Path) -> None:
    root: Any = typer.main.get_command(app)
    for words in _not_run(page):
        command, rest = root, list(words)
        while rest and hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        if not rest or hasattr(command, "commands"):
            continue
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known, words
        _check_names(words)


def _check_names(words: list[str]) -> None:
    """Experiments of ``--only``, the entry of a paper, and parameters of ``--set``."""
    after = {option: [words[place + 1] for place, word in enumerate(words[:-1]) if word == option] for option in words}
    for file in (word for word in words if word.endswith(".toml")):
        assert {*after.get("--only", []), "NAME"} <= {*EXPERIMENTS[Path(file).name], "NAME"}, words
    if words[0] == "reproduce" and words[1] not in ("list", "page"):
        find_entry(words[1], words[2])
    method = after.get("--method", words[1:2])[0] if words[0] in ("train", "plan") else ""
    if method in METHODS:
        assert {word.partition("=")[0] for word in after.get("--set", [])} <= set(find(method)().parameters()), words


def test_a_wrong_option_experiment_entry_or_parameter_is_noticed() -> None:
    for wrong in (
        "experiment run experiments/faces.toml --only dppm-face",
        "reproduce dppm table-9 --data DATA",
        "plan dppm --epsilon 10 --set patch=8",
    ):
        with pytest.raises((AssertionError, LookupError)):
            _check_names(wrong.split())


@pytest.mark.parametrize(
    "words", re.findall(r"^experiments (.*?)(?<!\\)$", (ROOT / "experiments" / "gpu.sh").read_text(), re.S | re.M)
)
def test_the_stages_for_a_gpu_name_experiments_that_exist(words: str) -> None:
    _, file, _, *only = words.replace("\\\n", " ").split()
    assert set(only) <= set(EXPERIMENTS[file])


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
