"""``privacy/README.md`` lists every file that an ε depends on, with its number of lines.

``python tests/privacy/test_trusted_base.py`` writes the numbers of lines anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import sfumato.privacy

FOLDER = Path(sfumato.privacy.__file__).parent
README = FOLDER / "README.md"
ROW = re.compile(r"^\| `([\w/]+(?:\.py|/))` \| (\d+) \|", re.MULTILINE)
LONGEST = 500


def lines(path: Path) -> int:
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text().splitlines()) for file in files)


def counted(text: str) -> str:
    """The page with the numbers as they are."""
    return ROW.sub(lambda row: f"| `{row[1]}` | {lines(FOLDER / row[1])} |", text)


def test_every_file_is_listed_once() -> None:
    listed = [name for name, _ in ROW.findall(README.read_text())]
    files = {path.name for path in FOLDER.glob("*.py") if path.name != "__init__.py"}
    folders = {f"{path.parent.name}/" for path in FOLDER.glob("*/__init__.py")}
    assert sorted(listed) == sorted(files | folders)


def test_the_numbers_of_lines_are_right() -> None:
    for name, number in ROW.findall(README.read_text()):
        found = lines(FOLDER / name)
        # The engine is described by its own page; here its size is enough.
        room = found // 10 if name.endswith("/") else 0
        assert abs(found - int(number)) <= room, f"{name} has {found} lines; run python {__file__}"


def test_no_file_is_longer_than_a_reader_bears() -> None:
    assert [path.name for path in FOLDER.glob("*.py") if lines(path) > LONGEST] == []


if __name__ == "__main__":
    README.write_text(counted(README.read_text()))
