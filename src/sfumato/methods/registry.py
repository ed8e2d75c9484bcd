"""All methods by name, a user's own methods as ``module:Class``, and the way back from a saved release.

A new method is one line in ``METHODS``; the conformance suite then tests it by itself.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from torch import Tensor

from sfumato.methods.base import Method
from sfumato.release.card import Card
from sfumato.release.release import Release
from sfumato.training.run import release_folder

METHODS: dict[str, str] = {
    "dp-diffusion": "sfumato.methods.dp_diffusion:DPDiffusion",
    "dp-lflow": "sfumato.methods.dp_lflow:DPLFlow",
    "dp-merf": "sfumato.methods.dp_merf:DPMERF",
    "dp-mixture": "sfumato.methods.dp_mixture:DPMixture",
    "dp-realnvp": "sfumato.methods.dp_realnvp:DPRealNVP",
    "dp-vae": "sfumato.methods.dp_vae:DPVAE",
    "dp2-vae": "sfumato.methods.dp2_vae:DP2VAE",
    "dp2-vae-published": "sfumato.methods.published.dp2_vae:DP2VAEPublished",
    "dpaf": "sfumato.methods.dpaf:DPAF",
    "dpaf-published": "sfumato.methods.published.dpaf:DPAFPublished",
    "dppm": "sfumato.methods.dppm:DPPM",
    "dppm-published": "sfumato.methods.published.dppm:DPPMPublished",
    "gs-wgan": "sfumato.methods.gs_wgan:GSWGAN",
    "privae": "sfumato.methods.privae:PRIVAE",
}


class CustomMethodRefused(PermissionError):
    """A card names a class outside the package, whose module was not imported and is not allowed to be."""


def find(name: str) -> type[Method]:
    """The method of this name.

    Args:
        name: A registered name such as ``dp-lflow``, or ``module:Class`` for a class of the user's own. The module is
            imported from ``sys.path`` or from the working directory.

    >>> find("dp-lflow").__name__
    'DPLFlow'
    """
    if ":" in name:
        return _custom(name)
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(METHODS)}, and module:Class"
        raise LookupError(f"there is no method {name!r}; {hint}")
    return _attribute(METHODS[name])


def load(folder: str | Path, *, allow_custom: bool = False) -> Release:
    """The release in a folder; its method is rebuilt from the card's name and parameters.

    Args:
        folder: A folder that ``Release.save`` wrote, or the folder of a run with such a ``release/`` in it.
        allow_custom: Import the module that the card names, if it names one. Importing runs code, so by default a
            module that is not imported yet is refused.
    """

    def rebuild(card: Card, tensors: Mapping[str, Tensor]) -> tuple[Method, Mapping[str, Tensor]]:
        return method_of(card, allow_custom=allow_custom), tensors

    return Release.read(release_folder(folder), rebuild)


def method_of(card: Card, *, allow_custom: bool = False) -> Method:
    """The method that a card describes."""
    module = card.method.partition(":")[0]
    if ":" in card.method and module not in sys.modules and not allow_custom:
        raise CustomMethodRefused(
            f"the card names the method {card.method}, whose module is not imported. Loading it would run the code of "
            f"{module}.py; pass allow_custom=True (--allow-custom) if you trust it"
        )
    return find(card.method).configured(card.parameters)


def _custom(name: str) -> type[Method]:
    working_directory = str(Path.cwd())
    if working_directory not in sys.path:
        # It stays there, at the end: processes that this one starts must find the module, too.
        sys.path.append(working_directory)
    try:
        method = _attribute(name)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"there is no method {name!r}: {error}") from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise LookupError(f"{name!r} is not a subclass of sfumato.Method")
    return method


def _attribute(path: str) -> type[Method]:
    module, _, attribute = path.partition(":")
    found: type[Method] = getattr(import_module(module), attribute)
    return found
