"""Errors that a method's function raises on private rows: their text may hold a record, so it is withheld."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sfumato.privacy.gradients.errors import UnsupportedModel

SHOW_ERRORS: ContextVar[bool] = ContextVar("show_errors", default=False)
"""Set by ``--internal``, for somebody who may see the records: errors keep their text."""


class FailedOnPrivateRows(RuntimeError):
    """A loss, feature or update raised an exception while it ran on private rows."""


@contextmanager
def on_private_rows() -> Iterator[None]:
    """Replace the exceptions of a method's function by one that names their type alone."""
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        if SHOW_ERRORS.get():
            raise
        kind = type(error).__name__
    else:
        return
    # Outside of the handler, so that the exception is not attached as context either.
    raise FailedOnPrivateRows(
        f"the method's function raised {kind} on private rows. The text is withheld because it may hold a record; "
        "--internal shows it to somebody who may see the records"
    )
