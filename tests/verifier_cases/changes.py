"""Changes to a release, its ledger and its transcript, as a forger might make them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import verify_release  # type: ignore[import-not-found]

from verifier_cases.releases import made

RUNS = ("honest", "other", "seeded")
"""What ``made_runs`` trains: the run that is changed, another one, and one with a fixed seed."""

Change = Callable[[Path], object]
Entries = list[dict[str, Any]]


def made_runs(folder: Path) -> Path:
    """Train the runs that changes take parts of, and return the folder of the honest one."""
    for name in RUNS:
        made("seeded" if name == "seeded" else "dp-realnvp certified", folder / name)
    return folder / RUNS[0]


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


def taken_from(run: str, *names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            shutil.copy(folder.parent / run / name, folder / name)

    return change


def chain(entries: Entries) -> tuple[bytes, dict[str, Any]]:
    """The lines of a ledger, and its head."""
    current, written = "0" * 64, b""
    for entry in entries:
        body = json.dumps(entry, ensure_ascii=False).encode()
        current = hashlib.sha256((current + hashlib.sha256(body).hexdigest()).encode()).hexdigest()
        written += body[:-1] + f', "hash": "{current}"}}\n'.encode()
    return written, {"length": len(entries), "hash": current}


def chained_again(edit: Callable[[Entries], Entries], *, head: bool = True) -> Change:
    """Write the ledger and the transcript with other entries and right hashes, as a forger would."""

    def change(folder: Path) -> None:
        for name in ("ledger.jsonl", "transcript.jsonl"):
            lines = [verify_release.parsed(line) for line in (folder / name).read_text().splitlines()]
            for line in lines:
                line.pop("hash")
            written, last = chain(edit(lines))
            (folder / name).write_bytes(written)
            if head and name == "ledger.jsonl":
                (folder / f"{name}.head").write_text(json.dumps(last))

    return change


def drop_line(number: int, *names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names or ("ledger.jsonl", "transcript.jsonl"):
            lines = (folder / name).read_text().splitlines(keepends=True)
            del lines[number]
            (folder / name).write_text("".join(lines))

    return change


def withhold(number: int) -> Change:
    """A hash in place of a line that the transcript has to show."""

    def change(folder: Path) -> None:
        path = folder / "transcript.jsonl"
        lines = path.read_bytes().splitlines()
        body = lines[number].rpartition(b', "hash"')[0] + b"}"
        lines[number] = json.dumps({"withheld": hashlib.sha256(body).hexdigest()}).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")

    return change


def first_charge(entries: Entries) -> dict[str, Any]:
    return next(entry for entry in entries if entry["kind"] == "charge")


def less_noise_charged(entries: Entries) -> Entries:
    first_charge(entries)["event"]["blocks"][0]["noise_multiplier"] *= 2
    first_charge(entries)["event"]["noise_multiplier"] *= 2
    return entries


def without_a_charge(entries: Entries) -> Entries:
    entries.remove(first_charge(entries))
    return entries


def not_seeded(entries: Entries) -> Entries:
    return [*entries[:-1], {"kind": "seeded", "run": entries[-1]["run"], "time": "now"}, entries[-1]]


def smaller_answer_noise(entries: Entries) -> Entries:
    for entry in entries:
        for answer in entry.get("answers", ()):
            for group in answer.get("groups", ()):
                group["standard_deviation"] /= 2
    return entries


def noise_of_events(factor: float) -> Callable[[Entries], Entries]:
    def change(events: Entries) -> Entries:
        for event in events:
            event["noise_multiplier"] *= factor
            for block in event["blocks"]:
                block["noise_multiplier"] *= factor
        return events

    return change


def event_with(**changes: Any) -> Callable[[Entries], Entries]:
    return lambda events: [{**event, **changes} for event in events]


def written_anew(edit: Callable[[Entries], Entries] = lambda entries: entries) -> Change:
    """Edit the ledger of the run, and write everything that names it anew: card, hashes and head."""

    def named(folder: Path, entries: Entries) -> Entries:
        *before, end = edit(entries)
        release = folder / "release"
        weights = hashlib.sha256((release / "model.safetensors").read_bytes()).hexdigest()
        edit_card(weights=weights, ledger_head=chain(before)[1])(folder)
        files = {name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in end["files"]}
        return [*before, {**end, "files": files}]

    return lambda folder: chained_again(partial(named, folder))(folder)


def other_weights(folder: Path) -> None:
    taken_from("other", "release/model.safetensors")(folder)
    written_anew()(folder)


def answers_of(entries: Entries) -> Entries:
    return [answer for entry in entries for answer in entry.get("answers", ())]


def answered_twice(entries: Entries) -> Entries:
    answers = next(entry["answers"] for entry in entries if "answers" in entry)
    answers.append({**answers[0], "sha256": "0" * 64})
    return entries


def described_by(**values: Any) -> Callable[[Entries], Entries]:
    """Answers whose groups have these values."""

    def edit(entries: Entries) -> Entries:
        for answer in answers_of(entries):
            for group in answer.get("groups", ()):
                group.update(values)
        return entries

    return edit


def without_groups(entries: Entries) -> Entries:
    for answer in answers_of(entries):
        if "groups" in answer:
            answer["groups"] = []
    return entries


def without_answers(entries: Entries) -> Entries:
    for entry in entries:
        entry.pop("answers", None)
    return entries


def begun_twice(entries: Entries) -> Entries:
    entries.insert(2, dict(entries[1]))
    entries[-1]["entries"] += 1
    return entries


def of_an_earlier_version(folder: Path) -> None:
    """A card without the entries that bind it, as version 0.2.0 wrote it, and other weights."""
    path = folder / "release" / "card.json"
    card = json.loads(path.read_text())
    for entry in ("ledger", "lineage", "composition", "weights", "gaussian_mu"):
        card.pop(entry, None)
    path.write_text(json.dumps({**card, "paper": "another"}, indent=2, ensure_ascii=False) + "\n")
    flip_weight(folder)


def in_another_order(folder: Path) -> None:
    path = folder / "release" / "card.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps(dict(sorted(card.items())), indent=2, ensure_ascii=False) + "\n")


def promise_out_of_sight(folder: Path) -> None:
    """A page whose readers see another promise than programs do."""
    path = folder / "release" / "card.html"
    before, body, after = re.split(r"(<body.*</body>)", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", "", body)
    path.write_text(f"{before}<body>Nothing can be learnt.<template>{text}</template></body>{after}", encoding="utf-8")


def with_a_line_about_audits(folder: Path) -> None:
    """A page of which only the text is compared, since such a line is written after the release."""
    edit_card(audits=["2026: nothing found"])(folder)
    replace_text("release/card.html", "</body>", "<p>Nothing can be learnt.</p></body>")(folder)


def around_it(folder: Path) -> None:
    """Another release in the folder that holds this one."""
    for path in (folder.parent / "seeded" / "release").iterdir():
        shutil.copy(path, folder / path.name)


def certified_though_seeded(folder: Path) -> None:
    """The release of a seeded run with the honest one's promise."""
    honest = json.loads((folder / "release" / "card.json").read_text())
    taken_from("seeded", "release/model.safetensors", "release/card.json", "ledger.jsonl", "ledger.jsonl.head")(folder)
    taken_from("seeded", "transcript.jsonl")(folder)
    promise = ("guarantee", "epsilon", "delta", "sentence", "best_guess", "recognised", "reasons", "randomness")
    edit_card(**{key: honest[key] for key in promise})(folder)


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
    "card: an entry written twice": replace_text(
        "release/card.json", '"epsilon": 3.0,', '"epsilon": 0.1,\n  "epsilon": 3.0,'
    ),
    "card: entries in another order": in_another_order,
    "card: an entry that no card has": edit_card(privacy="perfect"),
    "card: a line about audits that is not text": edit_card(audits=[{"found": "nothing"}]),
    "card as of an earlier version, and weights": of_an_earlier_version,
    "ledger's id": edit_card(ledger="0" * 32),
    "hash of the weights": edit_card(weights="0" * 64),
    "weights": flip_weight,
    "weights and their hash on the card": flip_weight_and_card,
    "weights of another run": taken_from("other", "release/model.safetensors"),
    "card of another run": taken_from("other", "release/card.json"),
    "release of another run": taken_from(
        "other", "release/card.json", "release/model.safetensors", "release/card.html"
    ),
    "ledger of another run": taken_from("other", "ledger.jsonl", "ledger.jsonl.head", "transcript.jsonl"),
    "weights of a seeded run": taken_from("seeded", "release/model.safetensors"),
    "release of a seeded run, called certified": certified_though_seeded,
    "page: the sentence": replace_text("release/card.html", "changes the", "does not change the"),
    "page: the promise where nobody sees it": promise_out_of_sight,
    "page: a line more": replace_text("release/card.html", "</body>", "<p>Nothing can be learnt.</p></body>"),
    "another release in the folder above": around_it,
    "ledger: an edited line": replace_text("ledger.jsonl", '"steps": 1', '"steps": 2'),
    "ledger: the head of the file": drop_line(0),
    "ledger: a charge": drop_line(3),
    "ledger: the tail": drop_line(-1),
    "ledger chained again: more noise charged": chained_again(less_noise_charged),
    "ledger chained again: a charge less": chained_again(without_a_charge),
    "ledger chained again: seeded": chained_again(not_seeded),
    "ledger chained again: noise of the answers": chained_again(smaller_answer_noise),
    "all written anew: half the noise": written_anew(smaller_answer_noise),
    "all written anew: a negative clip": written_anew(described_by(clip_norm=-1.0, standard_deviation=0.0)),
    "all written anew: an answer of no group": written_anew(without_groups),
    "all written anew: an answer that was not charged": written_anew(answered_twice),
    "all written anew: a run begun twice": written_anew(begun_twice),
}


TRANSCRIPT: dict[str, Change] = {
    "transcript: an edited line": replace_text("transcript.jsonl", '"steps": 1', '"steps": 2'),
    "transcript: the tail": drop_line(-1, "transcript.jsonl"),
    "transcript: a charge withheld": withhold(2),
    "transcript of another run": taken_from("other", "transcript.jsonl"),
}
"""Changes to what the verifier alone is given."""

UNSEEN: dict[str, Change] = {
    "a line about audits added to the card": edit_card(audits=["2026: nothing found"]),
    "a page with a line about audits, and more": with_a_line_about_audits,
    "other weights, with card, ledger and head written anew": other_weights,
    "descriptions of answers left out, all written anew": written_anew(without_answers),
    "a file beside those of the release": lambda folder: shutil.copy(__file__, folder / "release"),
}
"""What nobody can see who is given nothing else, though the verifier notes it; a signature covers all but the last."""
