"""Shows docstrings as the site needs them: doctests as code, and names of other objects without their roles."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")


class Examples(Extension):
    """Puts every doctest into a fenced block: Markdown takes ``>>>`` for quotations."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
