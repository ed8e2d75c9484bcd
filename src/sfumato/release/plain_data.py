"""Typed results as the plain data that JSON has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, tuples as lists, anything else as it is.

    An object with a ``to_json`` method decides for itself.
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return entries(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def entries(value: Any) -> dict[str, Any]:
    """The fields of a dataclass in their order, as plain data."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
