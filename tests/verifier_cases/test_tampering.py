"""Changes to a release, its ledger and its transcript, and who sees them.

The custodian's check (``sfumato ledger --release``), the auditor's (``sfumato audit release``) and the verifier are
given the same folder. What the verifier is given as a transcript is changed with the ledger.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verify_release  # type: ignore[import-not-found]

from sfumato.privacy import Ledger, LedgerDamaged
from sfumato.release.release import DamagedRelease
from sfumato.release.verification import problems
from verifier_cases.releases import made

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made("dp-realnvp certified", tmp_path_factory.mktemp("honest") / "run")
    made("dp-realnvp certified", folder.parent / "other")
    return folder


def edit_card(**entries: Any) -> Change:
    """Set entries of the card; a function gets the entry as it was."""

    def change(folder: Path) -> None:
        path = folder / "release" / "card.json"
        card = json.loads(path.read_text())
        for key, value in entries.items():
            card[key] = value(card[key]) if callable(value) else value
        path.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")

    return change


def replace_text(name: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def flip_weight(folder: Path) -> None:
    path = folder / "release" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(bytes(content))


def flip_weight_and_card(folder: Path) -> None:
    flip_weight(folder)
    weights = hashlib.sha256((folder / "release" / "model.safetensors").read_bytes()).hexdigest()
    edit_card(weights=weights)(folder)


def from_other(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            shutil.copy(folder.parent / "other" / name, folder / name)

    return change


def chained_again(edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], *, head: bool = True) -> Change:
    """Write the ledger and the transcript with other entries and right hashes, as a forger would."""

    def change(folder: Path) -> None:
        for name in ("ledger.jsonl", "transcript.jsonl"):
            lines = [verify_release.parsed(line) for line in (folder / name).read_text().splitlines()]
            for line in lines:
                line.pop("hash")
            current, written = "0" * 64, []
            for entry in edit(lines):
                body = json.dumps(entry, ensure_ascii=False).encode()
                current = hashlib.sha256((current + hashlib.sha256(body).hexdigest()).encode()).hexdigest()
                written.append(body[:-1] + f', "hash": "{current}"}}'.encode())
            (folder / name).write_bytes(b"\n".join(written) + b"\n")
            if head and name == "ledger.jsonl":
                content = json.dumps({"length": len(written), "hash": current})
                (folder / f"{name}.head").write_text(content)

    return change


def drop_line(number: int) -> Change:
    def change(folder: Path) -> None:
        for name in ("ledger.jsonl", "transcript.jsonl"):
            lines = (folder / name).read_text().splitlines(keepends=True)
            del lines[number]
            (folder / name).write_text("".join(lines))

    return change


def first_charge(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return next(entry for entry in entries if entry["kind"] == "charge")


def less_noise_charged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first_charge(entries)["event"]["blocks"][0]["noise_multiplier"] *= 2
    first_charge(entries)["event"]["noise_multiplier"] *= 2
    return entries


def without_a_charge(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    entries.remove(first_charge(entries))
    return entries


def not_seeded(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*entries[:-1], {"kind": "seeded", "run": entries[-1]["run"], "time": "now"}, entries[-1]]


def smaller_answer_noise(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for entry in entries:
        for answer in entry.get("answers", ()):
            for group in answer.get("groups", ()):
                group["standard_deviation"] /= 2
    return entries


def noise_of_events(factor: float) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for event in events:
            event["noise_multiplier"] *= factor
            for block in event["blocks"]:
                block["noise_multiplier"] *= factor
        return events

    return change


def event_with(**changes: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda events: [{**event, **changes} for event in events]


SEEN: dict[str, Change] = {
    "epsilon": edit_card(epsilon=0.5),
    "epsilon, larger": edit_card(epsilon=4.0),
    "epsilon, by a thousandth": edit_card(epsilon=lambda value: value * 0.999),
    "delta": edit_card(delta=1e-7),
    "unit": edit_card(unit="person"),
    "guarantee": edit_card(guarantee="no guarantee", epsilon=None, delta=None),
    "relation": edit_card(relation="add, remove or replace one unit"),
    "sentence": edit_card(sentence="Nothing can be learnt about anyone from these images."),
    "factor in the sentence": edit_card(sentence=lambda text: text.replace("which is", "which is 1.01, not", 1)),
    "best guess": edit_card(best_guess=0.51),
    "recognised": edit_card(recognised={"1000": 0.001, "100": 0.01, "10": 0.1}),
    "reasons": edit_card(reasons=["it was audited"]),
    "collection epsilon": edit_card(collection_epsilon=0.1),
    "method": edit_card(method="dp-vae"),
    "variant": edit_card(variant="other"),
    "paper": edit_card(paper="another paper"),
    "parameters": edit_card(parameters=lambda value: {**value, "learning_rate": 0.5}),
    "events: none": edit_card(events=[]),
    "events: more noise": edit_card(events=noise_of_events(1.5)),
    "events: fewer steps": edit_card(events=event_with(steps=1)),
    "events: smaller rate": edit_card(events=event_with(rate=0.01)),
    "events: scheme": edit_card(events=event_with(scheme="all")),
    "events: sensitivity": edit_card(events=event_with(sensitivity=0.5)),
    "events: shards": edit_card(events=event_with(shards=4)),
    "sampler": edit_card(sampler="shuffled batches"),
    "accountant": edit_card(accountant="another accountant"),
    "randomness": edit_card(randomness="good randomness"),
    "public facts": edit_card(public=[]),
    "class counts": edit_card(class_counts=[1.0, 2.0, 3.0, 4.0]),
    "claim": edit_card(claim={"epsilon": 0.1, "delta": 1e-5, "by": "us"}),
    "head: length": edit_card(ledger_head=lambda head: {**head, "length": 1}),
    "head: hash": edit_card(ledger_head=lambda head: {"length": 0, "hash": "0" * 64}),
    "run": edit_card(run="0" * 32),
    "made": edit_card(made="2020-01-01T00:00:00+00:00"),
    "command": edit_card(command="sfumato train DATA"),
    "notes": edit_card(notes={"purpose": "anything"}),
    "lineage": edit_card(lineage=["0" * 32]),
    "composition": edit_card(composition={"rule": "renyi filter", "order": 2}),
    "ledger's id": edit_card(ledger="0" * 32),
    "hash of the weights": edit_card(weights="0" * 64),
    "weights": flip_weight,
    "weights and their hash on the card": flip_weight_and_card,
    "weights of another run": from_other("release/model.safetensors"),
    "card of another run": from_other("release/card.json"),
    "release of another run": from_other("release/card.json", "release/model.safetensors", "release/card.html"),
    "ledger of another run": from_other("ledger.jsonl", "ledger.jsonl.head", "transcript.jsonl"),
    "page: the sentence": replace_text("release/card.html", "changes the", "does not change the"),
    "ledger: an edited line": replace_text("ledger.jsonl", '"steps": 1', '"steps": 2'),
    "ledger: the head of the file": drop_line(0),
    "ledger: a charge": drop_line(3),
    "ledger: the tail": drop_line(-1),
    "ledger chained again: more noise charged": chained_again(less_noise_charged),
    "ledger chained again: a charge less": chained_again(without_a_charge),
    "ledger chained again: seeded": chained_again(not_seeded),
    "ledger chained again: noise of the answers": chained_again(smaller_answer_noise),
}

UNSEEN = "a line about audits is added"


def findings(folder: Path) -> dict[str, bool]:
    """Whether each check sees something."""
    try:
        custodian = bool(problems(folder / "release", Ledger.read(folder / "ledger.jsonl")))
    except (LedgerDamaged, DamagedRelease, ValueError, KeyError):
        custodian = True
    by_ledger = verify_release.verify(folder, ledger=folder / "ledger.jsonl")["status"] == 1
    by_transcript = verify_release.verify(folder, transcript=folder / "transcript.jsonl")["status"] == 1
    return {"custodian": custodian, "verifier, ledger": by_ledger, "verifier, transcript": by_transcript}


def test_what_was_changed_is_seen(honest: Path, tmp_path: Path) -> None:
    folder, unseen = tmp_path / "copy" / honest.name, {}
    for name, change in SEEN.items():
        shutil.copytree(honest.parent, folder.parent)
        change(folder)
        found = findings(folder)
        if name == "ledger: an edited line":
            found.pop("verifier, transcript")  # which was not edited
        if not all(found.values()):
            unseen[name] = found
        shutil.rmtree(folder.parent)
    assert unseen == {}


def test_what_was_not_changed_is_not_seen(honest: Path, tmp_path: Path) -> None:
    shutil.copytree(honest.parent, tmp_path / "copy")
    folder = tmp_path / "copy" / honest.name
    assert not any(findings(folder).values())
    edit_card(audits=["2026: nothing found"])(folder)
    assert not any(findings(folder).values()), "audits are added after the release"


def test_a_transcript_cannot_leave_a_line_of_its_run_out(honest: Path, tmp_path: Path) -> None:
    lines = (honest / "transcript.jsonl").read_bytes().splitlines()
    body = lines[2].rpartition(b', "hash"')[0] + b"}"
    lines[2] = json.dumps({"withheld": hashlib.sha256(body).hexdigest()}).encode()
    (tmp_path / "t").write_bytes(b"\n".join(lines) + b"\n")
    found = verify_release.verify(honest, transcript=tmp_path / "t")
    assert found["status"] == 1 and "has others" in found["verdict"], found
