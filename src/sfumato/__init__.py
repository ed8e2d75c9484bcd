"""Sfumato: synthetic images from private ones, with a guarantee that follows from how the data was touched."""
