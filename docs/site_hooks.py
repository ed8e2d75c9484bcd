"""What the site does beside Markdown.

The search's helper script comes from the site itself instead of the network, so that the site works from disk. A page
that mkdocs.yml does not list is added at the end of its section.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.utils import get_relative_url

_REMOTE = re.compile(r"https://unpkg\.com/iframe-worker/shim")


def on_config(config: Any) -> Any:
    """Add the pages that the navigation does not list."""
    folder = Path(config["docs_dir"])
    listed = repr(config["nav"])
    sections = {_folder(entries): entries for entry in config["nav"] for entries in entry.values()}
    for page in sorted(folder.rglob("*.md")):
        name = page.relative_to(folder).as_posix()
        if f"'{name}'" not in listed:
            sections[name.split("/")[0]].append(name)
    return config


def _folder(entries: Any) -> str:
    """The folder of a section: that of its first page."""
    return entries[0].split("/")[0] if isinstance(entries, list) else ""


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Point the script at the site's own file."""
    return _REMOTE.sub(get_relative_url("assets/worker.js", page.url), output)


def on_post_template(output_content: str, *, template_name: str, config: Any) -> str:
    """The same for pages without a source, as 404.html."""
    return _REMOTE.sub("assets/worker.js", output_content)
