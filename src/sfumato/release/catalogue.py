"""Metadata for data catalogues: a dataset card in the form of Hugging Face, and Croissant."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sfumato.files import json_text
from sfumato.release.card import Card
from sfumato.release.synthetic import SyntheticImages

README, CROISSANT = "README.md", "croissant.json"
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "recordSet": "cr:recordSet",
    "regex": "cr:regex",
    "source": "cr:source",
    "transform": "cr:transform",
}
_SIZES = ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_catalogue(folder: Path, synthetic: SyntheticImages) -> None:
    """Write ``README.md`` and ``croissant.json`` beside the images in ``folder``."""
    (folder / README).write_text(dataset_card(synthetic), encoding="utf-8")
    (folder / CROISSANT).write_text(json_text(croissant(folder, synthetic)), encoding="utf-8")


def dataset_card(synthetic: SyntheticImages) -> str:
    """The dataset card: front matter that Hugging Face reads, then the guarantee in words."""
    card, count = synthetic.card, len(synthetic.labels)
    size = next((name for limit, name in _SIZES if count < limit), "n>1M")
    front = [
        "---",
        f"pretty_name: {json.dumps(_title(card))}",
        "task_categories:",
        "- image-classification",
        "size_categories:",
        f"- {size}",
        "tags:",
        "- synthetic",
        f"- {'differential-privacy' if card.certified else 'no-privacy-guarantee'}",
        f"- {card.method}",
        "---",
    ]
    notes = [f"- {name}: {text}" for name, text in card.notes.items()]
    remarks = [f"- {remark}" for remark in card.remarks]
    parts = [
        "\n".join(front),
        f"# {_title(card)}",
        card.sentence,
        f"{count:,} images of {_size(card)} in {len(card.classes)} classes, drawn from a generator that was trained by "
        f"{card.method} ({card.paper}). None of them is a photograph of anyone. `card.json` states how the guarantee "
        "follows from what was computed from the collection.",
        *(["## Stated by the custodian", "\n".join(notes)] if notes else []),
        *(["## What the images are good for", "\n".join(remarks)] if remarks else []),
        "## What is not covered",
        "What is true of the population as a whole; groups of several at a time; what the card treats as public.",
    ]
    return "\n\n".join(parts) + "\n"


def croissant(folder: Path, synthetic: SyntheticImages) -> dict[str, Any]:
    """The metadata in the Croissant format, version 1.1, of the images that ``folder`` holds."""
    card = synthetic.card
    found: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": f"synthetic-{card.method}-{card.run[:8]}".replace(":", "-"),
        "description": f"{_title(card)}. {card.sentence}",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "version": "1.0.0",
        "dateCreated": card.made,
        "datePublished": card.made[:10],
        "creator": {"@type": "sc:SoftwareApplication", "name": "sfumato", "softwareVersion": card.versions["sfumato"]},
        "keywords": ["synthetic images", "differential privacy" if card.certified else "no privacy guarantee"],
        "rai:personalSensitiveInformation": card.sentence,
        "prov:wasDerivedFrom": _private_collection(card),
        "prov:wasGeneratedBy": _training(card),
    }
    if contact := card.notes.get("contact"):
        found["publisher"] = {"@type": "sc:Organization", "name": card.notes.get("controller", contact)}
    if (folder / "images.parquet").exists():
        table = _file(folder, "images.parquet", "application/x-parquet")
        fields = [_column("image", "sc:ImageObject", table), _column("label", "sc:Integer", table)]
        return {**found, "distribution": [table], "recordSet": [_records(fields)]}
    if (folder / "images.npz").exists():
        return {**found, "distribution": [_file(folder, "images.npz", "application/zip")]}
    files = {"@type": "cr:FileSet", "@id": "images", "name": "images", "encodingFormat": "image/png"}
    files["includes"] = "images/*/*.png"
    fields = [_of_file("image", "sc:ImageObject", {"fileProperty": "content"}), _of_path("label")]
    return {**found, "distribution": [files], "recordSet": [_records(fields)]}


def _private_collection(card: Card) -> dict[str, Any]:
    label = f"a private collection, by the {card.unit}, which is not published; also {'; '.join(card.public)}"
    return {"@type": "prov:Entity", "prov:label": label}


def _training(card: Card) -> dict[str, Any]:
    """What the images came out of: a run of a ledger, whose transcript can be published."""
    software = {"@type": "prov:SoftwareAgent", "prov:label": f"sfumato {card.versions['sfumato']}"}
    return {
        "@type": "prov:Activity",
        "@id": f"run/{card.run}",
        "prov:label": f"training by {card.method}, variant {card.variant}: run {card.run} of ledger {card.ledger}",
        "prov:endedAtTime": card.made,
        "prov:wasAssociatedWith": software,
    }


def _file(folder: Path, name: str, kind: str) -> dict[str, Any]:
    content = (folder / name).read_bytes()
    facts = {"contentUrl": name, "contentSize": f"{len(content)} B", "encodingFormat": kind}
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        **facts,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _column(name: str, kind: str, table: dict[str, Any]) -> dict[str, Any]:
    source = {"fileObject": {"@id": table["@id"]}, "extract": {"column": name}}
    return {"@type": "cr:Field", "@id": f"records/{name}", "name": name, "dataType": kind, "source": source}


def _of_file(name: str, kind: str, extract: dict[str, str], **more: Any) -> dict[str, Any]:
    source = {"fileSet": {"@id": "images"}, "extract": extract, **more}
    return {"@type": "cr:Field", "@id": f"records/{name}", "name": name, "dataType": kind, "source": source}


def _of_path(name: str) -> dict[str, Any]:
    """The label is the name of the folder that holds the file."""
    return _of_file(name, "sc:Text", {"fileProperty": "fullpath"}, transform={"regex": "([^/]+)/[^/]+\\.png$"})


def _records(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}


def _title(card: Card) -> str:
    if not card.certified or card.epsilon is None:
        return "Synthetic images without a privacy guarantee"
    return f"Synthetic images with a differential privacy guarantee of ε = {card.epsilon:g}"


def _size(card: Card) -> str:
    channels, height, width = card.shape
    return f"{width}×{height} {'grey' if channels == 1 else 'colour'} pixels"
