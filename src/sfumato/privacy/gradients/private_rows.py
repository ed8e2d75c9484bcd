"""Errors that a method's function raises on private rows: their text may hold a record, so it is withheld."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from sfumato.privacy.gradients.errors import UnsupportedModel

Result = TypeVar("Result")

SHOW_ERRORS: ContextVar[bool] = ContextVar("show_errors", default=False)
"""Set by ``--internal``, for somebody who may see the records: errors keep their text."""


class FailedOnPrivateRows(RuntimeError):
    """A loss, feature or update raised an exception while it ran on private rows."""


def on_private_rows(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call the function; its exceptions are replaced by one that names their type alone."""
    try:
        return function(*arguments)
    except UnsupportedModel:
        raise
    except Exception as error:
        if SHOW_ERRORS.get():
            raise
        kind = type(error).__name__
    # Outside of the handler, so that the exception is not attached as context either.
    raise FailedOnPrivateRows(
        f"the method's function raised {kind} on private rows. The text is withheld because it may hold a record; "
        "--internal shows it to somebody who may see the records"
    )
