"""Utility and fidelity by published protocol, above ``methods``. It reads real data: its numbers are NOT private."""
