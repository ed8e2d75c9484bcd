"""Each rule that input can break: one clear error, nothing private in it, nothing left behind."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import pytest
from PIL import Image, UnidentifiedImageError

from data.bad_collections import COLLECTIONS
from data.bad_records import RECORDS, SECRET, class_folders, with_a_bad_file
from data.samples import CLASSES, encoded, pictures, write_npz
from sfumato.data import BadInput, read


def test_bad_record(tmp_path: Path) -> None:
    for number, make in enumerate(RECORDS):
        here = tmp_path / str(number)
        here.mkdir()
        place, cache = make(here / "c"), here / "cache"
        with pytest.raises(BadInput, match=RECORDS[make]) as caught:
            read(place, cache=cache)
        told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
        told = told.replace(str(here), "")  # whose number may be any
        assert SECRET not in told and "4711" not in told and "row" not in vars(caught.value)["detail"]
        assert caught.value.__context__ is None and caught.value.__cause__ is None
        assert not cache.exists()
        with pytest.raises(BadInput, match=f"{SECRET}|row|only|c") as caught:
            read(place, cache=cache, internal=True)
        assert caught.value.detail
        found = read(place, skip_bad=True)
        assert len(found.pixels) in (11, 12) and found.skipped == ()
        aside = read(place, skip_bad=True, internal=True).skipped
        assert len(aside) == 1 and (SECRET in aside[0] or aside[0].startswith("row "))


def test_bad_collection(tmp_path: Path) -> None:
    for make, rule in [case[1:] for case in COLLECTIONS]:
        for number, skip_bad in enumerate([False, True]):
            own_folder = tmp_path / f"{make}-{number}"
            own_folder.mkdir()
            place, cache = make(own_folder / "c"), own_folder / "cache"
            classes = 3 if make.__name__.startswith("idx") else None
            with pytest.raises(BadInput, match=rule) as caught:
                read(place, classes=classes, cache=cache, skip_bad=skip_bad)
            told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
            assert SECRET not in told and not caught.value.detail
            assert caught.value.advice
            assert not cache.exists()


def test_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    place = class_folders(tmp_path / "c")
    target = next((place / "dog").iterdir())
    (place / "cat" / "again.png").symlink_to(target)
    assert len(read(place).pixels) == 13


def test_undeclared_class_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not in the declared label set"):
        read(class_folders(tmp_path / "c"), classes=CLASSES[:2], skip_bad=True)


def test_hidden_and_desktop_files_are_ignored(tmp_path: Path) -> None:
    place = class_folders(tmp_path / "c")
    (place / ".thumbnails").mkdir()
    for name in (".DS_Store", "Thumbs.db", "._0001.png"):
        (place / name).write_bytes(b"x")
        (place / "cat" / name).write_bytes(b"x")
    assert len(read(place).pixels) == 12


def test_truncated_jpeg(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, format="JPEG")
    (tmp_path / "c" / "cat").mkdir(parents=True)
    (tmp_path / "c" / "cat" / "1.jpg").write_bytes(buffer.getvalue()[:-200])
    with pytest.raises(BadInput, match="cannot be decoded"):
        read(tmp_path / "c")


def _run(program: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, check=True
    )
    return result.stdout


def test_no_read_permission(tmp_path: Path) -> None:
    """In a process of its own that is nobody: the superuser may read anything."""
    place = class_folders(tmp_path / "c")
    bad = place / "cat" / f"{SECRET}.png"
    bad.write_bytes(encoded(pictures()[0][0]))
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("pytest", "test", "popen")):
            folder.chmod(0o755)
    bad.chmod(0)
    program = """
        import os, sys
        from sfumato.data import BadInput, read
        import PIL.PngImagePlugin
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            read(sys.argv[1])
        except BadInput as error:
            print(error.rule, "|", error)
        print(len(read(sys.argv[1], skip_bad=True).pixels))
    """
    told = _run(program, str(place))
    assert "may not be read by this user" in told and SECRET not in told
    assert told.splitlines()[-1] == "12"


def test_disk_that_fills_up(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk: the same call fails in the same way."""
    place = write_npz(tmp_path / "c.npz", *pictures(2000, side=32))
    program = """
        import resource, sys
        from sfumato.data import BadInput, read
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            read(sys.argv[1], cache=sys.argv[2])
        except BadInput as error:
            print(error)
    """
    assert "no space left to write to" in _run(program, str(place), str(tmp_path / "cache" / "deep"))
    assert not (tmp_path / "cache").exists()
    assert len(read(place, cache=tmp_path / "cache").pixels) == 2000


def test_decoders_say_nothing_about_single_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """A TIFF that claims 768 samples a pixel makes Pillow log that number."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="TIFF")
    samples = struct.pack("<HHI", 277, 3, 1)
    content = buffer.getvalue()
    assert samples in content
    place = with_a_bad_file(tmp_path / "c", content.replace(samples + b"\x03\0", samples + b"\0\x03"))
    with pytest.raises(BadInput, match="cannot be decoded"):
        read(place)
    assert not caplog.records and not [one for one in recwarn.list if one.category is not ResourceWarning]
    with pytest.raises(UnidentifiedImageError):
        Image.open(place / "cat" / f"{SECRET}.png")
    assert caplog.records  # it does so when nobody stops it
