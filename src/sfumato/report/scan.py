"""The release scan: does ``release/`` or ``public.html`` hold anything that may not leave?

Two independent checks. Contents: a release has three files and perhaps a signature that holds, and only the listed
tensors and card entries, whose texts repeat no number of ``internal/``. Rendering: each page must equal the one that is
rendered from the release alone, in text and pictures.

A scan cannot find a card or weights that were computed from private data without noise. The ledger and the audits
address that.
"""

from __future__ import annotations

import base64
import importlib.metadata
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open

from sfumato.methods.registry import load
from sfumato.release import signature
from sfumato.release.card import Card
from sfumato.report.pages import RunFolder, public_page

FILES = {"model.safetensors", "card.json", "card.html"}
_OPTIONAL = {signature.FILE}
CARD = {field.name for field in fields(Card)}
_PICTURE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]*)")
# A minus belongs to a number unless it follows a letter or digit, as in a date or in dp2-vae.
_NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
_HEADING = re.compile(r"<h[12][^>]*>([^<]*)")
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
        findings += _rendering(name, found, expected, release.card)
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
    plain, wanted = _PICTURE.sub("", found), _PICTURE.sub("", expected)
    if plain != wanted:
        place = next(
            (at for at, (one, other) in enumerate(zip(plain, wanted, strict=False)) if one != other), len(plain)
        )
        under = (_HEADING.findall(plain[:place]) or ["the page's head"])[-1]
        yield Finding(
            name, f"it is not the page that the release alone gives; it differs under “{under}”{_version(card)}"
        )
    pictures, drawings = _PICTURE.findall(found), _PICTURE.findall(expected)
    if len(pictures) != len(drawings):
        yield Finding(name, "it holds another number of pictures than the release alone gives")
    for number, (picture, again) in enumerate(zip(pictures, drawings, strict=False), start=1):
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
