"""Changes to a release, its ledger and its transcript, and who sees them.

The custodian's check (``sfumato ledger --release``), the auditor's (``sfumato audit release``) and the verifier are
given the same folder. What the verifier is given as a transcript is changed with the ledger.
"""

from __future__ import annotations

import shutil
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


def findings(folder: Path) -> dict[str, bool]:
    """Whether each check sees something."""
    try:
        custodian = bool(problems(release_folder(folder), Ledger.read(folder / "ledger.jsonl")))
    except (LedgerDamaged, DamagedRelease, ValueError, KeyError):
        custodian = True
    by_ledger = verify_release.verify(folder, ledger=folder / "ledger.jsonl")["status"] == 1
    by_transcript = verify_release.verify(folder, transcript=folder / "transcript.jsonl")["status"] == 1
    return {"custodian": custodian, "verifier, ledger": by_ledger, "verifier, transcript": by_transcript}


def unlike(honest: Path, place: Path, changes: dict[str, Change], seen: bool, *, by: set[str]) -> dict[str, object]:
    """The changes that not all of these checks see, or that one of them sees where none should."""
    folder, wrong = place / "copy" / honest.name, {}
    for name, change in changes.items():
        shutil.copytree(honest.parent, folder.parent)
        change(folder)
        found = findings(folder)
        if name == "ledger: an edited line":
            found["verifier, transcript"] = True  # which was not edited
        if any(found[one] != seen for one in by):
            wrong[name] = found
        shutil.rmtree(folder.parent)
    return wrong


ALL = {"custodian", "verifier, ledger", "verifier, transcript"}


def test_what_was_changed_is_seen(honest: Path, tmp_path: Path) -> None:
    assert unlike(honest, tmp_path, SEEN, True, by=ALL) == {}


def test_a_changed_transcript_is_seen(honest: Path, tmp_path: Path) -> None:
    assert unlike(honest, tmp_path, TRANSCRIPT, True, by={"verifier, transcript"}) == {}


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
    assert unlike(honest, tmp_path, {"nothing": lambda folder: None, **UNSEEN}, False, by=ALL) == {}
