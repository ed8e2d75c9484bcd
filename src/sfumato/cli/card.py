"""``sfumato card``: a release in the terms of others."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sfumato.cli.console import print_json, say
from sfumato.cli.options import Json, ReleasePath


def card(
    release: ReleasePath,
    *,
    registry: Annotated[
        bool, typer.Option("--registry", help="Print a tier-3 entry (YAML) for the DP Deployments Registry.")
    ] = False,
    curator: Annotated[str, typer.Option(help="With --registry: who holds the collection.")] = "",
    region: Annotated[str, typer.Option(help="With --registry: the region, such as Europe.")] = "",
    sector: Annotated[str, typer.Option(help="With --registry: the sector, such as Health.")] = "",
    intended_use: Annotated[str, typer.Option(help="With --registry: what the images are meant for.")] = "",
    justification: Annotated[str, typer.Option(help="With --registry: why ε and the unit are what they are.")] = "",
    as_json: Json = False,
) -> None:
    """Print what a release says about each layer of NIST SP 800-226, or its entry for the DP Deployments Registry."""
    from sfumato.release.card import Card
    from sfumato.release.registry import Stated, nist_layers, registry_entry, yaml_text
    from sfumato.training.run import release_folder

    found = Card.from_json(json.loads((release_folder(release) / "card.json").read_text(encoding="utf-8")))
    stated = Stated(curator, region, sector, intended_use, justification)
    if not registry:
        layers = nist_layers(found)
        return print_json(layers) if as_json else say("\n".join(f"{name}: {text}" for name, text in layers.items()))
    if missing := [name for name, text in vars(stated).items() if not text.strip()]:
        options = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise ValueError(f"no ledger knows what these say, and the registry asks for it: {options}")
    entry = registry_entry(found, stated)
    return print_json(entry) if as_json else say(yaml_text(entry).rstrip())
