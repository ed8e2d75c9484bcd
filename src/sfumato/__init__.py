"""Sfumato: synthetic images from private ones, with a guarantee that follows from how the data was touched."""

from sfumato.data import PrivateImages, PublicImages
from sfumato.methods import DPMERF
from sfumato.privacy import Budget, Ledger, NoGuarantee
from sfumato.release import Release

__all__ = ["DPMERF", "Budget", "Ledger", "NoGuarantee", "PrivateImages", "PublicImages", "Release"]
