"""Utility and fidelity by published protocol. It reads real data, so its numbers are NOT private."""
