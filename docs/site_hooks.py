"""What the site needs to work from disk: the search's helper script comes from the site itself, not from the network."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.utils import get_relative_url

_REMOTE = re.compile(r"https://unpkg\.com/iframe-worker/shim")


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Point the script at the site's own file."""
    return _REMOTE.sub(get_relative_url("assets/worker.js", page.url), output)


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """The same for pages without a source, as 404.html."""
    return _REMOTE.sub("assets/worker.js", output_content)
