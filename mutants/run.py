"""Apply planted defects one at a time in a copy of the sources, and check that the named test fails for each.

``python mutants/run.py`` runs the committed list; ``--only TEXT`` those whose file or description contains the text.
Exit status 1 if a defect survives, or if a patch no longer applies.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from selection import TEST_FAILED, forked_tests, preload

_SECONDS = 1800  # of one test; it counts as one that does not end
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    """``old`` occurs once in ``src/sfumato/<file>``; replaced by ``new`` it is a defect that ``tests/<test>`` finds."""

    defect: str
    file: str
    old: str
    new: str
    test: str


def chosen_mutants() -> list[Mutant]:
    """The committed list."""
    text = (ROOT / "mutants" / "chosen.toml").read_text(encoding="utf-8")
    return [Mutant(**values) for values in tomllib.loads(text)["mutant"]]


def result_of(mutant: Mutant, copy: Path) -> str:
    """What became of a defect: only a test that ran and failed has caught it."""
    target = copy / "src" / "sfumato" / mutant.file
    original = target.read_text(encoding="utf-8")
    if original.count(mutant.old) != 1:
        return "does not apply"
    target.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        failure = forked_tests(copy, [f"tests/{mutant.test}"], seconds=_SECONDS)
        return {None: "SURVIVES", TEST_FAILED: "caught"}.get(failure, f"not shown: {failure}")
    finally:
        target.write_text(original, encoding="utf-8")


def copied(folder: Path) -> Path:
    """The sources, the tests and the settings, without anything that is built or downloaded."""
    for name in ("src", "tests", "verifier"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "docs"):
        source = ROOT / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    return folder


def current_commit() -> str:
    """The commit, with ``+`` where the sources or the tests were changed since; without importing what is tested."""
    words = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "src", "tests"])
    commit, changed = (
        subprocess.run(["git", *one], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        for one in words
    )
    return commit + ("+" if changed else "")


def main() -> int:
    """Run the list and print one line for each defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Run defects whose file or description contains this text.")
    parser.add_argument("--out", type=Path, help="Write what became of each defect to this JSON file.")
    options = parser.parse_args()
    chosen = [mutant for mutant in chosen_mutants() if options.only in f"{mutant.file} {mutant.defect}"]
    results = []
    os.environ["OMP_NUM_THREADS"] = "1"
    preload()
    with tempfile.TemporaryDirectory() as temporary:
        copy = copied(Path(temporary))
        for mutant in chosen:
            state = result_of(mutant, copy)
            results.append({"defect": mutant.defect, "file": mutant.file, "test": mutant.test, "result": state})
            print(f"{state}: {mutant.file}: {mutant.defect} ({mutant.test})", flush=True)
    caught = sum(result["result"] == "caught" for result in results)
    print(f"{caught} of {len(chosen)} caught")
    if options.out:
        command = "python mutants/run.py" + (f" --only {shlex.quote(options.only)}" if options.only else "")
        made = {"command": command, "commit": current_commit(), "torch": version("torch")}
        found = {**made, "chosen": len(chosen), "caught": caught, "mutants": results}
        options.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
