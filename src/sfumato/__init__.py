"""Sfumato: synthetic images from private ones, with a guarantee that follows from how the data was touched."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.data import PrivateImages, PublicImages
    from sfumato.methods import DPMERF, DPLFlow
    from sfumato.privacy import Budget, Ledger, NoGuarantee
    from sfumato.release import Release

__all__ = ["DPMERF", "Budget", "DPLFlow", "Ledger", "NoGuarantee", "PrivateImages", "PublicImages", "Release"]

_ROOMS = {
    "PrivateImages": "data",
    "PublicImages": "data",
    "DPLFlow": "methods",
    "DPMERF": "methods",
    "Release": "release",
}


def __getattr__(name: str) -> Any:
    """Names are fetched when they are used: ``sfumato --help`` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    return getattr(import_module(f"sfumato.{_ROOMS.get(name, 'privacy')}"), name)
