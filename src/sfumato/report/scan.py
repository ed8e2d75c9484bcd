"""The release scan: does ``release/`` or ``public.html`` hold anything that may not leave?

Three independent checks. Contents: a release has three files and perhaps a signature that holds, and only the listed
tensors and card entries. Rendering: each page must equal the one that is rendered from the release alone, in text and
pictures, which finds a page that was edited. Provenance: each number on a page must come from the card, which finds
code that renders too much; a number that is also in ``internal/`` is reported as such.

A scan cannot find a card or weights that were computed from private data without noise. The ledger and the audits
address that.
"""

from __future__ import annotations

import base64
import importlib.metadata
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open

from sfumato.methods.registry import load
from sfumato.release import signature
from sfumato.release.card import FALSE_ALARMS, Card
from sfumato.release.plain_numbers import factor_text, guesses_text, of_hundred, one_in_text, percent
from sfumato.report.pages import RunFolder, public_page, recognised

FILES = {"model.safetensors", "card.json", "card.html"}
_OPTIONAL = {signature.FILE}
CARD = {field.name for field in fields(Card)}
_PICTURE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]*)")
# A minus belongs to a number unless it follows a letter or digit, as in a date or in dp2-vae.
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
# A hundred dots, guesses by chance, the rates of false alarms and the number of NIST's publication are on the pages.
_FIXED = {"50", "100", "800", "226", *(str(number) for number in (1, *FALSE_ALARMS))}
# Draws on another processor may differ in the last bit; another picture differs by far more than a grey level.
_TOLERANCE = 1.0


@dataclass(frozen=True)
class Finding:
    """Something that may not leave: the file and the reason, without the value itself."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def scan(path: str | Path, *, page: str | None = None, allow_custom: bool = False) -> list[Finding]:
    """All findings of a run's release and its ``public.html``; ``page`` replaces one that is not yet written."""
    run = RunFolder(Path(path))
    entries = run.card_entries()
    secrets = {name: list(_leaves(note)) for name, note in run.notes().items()}
    findings = [*_files(run.release), *_card(entries, secrets)]
    if findings:
        # A page rendered from such a release would only repeat what is wrong with it.
        return findings
    release = load(run.release, allow_custom=allow_custom)
    pages = {"release/card.html": ((run.release / "card.html").read_text(), release.page())}
    written = run.path / "public.html"
    if page is None and written.is_file() and run.release != run.path:
        page = written.read_text()
    if page is not None:
        pages["public.html"] = (page, public_page(release))
    for name, (found, expected) in pages.items():
        findings += [*_rendering(name, found, expected, release.card), *_numbers(name, found, release.card, secrets)]
    return findings


# Contents


def _files(folder: Path) -> Iterator[Finding]:
    for path in sorted(folder.iterdir()):
        if path.name not in FILES | _OPTIONAL:
            yield Finding("release/", f"{path.name} is not part of a release")
        elif path.is_symlink() or not path.is_file():
            yield Finding("release/", f"{path.name} is not a plain file")
    for name in sorted(FILES - {path.name for path in folder.iterdir()}):
        yield Finding("release/", f"{name} is missing")
    try:
        signature.verify(folder)
    except signature.BadSignature as error:
        yield Finding(f"release/{signature.FILE}", str(error))
    if (folder / "model.safetensors").is_file():
        with safe_open(folder / "model.safetensors", framework="np") as file:
            if set(file.metadata() or {}) - {"sentence"}:
                yield Finding("release/model.safetensors", "its header holds more than the card's sentence")


def _card(card: dict[str, Any], secrets: dict[str, list[tuple[str, Any]]]) -> Iterator[Finding]:
    for key in sorted(set(card) - CARD):
        yield Finding("release/card.json", f"the entry {key!r} is not one that a card has")
    counts = card.get("class_counts")
    if counts is not None and len(counts) > 3 and all(float(value).is_integer() for value in counts):
        yield Finding("release/card.json", "class_counts are whole numbers, as true counts are and noisy ones are not")
    told = ("sentence", "public", "audits", "reasons", "remarks", "notes")
    words = {key: json.dumps(card.get(key), ensure_ascii=False) for key in told}
    for key, text in words.items():
        tokens = set(_NUMBER.findall(text))
        for file, leaves in secrets.items():
            for place, value in leaves:
                if isinstance(value, float) and _distinct(value) & tokens:
                    yield Finding("release/card.json", f"{key!r} holds a number of internal/{file}, {place}")


# Rendering


def _rendering(name: str, found: str, expected: str, card: Card) -> Iterator[Finding]:
    if _PICTURE.sub("", found) != _PICTURE.sub("", expected):
        extra = Counter(_words(found)) - Counter(_words(expected))
        under = next((heading for heading, _ in extra), "markup")
        yield Finding(
            name, f"it is not the page that the release alone gives; it differs under “{under}”{_version(card)}"
        )
    pictures, wanted = _PICTURE.findall(found), _PICTURE.findall(expected)
    if len(pictures) != len(wanted):
        yield Finding(name, "it holds another number of pictures than the release alone gives")
    for number, (picture, again) in enumerate(zip(pictures, wanted, strict=False), start=1):
        data = base64.b64decode(picture)
        if not set(_chunks(data)) <= _CHUNKS:
            yield Finding(name, f"picture {number} carries more than pixels")
        shown, drawn = (
            np.asarray(Image.open(io.BytesIO(part)), np.float32) for part in (data, base64.b64decode(again))
        )
        if shown.shape != drawn.shape or np.abs(shown - drawn).mean() > _TOLERANCE:
            yield Finding(name, f"picture {number} is not one that the release draws")


def _version(card: Card) -> str:
    made, here = card.versions["sfumato"], importlib.metadata.version("sfumato")
    return "" if made == here else f" (it was made by sfumato {made}; this is {here}, which may draw it differently)"


def _chunks(png: bytes) -> Iterator[bytes]:
    place = 8
    while place + 8 <= len(png):
        yield png[place + 4 : place + 8]
        place += 12 + int.from_bytes(png[place : place + 4], "big")
    if place != len(png):
        yield b"tail"


# Provenance


def _numbers(name: str, page: str, card: Card, secrets: dict[str, list[tuple[str, Any]]]) -> Iterator[Finding]:
    allowed = _FIXED | _of_card(card)
    known = sorted((text for text in _texts(card.to_json()) if len(text) > 7), key=len, reverse=True)
    for heading, text in _words(page):
        for string in known:
            text = text.replace(string, " ")
        for token in _NUMBER.findall(text):
            if token in allowed:
                continue
            origin = next(
                (f"internal/{file}, {place}" for file, found in secrets.items() for place, v in found if _is(v, token)),
                None,
            )
            told = "does not come from the card" if origin is None else f"stands in {origin}"
            yield Finding(name, f"a number under “{heading}” {told}")


class _Reader(HTMLParser):
    """Everything a reader or a program could read on a page, under its heading; pictures and geometry apart."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._heading, self._tag = "the page's head", ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        names = ("alt", "title", "aria-label", "content", "href")
        self.found += [
            (self._heading, value)
            for key, value in attributes
            if value and tag != "meta" and (key in names or key.startswith("data-"))
        ]

    def handle_data(self, data: str) -> None:
        if self._tag == "style":
            return
        if self._tag in ("h1", "h2"):
            self._heading = data
        self.found.append((self._heading, data))

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_comment(self, data: str) -> None:
        self.found.append((self._heading, data))


def _words(page: str) -> list[tuple[str, str]]:
    reader = _Reader()
    reader.feed(_PICTURE.sub("", page))
    reader.close()
    return reader.found


def _texts(value: Any) -> Iterator[str]:
    yield from (leaf for _, leaf in _leaves(value) if isinstance(leaf, str))


def _of_card(card: Card) -> set[str]:
    """Every number of the card in every form that a page prints it."""
    found: set[str] = set()
    for _, value in _leaves(card.to_json()):
        if isinstance(value, str):
            found |= set(_NUMBER.findall(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found |= {str(value), f"{value:g}", f"{value:.4g}"}
    if card.certified:
        for share in (card.best_guess, *(share for _, share in recognised(card))):
            found |= set(_NUMBER.findall(percent(share)))
        found |= {f"{100 * card.best_guess:.1f}", str(of_hundred(card.best_guess))}
        found |= _plain_numbers(card)
    return found


def _plain_numbers(card: Card) -> set[str]:
    if card.epsilon is None or card.delta is None:
        return set()
    told = guesses_text(card.epsilon, card.delta, card.unit)
    return set(_NUMBER.findall(f"{factor_text(card.epsilon)} {one_in_text(card.delta)} {told}"))


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{place}[{number}]")
    else:
        yield place, value


def _distinct(value: float) -> set[str]:
    """Forms with at least four digits, of a value that has three itself: 1.0000 and 0.56 are met by chance."""
    if len(repr(value).partition("e")[0].replace(".", "").strip("-0")) < 3:
        return set()
    forms = {repr(value), f"{value:.4g}", f"{value:.4f}", f"{100 * value:.2f}"}
    return {form for form in forms if sum(character.isdigit() for character in form.lstrip("0.")) > 3}


def _is(value: Any, token: str) -> bool:
    """Whether the token is this number, as it is, rounded, or in per cent."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    plain = token.replace(",", "")
    digits = len(plain.partition(".")[2])
    return plain in {str(value), f"{value:g}", f"{value:.{digits}f}", f"{100 * value:.{digits}f}"}
