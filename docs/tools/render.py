"""Write every page, and every part of a page, that follows from result files, commands or sources.

    python docs/tools/render.py

``make check`` fails where a page is another.
"""

from __future__ import annotations

from finding import ROOT
from pages import writers


def main() -> None:
    """Write what differs."""
    for path, write in writers().items():
        before = path.read_text(encoding="utf-8")
        after = write(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"Written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
