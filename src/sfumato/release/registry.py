"""A release as an entry of the DP Deployments Registry (OpenDP, schema of November 2025), and by the layers of NIST."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.files import json_text
from sfumato.privacy.events import PrivateSelection, Relation, SubsampledGaussian
from sfumato.release.card import Card
from sfumato.release.synthetic import SyntheticImages

TEXT = "text"
Field = str | tuple[str, ...] | Mapping[str, Any]

FIELDS: dict[str, Any] = {
    "url_slug": TEXT,
    "status": ("Draft", "Approved"),
    "tier": 3,
    "basic": {
        "name": TEXT,
        "data_curators": [TEXT],
        "description": TEXT,
        "intended_use": TEXT,
        "data_product_type": (
            "Summary statistics",
            "Machine learning model",
            "Dataset",
            "Synthetic data",
            "Interactive API",
            "SQL queries",
        ),
        "data_product_region": TEXT,
        "publication_date": TEXT,
        "data_product_sector": TEXT,
    },
    "dp_variant": {
        "variant_name": ("Pure", "Approximate", "Zero-concentrated", "Renyi", "Custom"),
        "data_domain": TEXT,
        "unprotected_quantities": TEXT,
    },
    "privacy_loss": {
        "privacy_unit": TEXT,
        "privacy_unit_details": TEXT,
        "privacy_parameters": {"epsilon": 0.0, "delta": 0.0},
        "privacy_parameters_details": TEXT,
    },
    "deployment_model": {
        "model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
        "actors": TEXT,
        "release_type": ("One release", "Many releases"),
        "data_source_type": ("Static", "Dynamic"),
        "access_type": ("Interactive", "Non-interactive"),
    },
    "accounting": {"post_processing": TEXT, "composition": TEXT},
    "implementation": {"preprocessing_and_hyperparameter_tuning": TEXT, "mechanisms": TEXT, "justification": TEXT},
    "administrative": {"notes": TEXT, "registry_authors": [TEXT]},
}
"""The fields of a tier-3 entry that are written here: a text, one of several texts, a number, a list, or a group.

The registry allows no others; of its optional ones, those that a release says nothing about are left out.
"""


@dataclass(frozen=True)
class Stated:
    """What no ledger knows, and the curator states."""

    curator: str
    region: str
    sector: str
    intended_use: str
    justification: str


def registry_entry(card: Card, stated: Stated) -> dict[str, Any]:
    """The entry of a certified release."""
    if not card.certified or card.epsilon is None or card.delta is None:
        raise ValueError("the registry is for releases with a guarantee, and this one has none")
    channels, height, width = card.shape
    size = f"{width}×{height}"
    kind = "grey" if channels == 1 else "colour"
    entry = {
        "url_slug": f"sfumato-{card.method.replace(':', '-')}-{card.run[:8]}",
        "status": "Draft",
        "tier": 3,
        "basic": {
            "name": f"Synthetic images by {card.method}",
            "data_curators": [stated.curator],
            "description": f"A generator of {size} {kind} images in {len(card.classes)} classes. {card.sentence}",
            "intended_use": stated.intended_use,
            "data_product_type": "Synthetic data",
            "data_product_region": stated.region,
            "publication_date": card.made[:10],
            "data_product_sector": stated.sector,
        },
        "dp_variant": {
            "variant_name": "Approximate",
            "data_domain": f"collections of labelled images, {size} pixels",
            "unprotected_quantities": "; ".join(card.public),
        },
        "privacy_loss": {
            "privacy_unit": card.unit,
            "privacy_unit_details": f"neighbours: {card.relation}",
            "privacy_parameters": {"epsilon": card.epsilon, "delta": card.delta},
            "privacy_parameters_details": f"accountant: {card.accountant}",
        },
        "deployment_model": {
            "model_name": "Central",
            "actors": f"{stated.curator} holds the collection, trains and publishes",
            "release_type": "One release" if card.collection_epsilon == card.epsilon else "Many releases",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Images are drawn from the published generator, which costs nothing.",
            "composition": _composition(card),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _tuning(card),
            "mechanisms": "; ".join(map(_mechanism, card.accounted)),
            "justification": stated.justification,
        },
        "administrative": {
            "notes": f"Run {card.run} of ledger {card.ledger}, sfumato {card.versions['sfumato']}.",
            "registry_authors": [stated.curator],
        },
    }
    check_entry(entry)
    return entry


def check_entry(entry: Any, allowed: Any = FIELDS, place: str = "entry") -> None:
    """Refuse a missing, unknown or empty field, and a value that is not one of its choices."""
    if isinstance(allowed, dict):
        if not isinstance(entry, dict) or set(entry) != set(allowed):
            raise ValueError(f"{place}: the fields must be {', '.join(allowed)}")
        for name, inner in allowed.items():
            check_entry(entry[name], inner, f"{place}.{name}")
    elif isinstance(allowed, list):
        if not isinstance(entry, list) or not entry:
            raise ValueError(f"{place}: at least one is needed")
        for one in entry:
            check_entry(one, allowed[0], place)
    elif isinstance(allowed, tuple):
        if entry not in allowed:
            raise ValueError(f"{place}: {entry!r} is none of {', '.join(allowed)}")
    elif isinstance(allowed, int | float):
        if not isinstance(entry, int | float) or not (entry == allowed or isinstance(allowed, float)):
            raise ValueError(f"{place}: {entry!r} is not a number that fits")
    elif not isinstance(entry, str) or not entry.strip():
        raise ValueError(f"{place}: a text is needed")


def yaml_text(value: Any, indent: int = 0) -> str:
    """An entry as YAML; texts are quoted as JSON quotes them, which YAML reads."""
    lines = []
    for name, inner in value.items():
        if isinstance(inner, dict):
            lines.append(f"{' ' * indent}{name}:\n{yaml_text(inner, indent + 2)}")
        elif isinstance(inner, list):
            items = "".join(f"{' ' * indent}  - {json.dumps(one, ensure_ascii=False)}\n" for one in inner)
            lines.append(f"{' ' * indent}{name}:\n{items}")
        else:
            # YAML 1.1 takes 1e-05 for a text: a number needs a point.
            number = isinstance(inner, float)
            told = f"{inner:.17f}".rstrip("0").rstrip(".") if number else json.dumps(inner, ensure_ascii=False)
            lines.append(f"{' ' * indent}{name}: {told}\n")
    return "".join(lines)


def nist_layers(card: Card) -> dict[str, str]:
    """The layers of NIST SP 800-226, from the top of its pyramid down, and what the release says about each."""
    promise = f"ε = {card.epsilon:g} at δ = {card.delta:g}, per {card.unit}" if card.certified else "no guarantee"
    above = card.certified and (card.epsilon or 0) > 10
    weak = "; above ε = 10, which may give no meaningful protection" if above else ""
    return {
        "privacy parameters and unit": promise + weak,
        "algorithm": f"{card.method}; {'; '.join(map(_mechanism, card.accounted))}; neighbours: {card.relation}",
        "utility and bias": next((one for one in card.remarks if one.startswith("Measured")), "not covered"),
        "trust model": "central: the custodian sees the collection and is trusted with it",
        "implementation and side channels": f"{card.randomness}; timing and memory are not covered",
        "access control": "not covered: who may train is the custodian's affair; the ledger has one limit for all",
        "data collection": "not covered",
    }


def _mechanism(event: Any) -> str:
    if isinstance(event, PrivateSelection):
        return f"the best of a random number of trials among {len(event.candidates)} candidates"
    if not isinstance(event, SubsampledGaussian):
        return "access to the raw records"
    units = "units" if event.relation is Relation.ADD_OR_REMOVE else f"{event.shards} shards"
    batch = f"all {units}" if event.sampling_rate == 1 else f"{units} sampled with probability {event.sampling_rate:g}"
    return f"{event.name}: {event.steps} × Gaussian noise {event.noise_multiplier:.4g} on clipped sums over {batch}"


def _composition(card: Card) -> str:
    rule = card.composition or {}
    if rule.get("rule") == "renyi filter":
        return f"a Rényi filter of order {rule['order']}, for runs that were chosen after earlier releases"
    return "adaptive composition of mechanisms whose noise was fixed in advance"


def _tuning(card: Card) -> str:
    if any(isinstance(event, PrivateSelection) for event in card.events):
        return "settings were chosen by private selection, whose cost is part of ε"
    return "settings were fixed without the collection, by the custodian's statement"


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
    kind = "dcm" if next(folder.glob("images/*/*.dcm"), None) else "png"
    encoding = {"dcm": "application/dicom", "png": "image/png"}[kind]
    files = {"@type": "cr:FileSet", "@id": "images", "name": "images", "encodingFormat": encoding}
    files["includes"] = f"images/*/*.{kind}"
    fields = [_of_file("image", "sc:ImageObject", {"fileProperty": "content"}), _of_path("label", kind)]
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


def _of_path(name: str, kind: str) -> dict[str, Any]:
    """The label is the name of the folder that holds the file."""
    return _of_file(name, "sc:Text", {"fileProperty": "fullpath"}, transform={"regex": rf"([^/]+)/[^/]+\.{kind}$"})


def _records(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}


def _title(card: Card) -> str:
    if not card.certified or card.epsilon is None:
        return "Synthetic images without a privacy guarantee"
    return f"Synthetic images with a differential privacy guarantee of ε = {card.epsilon:g}"


def _size(card: Card) -> str:
    channels, height, width = card.shape
    return f"{width}×{height} {'grey' if channels == 1 else 'colour'} pixels"
