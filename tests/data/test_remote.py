"""Collections at an address: an S3 store that runs here, and fsspec's file system in memory for all other addresses."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cli.commands import run_here
from cli.test_train import SMALL
from data.samples import CLASSES, encoded, pictures, write_folder, write_parquet
from sfumato.data import BadInput, read
from sfumato.data import parallel as parallel_module
from sfumato.data.formats.remote import RemoteFolder
from sfumato.data.holdout import read_train_and_test
from sfumato.data.remote import Place, address_of, resolved
from sfumato.data.source import Selection

SECRET = "a-secret-that-no-message-may-hold"


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = MemoryFileSystem()
    system.store.clear()
    yield system
    system.store.clear()


def put(system: MemoryFileSystem, folder: Path, place: str) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            system.pipe_file(f"/{place}/{file.relative_to(folder).as_posix()}", file.read_bytes())


def test_an_address_is_told_from_a_path(tmp_path: Path) -> None:
    assert address_of(Path("s3://bucket/a/b")) == address_of("s3://bucket/a/b") == "s3://bucket/a/b"
    assert address_of(Path("hf://datasets/org/name@main/data")) == "hf://datasets/org/name@main/data"
    assert address_of(Path("file:///data/images")) == "file:///data/images"
    assert [address_of(path) for path in ("images", "/s3/bucket", "C:/images", "a/s3://b", tmp_path)] == [None] * 5
    assert resolved(Path("s3://bucket/a")) == "s3://bucket/a" and resolved(Path("a")) == str(Path.cwd() / "a")


def test_folders_and_shards_are_read_as_they_are_on_a_disk(memory: MemoryFileSystem, tmp_path: Path) -> None:
    images, labels = pictures(24)
    folder = write_folder(tmp_path / "folder", images, labels)
    (tmp_path / "shards").mkdir()
    for number, rows in enumerate((slice(0, 14), slice(14, 24))):
        write_parquet(tmp_path / "shards" / f"train-{number:05d}-of-00002.parquet", images[rows], labels[rows])
    put(memory, folder, "store/folder")
    put(memory, tmp_path / "shards", "store/shards/data")  # as on the Hub
    for name in ("folder", "shards"):
        there, here = read(f"memory://store/{name}"), read(tmp_path / name)
        assert there.classes == here.classes == CLASSES
        assert np.array_equal(there.pixels, here.pixels) and np.array_equal(there.labels, here.labels)


def test_parts_persons_and_hidden_files(memory: MemoryFileSystem, tmp_path: Path) -> None:
    for part, seed in (("train", 0), ("test", 1)):
        put(memory, write_folder(tmp_path / part, *pictures(12, seed=seed)), f"store/{part}")
    memory.pipe_file("/store/train/cat/.hidden", b"no image")
    train, test = read_train_and_test("memory://store", person_pattern=r"^(\d\d\d)")
    assert (len(train.labels), len(test.labels)) == (12, 12) and len(set(train.persons)) == 2  # type: ignore[arg-type]


def test_a_changed_file_is_read_again_and_a_bad_one_named_only_internally(
    memory: MemoryFileSystem, tmp_path: Path
) -> None:
    images, labels = pictures()
    put(memory, write_folder(tmp_path / "folder", images, labels), "store")
    first = read("memory://store", cache=tmp_path / "cache")
    memory.pipe_file("/store/cat/new.png", encoded(images[0]))
    assert len(read("memory://store", cache=tmp_path / "cache").labels) == len(first.labels) + 1
    memory.pipe_file("/store/cat/odd name [1].png", b"no image")
    with pytest.raises(BadInput) as caught:
        read("memory://store")
    assert "cannot be decoded" in str(caught.value) and "odd name" not in str(caught.value)
    with pytest.raises(BadInput, match=r"odd name \[1\]"):
        read("memory://store", internal=True)
    assert len(read("memory://store", skip_bad=True).labels) == 13


def test_what_the_store_fails_to_bring_is_no_bad_record(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(memory, write_folder(tmp_path / "folder", *pictures()), "store")

    def lost(self: MemoryFileSystem, path: str, **options: object) -> bytes:
        raise ConnectionResetError(f"{SECRET} {path}")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", lost)
    with pytest.raises(BadInput, match="cannot be reached") as caught:
        read("memory://store", skip_bad=True, internal=True)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__cause__ or error.__context__


def test_the_files_of_a_folder_are_listed_once(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(memory, write_folder(tmp_path / "folder", *pictures(24)), "store")
    listed: list[str] = []
    ls = MemoryFileSystem.ls

    def watched(self: MemoryFileSystem, path: str, **options: object) -> object:
        listed.append(path.rpartition("/")[2])
        return ls(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", watched)
    place = Place("memory://store")
    source = RemoteFolder(place, Selection())
    assert source.count() == source.use_listing(tmp_path) == 24 and source.fingerprint()
    assert [listed.count(name) for name in CLASSES] == [1, 1, 1]
    # A process that decodes parts lists nothing but the classes.
    listed.clear()
    worker = RemoteFolder(place, Selection())
    worker.use_listing(tmp_path)
    parts = [record.name for start in (0, 10, 20) for record in worker.part(start, start + 10)]
    assert set(listed) == {"store"} and parts == [record.name for record in source.records()]


def test_errors_say_what_is_wrong_with_an_address(memory: MemoryFileSystem) -> None:
    for address, rule in [
        ("memory://nowhere", "there is nothing at memory://nowhere"),
        (f"s3://key:{SECRET}@bucket/folder", "must not hold credentials"),
        ("unknown://bucket/folder", "not a known kind of address"),
        ("memory://store/file.npz", "only parquet files and image folders"),
    ]:
        memory.pipe_file("/store/file.npz", b"")
        with pytest.raises(BadInput, match=rule) as caught:
            read(address)
        assert SECRET not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(BadInput, match=r"s3:// addresses need further packages. pip install 'sfumato\[cloud\]'"):
        Place("s3://bucket/folder")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that leads to an S3 store on this machine, with a folder and two shards in the bucket."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    system = s3fs.S3FileSystem(key="key", secret=SECRET, endpoint_url=endpoint, skip_instance_cache=True)
    folder = tmp_path_factory.mktemp("here")
    images, labels = pictures(24, side=28, channels=1)
    write_folder(folder / "folder", images, labels)
    system.mkdir("bucket")
    system.put(str(folder / "folder"), "bucket/folder", recursive=True)
    for number, rows in enumerate((slice(0, 14), slice(14, 24))):
        file = write_parquet(folder / f"train-{number:05d}-of-00002.parquet", images[rows], labels[rows])
        system.put(str(file), f"bucket/shards/{file.name}")
    region = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1"}
    login = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}
    yield {**region, **login, "HOME": str(folder), "AWS_ENDPOINT_URL": endpoint}
    server.stop()


@pytest.fixture
def at_store(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leads this process to the store; returns where the same collections lie on the disk."""
    for key in os.environ:
        if key.startswith(("AWS_", "FSSPEC_")):
            monkeypatch.delenv(key)
    for key, value in store.items():
        monkeypatch.setenv(key, value)
    return Path(store["HOME"])


@pytest.mark.long
def test_errors_of_an_s3_store(
    at_store: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(address: str) -> str:
        with pytest.raises(BadInput) as caught:
            read(address, internal=True)
        return str(caught.value)

    found = [said("s3://another-bucket/folder"), said("s3://bucket/nothing")]
    assert found[0].startswith("there is nothing at s3://another-bucket/folder")
    assert found[1].startswith("there is nothing at s3://bucket/nothing")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        found.append(said("s3://bucket/folder"))
    assert found[2].startswith("the store of s3://bucket/folder cannot be reached")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    found.append(said("s3://bucket/folder"))
    assert found[3].startswith("no credentials were found for s3://bucket/folder")
    shown = "".join([*found, *capfd.readouterr()])
    assert SECRET not in shown and "\n" not in shown


@pytest.mark.long
def test_training_on_an_address(at_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--method", "dp-merf", "--epsilon", "3", *SMALL, "--out", str(tmp_path / "run"), "--quiet"]
    assert run_here(monkeypatch, "train", "s3://bucket/shards", *words) == 0
    started = json.loads((tmp_path / "run" / "internal" / "run.json").read_text())
    assert "s3://bucket/shards" in json.dumps(started)
    assert "s3:" not in "".join(path.read_text() for path in (tmp_path / "run" / "release").rglob("*.json"))
    there, here = read("s3://bucket/folder"), read(at_store / "folder")
    assert np.array_equal(there.pixels, here.pixels) and np.array_equal(there.labels, here.labels)


@pytest.mark.long
def test_an_interrupted_reading_of_an_address_goes_on(
    at_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_module, "PART", 8)

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read("s3://bucket/shards", cache=tmp_path, workers=2, progress=interrupt)
    (kept,) = tmp_path.glob("reading-*")
    before = sum(part.name.isdecimal() for part in kept.iterdir())
    seen: list[int] = []
    again = read("s3://bucket/shards", cache=tmp_path, workers=2, progress=seen.append)
    assert before >= 1 and len(seen) == 3 - before and seen == sorted(seen)
    assert len(again.labels) == 24 and not list(tmp_path.glob("reading-*"))
