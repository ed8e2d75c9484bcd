"""Zips as people make them: a folder around everything, files that a desktop adds, a table inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfumato.web.actions import JOBS_AT_ONCE
from web.live import Live, live
from web.still import jobs_of, without_workers
from web.test_security import archive

CASES = {
    "classes": (["cat/a.png", "dog/b.png"], "", ["cat/a.png", "dog/b.png"]),
    "a folder around the classes": (["set/cat/a.png", "set/dog/b.png"], "", ["cat/a.png", "dog/b.png"]),
    "two folders around them": (["x/set/cat/a.png", "x/set/dog/b.png"], "", ["cat/a.png", "dog/b.png"]),
    "one class": (["cat/a.png", "cat/b.png"], "", ["cat/a.png", "cat/b.png"]),
    "one class in a folder": (["set/cat/a.png"], "", ["cat/a.png"]),
    "a desktop's files": (
        ["cat/a.png", "cat/.DS_Store", ".DS_Store", "__MACOSX/cat/._a.png", "cat/._a.png", "Thumbs.db"],
        "",
        ["cat/a.png"],
    ),
    "both": (["set/cat/a.png", "set/dog/b.png", "__MACOSX/set/._cat"], "", ["cat/a.png", "dog/b.png"]),
    "an npz file": (["digits.npz"], "digits.npz", ["digits.npz"]),
    "an npz file in a folder": (["set/digits.npz", "__MACOSX/set/._digits.npz"], "digits.npz", ["digits.npz"]),
    "a list with its images": (["set/list.csv", "set/images/a.png"], "list.csv", ["images/a.png", "list.csv"]),
    "idx files": (
        ["m/train-images-idx3-ubyte.gz", "m/train-labels-idx1-ubyte.gz"],
        "",
        ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"],
    ),
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    without_workers(monkeypatch)
    with live(tmp_path) as running:
        yield running


def test_an_ordinary_zip_is_unpacked_as_a_collection(server: Live) -> None:
    for place, (case, (names, chosen, expected)) in enumerate(CASES.items()):
        answer = server.upload(f"my{place}.zip", archive({name: b"x" for name in names}))
        assert answer.status == 200, (case, answer.text)
        folder = server.folder / "uploads" / f"my{place}"
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        assert found == expected, case
        job = jobs_of(server).find(json.loads(answer.text)["next"].rpartition("/")[2])
        assert job.commands[0][1] == str(folder / chosen), case


def test_a_zip_with_a_desktop_s_files_alone_is_refused(server: Live) -> None:
    assert server.upload("my.zip", archive({"__MACOSX/._a": b"x"})).status == 400
    assert list((server.folder / "uploads").iterdir()) == []


def test_a_zip_that_cannot_be_inspected_now_leaves_nothing(server: Live) -> None:
    jobs = jobs_of(server)
    for _ in range(JOBS_AT_ONCE):
        jobs.start("inspect", "waiting", [("inspect",)])
    answer = server.upload("my.zip", archive({"cat/a.png": b"x"}))
    assert answer.status == 400 and "wait until one has ended" in json.loads(answer.text)["error"]
    assert list((server.folder / "uploads").iterdir()) == []


def test_lists_of_files_are_named_where_a_collection_is_chosen(server: Live) -> None:
    (server.root / "list.csv").write_text("file,label\n")
    text = server.get("/browse").text
    assert "Use list.csv" in text and "CSV file that lists the images" in text
