"""Releases, their cards, the images drawn from them, and exports; it may import ``data`` and what lies below."""

from sfumato.release.card import Card
from sfumato.release.release import DamagedRelease, Release
from sfumato.release.synthetic import SyntheticImages

__all__ = ["Card", "DamagedRelease", "Release", "SyntheticImages"]
