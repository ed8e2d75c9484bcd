"""Releases, their cards, the images drawn from them, and exports."""

from sfumato.release.card import Card
from sfumato.release.release import DamagedRelease, Release
from sfumato.release.synthetic import SyntheticImages

__all__ = ["Card", "DamagedRelease", "Release", "SyntheticImages"]
