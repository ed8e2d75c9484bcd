"""Checks of the repository: a line for each finding, with its file and line.

    python docs/tools/check.py [NAME …]

fails on what is false: a number that is not that of its file, a dead link, an import that points up, a planted defect
that no longer applies. What is merely old, a result of code that has changed since, is printed and fails nothing.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor

import pages
import result_files
import sentences
import source_tree
import summaries
import trusted
from evidence import stale_results, without_commit
from finding import ROOT, Finding
from sfumato.experiments.results import load_results

CHECKS: dict[str, Callable[[], Iterable[Finding]]] = {
    "numbers computed": sentences.other_pages,
    "the split of the faces": sentences.faces_everywhere,
    "imports": source_tree.imports,
    "unsafe code": source_tree.unsafe_code,
    "assertions": source_tree.assertions,
    "planted defects": source_tree.planted_defects,
    "advisory": source_tree.advisory,
    "trusted base": source_tree.trusted_base,
    "trusted lines": trusted.size,
    "proofs": trusted.proofs,
    "links": pages.links,
    "spelling": pages.spelling,
    "commands": pages.commands,
    "api": pages.api,
    "notebooks": pages.notebooks,
    "written pages": pages.written,
    "result files": result_files.contents,
    "tables": result_files.tables,
    "summaries": summaries.summaries,
}


def old_results() -> list[str]:
    """Results that are older than the code they measure, with the files that changed."""
    folder = ROOT / "docs" / "results"
    known = load_results(folder)
    lines = []
    for one in (*stale_results(known), *without_commit(folder, known)):
        *_, last = one.files or ("",)
        reason = f"{last} and {len(one.files) - 1} more files of its code changed since" if one.files else one.reason
        lines.append(f"docs/results/{one.name}.json:1: old: {reason}")
    return lines


def run(name: str) -> list[str]:
    """The findings of a check as lines; a check that cannot run is one itself."""
    try:
        if name == OLD:
            return old_results()
        found = sentences.of_page(name) if name in sentences.SENTENCES else CHECKS[name]()
        return [str(one) for one in found]
    except Exception as error:
        [*_, last] = traceback.extract_tb(error.__traceback__)
        return [f"{last.filename}:{last.lineno}: {name} cannot be checked: {type(error).__name__}: {error}"]


OLD = "old results"


def main(words: list[str]) -> int:
    """Run the checks that are named, or all."""
    names = words or [*sentences.SENTENCES, OLD, *CHECKS]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = dict(zip(names, pool.map(run, names), strict=True))
    old = found.pop(OLD, [])
    wrong = [line for lines in found.values() for line in lines]
    for line in (*old, *wrong):
        print(line)
    print(f"{len(names)} checks: {len(wrong)} findings, {len(old)} old results")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
