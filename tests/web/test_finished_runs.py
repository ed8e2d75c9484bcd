"""A finished run without its jobs: its ledger, its review and its files, which can be fetched."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import run_here
from sfumato.web.workspace import Workspace, zipped
from web.live import Live, live
from web.served import SMALL, write_digits
from web.still import jobs_of, ledger_at, without_workers


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a run that was trained from the page, whose jobs were removed."""
    root = tmp_path_factory.mktemp("trained") / "root"
    root.mkdir()
    data = write_digits(root / "digits.npz", 60)
    workspace = Workspace.opened([root])
    name = workspace.add_collection(data)
    run = workspace.named("runs", "one")
    words = ["train", str(data), "--method=dp-merf", "--epsilon=1", "--delta=1e-5", "--unit=image", "--classes=10"]
    words += [f"--set={setting}" for setting in SMALL.split()]
    with pytest.MonkeyPatch.context() as patch:
        assert run_here(patch, *words, f"--ledger={workspace.ledger(name)}", f"--out={run}") == 0
        assert run_here(patch, "report", str(run)) == 0
    return root


@pytest.fixture
def server(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A copy of it, in which the run was begun with the copy's paths."""
    without_workers(monkeypatch)
    root = tmp_path / "root"
    shutil.copytree(trained, root)
    (old,) = (root / "sfumato" / "collections").iterdir()
    old.unlink()
    name = Workspace.opened([root]).add_collection(root / "digits.npz")
    for path in (root / "sfumato" / "ledgers").iterdir():
        path.rename(path.with_name(path.name.replace(old.stem, name)))
    facts = root / "sfumato" / "runs" / "one" / "internal" / "run.json"
    facts.write_text(facts.read_text().replace(str(trained), str(root)).replace(old.stem, name))
    with live(root) as running:
        yield running


def collection(server: Live) -> str:
    return next((server.folder / "collections").iterdir()).stem


def test_the_ledger_and_the_review_are_found_without_jobs(server: Live) -> None:
    text = server.get("/runs/one/release").text
    assert "spending of this release is on the collection&#39;s ledger" in text
    assert "NOT on" not in text and "Collection:" in text
    review = server.get("/runs/one").text
    assert "Compare with the real images" in review and "--classes=10" in review
    assert '<a href="/runs/one">one</a>' in server.get(f"/collections/{collection(server)}").text
    assert server.post("/runs/one/review", {}).status == 303
    assert jobs_of(server).all()[0].collection == collection(server)


def test_real_images_stand_beside_synthetic_ones_inside_alone(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    run = server.folder / "runs" / "one"
    assert "Private images, a row" not in server.get("/runs/one/documents/internal.html").text
    assert run_here(monkeypatch, "report", str(run), "--side-by-side") == 0
    assert (run / "internal" / "side_by_side" / "real.png").stat().st_mode & 0o077 == 0
    assert "Private images, a row for each class" in server.get("/runs/one/documents/internal.html").text
    assert "Private images" not in (run / "public.html").read_text(encoding="utf-8")


def test_a_run_whose_facts_are_damaged_spoils_no_other_page(server: Live) -> None:
    (server.folder / "runs" / "one" / "internal" / "run.json").write_text("{")
    assert server.get("/").status == server.get("/runs/one").status == 200
    assert "cannot be checked" in server.get("/runs/one/release").text


@pytest.mark.parametrize("damage", ["edited", "removed", "outside"])
def test_a_ledger_that_cannot_be_read_is_told_in_a_sentence(server: Live, damage: str) -> None:
    ledger = ledger_at(server, collection(server))
    if damage == "edited":
        ledger.write_text(ledger.read_text().replace('"epsilon": 1.0', '"epsilon": 9.0'))
    else:
        ledger.rename(server.root.parent / "moved.jsonl")
    if damage == "outside":
        facts = server.folder / "runs" / "one" / "internal" / "run.json"
        facts.write_text(json.dumps({"ledger": str(server.root.parent / "moved.jsonl")}))
    answer = server.get("/runs/one/release")
    assert answer.status == 200
    expected = "cannot be read" if damage == "edited" else "cannot be checked"
    assert expected in answer.text and "NOT on" not in answer.text


def test_the_pages_can_be_written_again(server: Live) -> None:
    (server.folder / "runs" / "one" / "public.html").unlink()
    assert "/runs/one/report" in server.get("/runs/one").text
    assert server.post("/runs/one/report", {}).status == 303
    assert [command[0] for command in jobs_of(server).all()[0].commands] == ["report"]


def exported(server: Live, name: str, files: dict[str, bytes]) -> Path:
    folder = server.folder / "exports" / name
    for path, content in {"card.json": b"{}", **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_the_public_page_and_exports_can_be_fetched(server: Live) -> None:
    exported(server, "one-1", {"images.npz": b"PK npz"})
    folder = exported(server, "one-2", {"images/<a>/0.png": b"png"})
    exported(server, "other-1", {"images.npz": b"x"})
    text = server.get("/runs/one/release").text
    assert "/runs/one/download" in text and "/exports/one-1/download" in text and "/exports/one-2/download" in text
    assert "other-1" not in text
    page = server.get("/runs/one/download")
    assert page.status == 200 and page.headers["Content-Disposition"] == 'attachment; filename="one.html"'
    assert page.headers["Content-Security-Policy"].startswith("sandbox;")
    assert page.text == (server.folder / "runs" / "one" / "public.html").read_text()
    single = server.get("/exports/one-1/download")
    assert single.text == "PK npz" and single.headers["Content-Disposition"] == 'attachment; filename="one-1.npz"'
    answer = server.get("/exports/one-2/download")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="one-2.zip"'
    with zipfile.ZipFile(io.BytesIO(b"".join(zipped(folder)))) as archive:
        assert archive.read("one-2/images/<a>/0.png") == b"png"
        assert sorted(archive.namelist()) == ["one-2/card.json", "one-2/images/<a>/0.png"]
    # The next export has a name of its own, although no job is left that tells of the others.
    assert server.post("/runs/one/export", {"count": "5", "format": "npz"}).status == 303
    assert f"--out={server.folder / 'exports' / 'one-3'}" in jobs_of(server).all()[0].commands[0]


def test_a_large_file_is_not_held_in_memory_while_it_is_zipped(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    parts = list(zipped(tmp_path))
    assert len(parts) > 4 and max(map(len, parts)) < 3 << 20


def test_nothing_else_can_be_fetched(server: Live) -> None:
    outside = server.root.parent / "secret"
    exported(server, "one-1", {"a.png": b"a"})
    outside.mkdir()
    (outside / "card.json").write_text("secret")
    (server.folder / "exports" / "link-1").symlink_to(outside)
    (server.folder / "exports" / "one-1" / "images.npz").symlink_to(outside / "card.json")
    (server.folder / "exports" / "one-1" / "b.png").symlink_to(outside / "card.json")
    (server.folder / "exports" / "unfinished").mkdir()
    for name in ("link-1", "unfinished", "nothing", "..", "%2e%2e", "..%2fruns", "one-1%2f..%2f..%2fledgers"):
        assert server.get(f"/exports/{name}/download").status == 404, name
        assert server.get(f"/runs/{name}/download").status == 404, name
    assert "secret" not in server.get("/exports/one-1/download").text
    (server.folder / "runs" / "one" / "public.html").unlink()
    (server.folder / "runs" / "one" / "public.html").symlink_to(outside / "card.json")
    assert server.get("/runs/one/download").status == 404
    for path in ("/runs/one/download", "/exports/one-1/download"):
        assert server.get(path, headers={}).status == 403
        assert server.get(path, host="evil.example").status == 421
