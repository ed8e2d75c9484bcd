"""Files and folders are written whole or not at all, and private ones belong to their owner alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sfumato.files import new_file, new_folder, private_folder, write_file, write_json


def test_a_file_is_replaced_with_the_right_mode(tmp_path: Path) -> None:
    for number, (private, mode) in enumerate([(True, 0o600), (False, 0o644)]):
        here = tmp_path / str(number)
        here.mkdir()
        path = here / "file.txt"
        path.write_text("old")
        path.chmod(0o666)
        assert write_file(path, "neu, ε", private=private) == path
        assert path.read_bytes() == "neu, ε".encode()
        assert path.stat().st_mode & 0o777 == mode
        assert list(here.iterdir()) == [path]


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), new_file(path, private=True) as temporary:
        temporary.write_text("half of the ne")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_never_readable_by_others_while_it_is_written(tmp_path: Path) -> None:
    with new_file(tmp_path / "file", private=True) as temporary:
        assert temporary.stat().st_mode & 0o077 == 0


def test_json_refuses_what_json_does_not_have(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"é": [1, None]}, private=False)
    assert json.loads(path.read_text()) == {"é": [1, None]} and path.read_text().endswith("}\n")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, float("nan"), private=False)
    assert json.loads(path.read_text()) == {"é": [1, None]}


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "folder"
    with pytest.raises(RuntimeError), new_folder(folder) as temporary:
        (temporary / "file").write_text("content")
        raise RuntimeError
    assert not folder.exists() and not list(folder.parent.iterdir())
    folder.mkdir()
    with new_folder(folder, private=True) as temporary:
        (temporary / "file").write_text("content")
        assert not list(folder.iterdir())
    assert (folder / "file").read_text() == "content" and folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(OSError, match="not empty"), new_folder(folder):
        pass
    assert (folder / "file").exists() and list(folder.parent.iterdir()) == [folder]


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    assert private_folder(tmp_path / "open").stat().st_mode & 0o777 == 0o700
    assert private_folder(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
