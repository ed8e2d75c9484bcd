"""Checks of the pages: links, spelling, printed commands, the reference, and pages that scripts write."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from glob import glob
from pathlib import Path
from types import ModuleType
from typing import Any

import trusted
from blocks import BLOCK, LANGUAGES, NOT_RUN, blocks, pages, without_blocks
from finding import ROOT, Finding, line_of
from regions import documentation_pages, rendered
from sfumato.experiments.results import load_results
from source_tree import PRIVACY, counted

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
DOCS = ROOT / "docs"


def texts() -> list[Path]:
    """Everything written for readers."""
    others = [ROOT / name for name in ("CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")]
    return [*pages(), *others, *sorted((ROOT / "src").rglob("*.md"))]


# Links


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found = set()
    for heading in HEADING.findall(BLOCK.sub("", text)):
        plain = re.sub(r"[`*\[\]]|\(.*?\)", "", heading).lower()
        found.add(re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return found


def dead_links(page: Path, text: str) -> Iterator[tuple[int, str]]:
    """Line and target of links to files and headings that do not exist."""
    plain = without_blocks(text)
    for link in LINK.finditer(plain):
        target = link[1]
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        own = text if place == page else ""
        there = place == page or place.exists()
        if there and anchor and place.suffix == ".md":
            there = anchor in anchors(own or place.read_text(encoding="utf-8"))
        if not there:
            yield line_of(plain, link.start()), f"the link {target} leads nowhere"


def links() -> Iterator[Finding]:
    """Dead links, and pages that the index of their section does not name."""
    for page in texts():
        for line, text in dead_links(page, page.read_text(encoding="utf-8")):
            yield Finding(page, line, text)
    for index in sorted(DOCS.rglob("index.md")):
        linked = set(LINK.findall(index.read_text(encoding="utf-8")))
        if index.parent == DOCS:
            continue
        for page in sorted({page.name for page in index.parent.glob("*.md")} - {"index.md"} - linked):
            yield Finding(index, 1, f"{page} is not linked")


# Words


def misspelt(words: list[str], text: str | None = None) -> list[str]:
    """What codespell says about files, or about a text."""
    program = [sys.executable, "-m", "codespell_lib", "-L", "bu,fpr,befores,smal,trainigs,protocoll,ot", "-S"]
    done = subprocess.run([*program, "*.json,*.png", *words], input=text, cwd=ROOT, capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if "==>" in line]


def spelling() -> Iterator[Finding]:
    """Misspelt words of pages, sources and tests."""
    for line in misspelt([*glob("*.md", root_dir=ROOT), "docs", "src", "tests", "examples/own_model.py"]):
        file, number, words = line.split(":", 2)
        yield Finding(ROOT / file, int(number), words.strip())


# Commands

INLINE = re.compile(r"`(?:OMP_NUM_THREADS=1 )?(sfumato [^`]+)`")


@cache
def experiments() -> dict[str, dict[str, Any]]:
    """The experiments of each file, by its name."""
    files = (ROOT / "experiments").glob("*.toml")
    return {path.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in files}


def printed_commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Commands of sfumato that no test runs: in blocks for a GPU, and in sentences."""
    for block in blocks(page):
        if block.language == "sh" and block.tag == "gpu" and "<<" not in block.body:
            for words in block.commands():
                if "sfumato" in words:
                    yield block.line, words[words.index("sfumato") + 1 :]
    text = without_blocks(page.read_text(encoding="utf-8"))
    for found in INLINE.finditer(text):
        yield line_of(text, found.start()), shlex.split(" ".join(found[1].split()))[1:]


def wrong_in(words: list[str]) -> str:
    """What a command names that does not exist; nothing where all exists."""
    import typer.main

    from sfumato.cli.main import app

    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            return f"there is no command {' '.join(words)}"
        command = command.commands[rest.pop(0)]
    if not rest or hasattr(command, "commands"):
        return ""
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    unknown = {word for word in rest if word.startswith("--")} - known
    return f"{' '.join(words)}: there is no option {', '.join(sorted(unknown))}" if unknown else _wrong_names(words)


def _wrong_names(words: list[str]) -> str:
    """Experiments of ``--only``, the entry of a paper, and parameters of ``--set``."""
    from sfumato.experiments.entries import find as find_entry
    from sfumato.methods import METHODS, find

    after = {option: [words[place + 1] for place, word in enumerate(words[:-1]) if word == option] for option in words}
    for file in (word for word in words if word.endswith(".toml")):
        absent = {*after.get("--only", [])} - {*experiments().get(Path(file).name, {}), "NAME"}
        if absent:
            return f"{file} has no experiment {', '.join(sorted(absent))}"
    if words[0] == "reproduce" and words[1] not in ("list", "page"):
        try:
            find_entry(words[1], words[2])
        except LookupError as error:
            return str(error)
    method = after.get("--method", words[1:2])[0] if words[0] in ("train", "plan") else ""
    if method in METHODS:
        given = {word.partition("=")[0] for word in after.get("--set", [])}
        absent = given - set(find(method)().parameters())
        if absent:
            return f"{method} has no parameter {', '.join(sorted(absent))}"
    return ""


def commands() -> Iterator[Finding]:
    """Blocks that no test would run, and commands that name what does not exist."""
    for page in pages():
        for block in blocks(page):
            if block.language not in LANGUAGES or block.tag not in ("", *NOT_RUN):
                yield Finding(page, block.line, f"a block of language {block.language!r} and tag {block.tag!r}")
            if block.language == "sh" and block.tag == "fragment":
                yield Finding(page, block.line, "commands are run unless they need a GPU or a cluster")
        for line, words in printed_commands(page):
            if wrong := wrong_in(words):
                yield Finding(page, line, wrong)
    stages = ROOT / "experiments" / "gpu.sh"
    text = stages.read_text(encoding="utf-8")
    for found in re.finditer(r"^experiments (.*?)(?<!\\)$", text, re.DOTALL | re.MULTILINE):
        _, file, _, *only = found[1].replace("\\\n", " ").split()
        for name in sorted(set(only) - set(experiments()[file])):
            yield Finding(stages, line_of(text, found.start()), f"{file} has no experiment {name}")


# The reference of the API

PACKAGES = ("data", "methods", "privacy", "privacy.gradients", "release")


def api() -> Iterator[Finding]:
    """Public names that the reference of the API leaves out, or shows no example of."""
    files = sorted((DOCS / "reference" / "api").glob("*.md"))
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    documented = [pkgutil.resolve_name(name) for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)]
    examples = "".join(block.body for path in files for block in blocks(path) if block.language == "python")
    for module in ("sfumato", *(f"sfumato.{name}" for name in PACKAGES)):
        public = importlib.import_module(module)
        for one in sorted(set(public.__all__) - {"__version__"}):
            found = getattr(public, one)
            if not any(found is other for other in documented):
                yield Finding(files[0].parent / "index.md", 1, f"{module}.{one} is not in the reference")
            elif not re.search(rf"\b{one}\b", examples):
                yield Finding(files[0].parent / "index.md", 1, f"no example uses {module}.{one}")


# Notebooks


def notebooks() -> Iterator[Finding]:
    """Notebooks whose committed output is not that of one run from the top, or names a machine's folders."""
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        outputs = [output for cell in cells for output in cell["outputs"]]
        if [cell["execution_count"] for cell in cells] != list(range(1, len(cells) + 1)) or not outputs:
            yield Finding(path, 1, "its committed output is not that of one run from the top")
        if any(output["output_type"] == "error" for output in outputs):
            yield Finding(path, 1, "its committed output has an error")
        for folder in ("/tmp/", "/home/", "/root/"):
            if folder in text:
                yield Finding(path, line_of(text, folder), f"its output names {folder}")


# Pages that scripts write


def script(path: str) -> ModuleType:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _results_page(text: str) -> str:
    from paper_page import by_entry, page

    known = load_results(DOCS / "results").values()
    return page(by_entry([one for one in known if one.provenance.commit]))


def _expected_use(text: str) -> str:
    module = script("docs/results/expected_use.py")
    rendered: str = module.rendered(text, module.measured())
    return rendered


def writers() -> dict[Path, Callable[[str], str]]:
    """Pages that hold what a script writes, and how each follows from its text as it is."""
    results, known = DOCS / "results", load_results(DOCS / "results")
    found: dict[Path, Callable[[str], str]] = {
        path: lambda text: rendered(text, known) for path in documentation_pages(ROOT)
    }
    written: dict[Path, Callable[[str], str]] = {
        results / "reproduction.md": _results_page,
        results / "expected-use.md": _expected_use,
        DOCS / "reference" / "command-line.md": lambda _: script("docs/reference/command_line.py").page(),
        DOCS / "explanation" / "five-printed-epsilons.md": lambda text: script("docs/case_studies.py").rendered(text),
        DOCS / "how-to" / "scale.md": lambda text: script("docs/scale_numbers.py").rendered(text),
        **{
            results / f"{name}.md": lambda text: script("docs/results/checks.py").rendered(text)
            for name in ("audits", "checks")
        },
        PRIVACY / "README.md": counted,
        ROOT / "README.md": trusted.counted,
        trusted.READING: trusted.counted,
    }
    for path, write in written.items():
        before = found.get(path, lambda text: text)
        found[path] = lambda text, before=before, write=write: write(before(text))  # type: ignore[misc]
    return found


def differences(before: str, after: str) -> Iterator[tuple[int, str]]:
    """The first line that differs."""
    own, new = before.splitlines(), after.splitlines()
    for number, (old, now) in enumerate(zip(own, new, strict=False), 1):
        if old != now:
            yield number, f"{old[:60]!r} should be {now[:60]!r}; run python docs/tools/render.py"
            return
    if len(own) != len(new):
        yield min(len(own), len(new)), f"{len(own)} lines should be {len(new)}; run python docs/tools/render.py"


def written() -> Iterator[Finding]:
    """Pages that are not what their script writes from the result files, the commands or the sources."""
    for path, write in writers().items():
        if path == PRIVACY / "README.md":  # trusted_base allows for small differences
            continue
        text = path.read_text(encoding="utf-8")
        for line, words in differences(text, write(text)):
            yield Finding(path, line, words)
