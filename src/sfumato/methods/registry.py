"""All methods by name. A new one is a line here; the conformance suite then tests it by itself."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path

from sfumato.methods.base import Method
from sfumato.methods.first_edition import current_parameters
from sfumato.release.card import Card
from sfumato.release.release import Release

METHODS: dict[str, str] = {
    "dp-diffusion": "sfumato.methods.dp_diffusion:DPDiffusion",
    "dp-lflow": "sfumato.methods.dp_lflow:DPLFlow",
    "dp-merf": "sfumato.methods.dp_merf:DPMERF",
    "dp-realnvp": "sfumato.methods.dp_realnvp:DPRealNVP",
    "dp-vae": "sfumato.methods.dp_vae:DPVAE",
    "dp2-vae": "sfumato.methods.dp2_vae:DP2VAE",
    "dpaf": "sfumato.methods.dpaf:DPAF",
    "dppm": "sfumato.methods.dppm:DPPM",
    "gs-wgan": "sfumato.methods.gs_wgan:GSWGAN",
    "privae": "sfumato.methods.privae:PRIVAE",
}


def find(name: str) -> type[Method]:
    """The method of this name; a near miss is named."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(METHODS)}"
        raise LookupError(f"there is no method {name!r}; {hint}")
    module, _, attribute = METHODS[name].partition(":")
    method: type[Method] = getattr(import_module(module), attribute)
    return method


def load(folder: str | Path) -> Release:
    """The release in ``folder``; its method is found by the card's name and rebuilt from the card's parameters."""
    return Release.read(folder, _method_for)


def _method_for(card: Card) -> Method:
    return find(card.method).configured(current_parameters(card.method, card.parameters))
