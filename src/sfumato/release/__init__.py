"""What may leave: releases, their cards, and exports."""

from sfumato.release.release import DamagedRelease, Release

__all__ = ["DamagedRelease", "Release"]
