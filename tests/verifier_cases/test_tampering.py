"""Changes to a release, its ledger and its transcript, and who sees them.

The custodian's check (``sfumato ledger --release``), the auditor's (``sfumato audit release``) and the verifier are
given the same folder. What the verifier is given as a transcript is changed with the ledger.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import verify_release  # type: ignore[import-not-found]

from sfumato.privacy import Ledger, LedgerDamaged
from sfumato.release.release import DamagedRelease
from sfumato.release.verification import problems
from sfumato.training.run import release_folder
from verifier_cases.changes import SEEN, TRANSCRIPT, UNSEEN, Change, made_runs
from verifier_cases.releases import made


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_runs(tmp_path_factory.mktemp("runs"))


def custodian(folder: Path) -> bool:
    """Whether ``sfumato ledger --release`` and ``sfumato audit release`` see something."""
    try:
        return bool(problems(release_folder(folder), Ledger.read(folder / "ledger.jsonl")))
    except (LedgerDamaged, DamagedRelease, ValueError, KeyError):
        return True


def verifier(folder: Path, **given: Path) -> bool:
    return bool(verify_release.verify(folder, **given)["status"] == 1)


CHECKS: dict[str, Callable[[Path], bool]] = {
    "custodian": custodian,
    "verifier, ledger": lambda folder: verifier(folder, ledger=folder / "ledger.jsonl"),
    "verifier, transcript": lambda folder: verifier(folder, transcript=folder / "transcript.jsonl"),
}


@pytest.fixture(autouse=True)
def same_sums_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most changes leave the events as they are, whose numeric bound takes longest."""
    found: dict[str, tuple[float, float]] = {}
    numeric_delta = verify_release.numeric_delta

    def kept(*given: object) -> tuple[float, float]:
        key = json.dumps(given)
        if key not in found:
            found[key] = numeric_delta(*given)
        return found[key]

    monkeypatch.setattr(verify_release, "numeric_delta", kept)


def unlike(
    honest: Path, place: Path, changes: dict[str, Change], seen: bool, *, by: Collection[str] = CHECKS
) -> list[tuple[str, str]]:
    """Changes with a check that does not see them, or that sees them where it should not."""
    folder, wrong = place / "copy" / honest.name, []
    for name, change in changes.items():
        shutil.copytree(honest.parent, folder.parent)
        change(folder)
        wrong += [
            (name, check)
            for check in by
            # Of an edited ledger the transcript was not edited.
            if (name, check) != ("ledger: an edited line", "verifier, transcript") and CHECKS[check](folder) != seen
        ]
        shutil.rmtree(folder.parent)
    return wrong


def test_what_was_changed_is_seen(honest: Path, tmp_path: Path) -> None:
    assert unlike(honest, tmp_path, SEEN, True) == []


def test_a_changed_transcript_is_seen(honest: Path, tmp_path: Path) -> None:
    assert unlike(honest, tmp_path, TRANSCRIPT, True, by=["verifier, transcript"]) == []


def test_what_is_not_bound_is_noted(honest: Path, tmp_path: Path) -> None:
    """A line about audits, a missing description, a file that no card speaks of, and a ledger without its head."""
    folder = tmp_path / "copy" / honest.name
    shutil.copytree(honest.parent, folder.parent)
    UNSEEN["a page with a line about audits, and more"](folder)
    UNSEEN["a file beside those of the release"](folder)
    (folder / "ledger.jsonl.head").unlink()
    found = verify_release.verify(folder, ledger=folder / "ledger.jsonl")
    assert found["status"] == 0
    for words in ("nothing vouches for changes.py", "without ledger.jsonl.head", "lines about audits were added"):
        assert any(words in note for note in found["notes"]), words


def test_a_transcript_is_no_ledger(tmp_path: Path) -> None:
    """With lines of another run withheld, what the collection has spent cannot be known."""
    folder = made("second run on the ledger", tmp_path / "run")
    found = verify_release.verify(folder, ledger=folder / "transcript.jsonl")
    assert found["status"] == 1 and "lines are withheld" in found["verdict"]


def test_what_only_a_signature_covers_is_not_seen(honest: Path, tmp_path: Path) -> None:
    """And the honest release agrees."""
    assert unlike(honest, tmp_path, {"nothing": lambda folder: None, **UNSEEN}, False) == []
