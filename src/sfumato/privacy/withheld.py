"""Calls on private records, whose warnings and texts of exceptions are withheld."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar
from warnings import catch_warnings

from sfumato.privacy.gradients.one_row import UnsupportedModel

Result = TypeVar("Result")


class PrivateRowsError(RuntimeError):
    """An exception on private records, without its text."""


def on_private_rows(function: Callable[..., Result], *arguments: Any, internal: bool) -> Result:
    """Call the function. Its warnings, and the text of what it raises, may quote or count records and are withheld."""
    try:
        with nullcontext() if internal else catch_warnings(action="ignore"):
            return function(*arguments)
    except UnsupportedModel:
        raise  # our own text, which quotes nothing
    except Exception as error:
        if internal:
            raise
        name = type(error).__name__
    # Outside of the handler, so that the exception is not kept as the context of this one.
    raise PrivateRowsError(
        f"{name} was raised on private records; its text is withheld because it may describe them. Reproduce it on "
        "public images, or use internal=True where the output stays with the data"
    )
