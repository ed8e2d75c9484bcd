"""Attacks on the local page: each is refused, the server answers afterwards, and nothing was written."""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from sfumato.files import private_folder, write_json
from sfumato.web.workspace import MEBIBYTE, Limits, Workspace
from web.live import Live, live

LIMITS = Limits(bytes=2 * MEBIBYTE, unpacked=4 * MEBIBYTE, ratio=50, files=20)
READ = (
    "/",
    "/browse",
    "/collections/x",
    "/plans/x",
    "/jobs/x",
    "/jobs/x/events",
    "/runs/x",
    "/static/web.js",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret").mkdir()
    (folder / "secret" / "a.txt").write_text("what nobody may read")
    (folder / "root" / "pictures" / "cat").mkdir(parents=True)
    (folder / "root" / "out").symlink_to(folder / "secret")
    (folder / "root" / "pictures" / "cat" / "a.png").symlink_to(folder / "secret" / "a.txt")
    with live(folder / "root", limits=LIMITS) as running:
        yield running


@pytest.fixture(autouse=True)
def alive_and_unchanged(server: Live) -> Iterator[None]:
    before = server.files()
    yield
    assert server.files() == before
    assert server.get("/").status == 200


def test_without_a_session_nothing_is_shown(server: Live) -> None:
    for path in READ:
        for headers in ({}, {"Cookie": f"{server.access.cookie}=guess"}, {"Cookie": "sfumato-1=" + server.cookie}):
            answer = server.get(path, headers=headers)
            assert answer.status == 403 and str(server.root) not in answer.text


def test_the_token_is_exchanged_for_a_cookie_that_scripts_and_other_sites_cannot_use(server: Live) -> None:
    assert server.get("/?token=guess", headers={}).status == 403
    answer = server.get(f"/?token={server.access.token}", headers={})
    assert answer.status == 303 and answer.headers["Location"] == "/"
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(answer.headers["Set-Cookie"].split("; "))
    assert server.access.token not in answer.headers["Set-Cookie"]


def test_other_host_names_are_refused(server: Live) -> None:
    for host in ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost.evil.example:{port}"]:
        assert server.get("/", host=host.format(port=server.port)).status == 421
        assert server.get(f"/?token={server.access.token}", host=host.format(port=server.port)).status == 421
        assert server.get("/", host=f"localhost:{server.port}").status == 200


def test_posts_from_elsewhere_are_refused(server: Live) -> None:
    for headers in [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data"},
    ]:
        answer = server.post("/collections", {"path": str(server.root / "pictures")}, headers)
        assert answer.status in (403, 415)


def test_a_form_needs_the_csrf_value_of_its_own_session(server: Live) -> None:
    fields = {"path": str(server.root)}
    other = server.get(server.entrance.removeprefix(server.address), headers={}).headers["Set-Cookie"].partition(";")[0]
    assert server.post("/collections", {**fields, "csrf": ""}).status == 403
    assert server.post("/collections", {**fields, "csrf": "0" * 64}).status == 403
    assert server.post("/collections", fields, {"Cookie": other}).status == 403
    assert server.upload("a.zip", b"x", {"X-CSRF-Token": "0"}).status == 403
    assert server.upload("a.zip", b"x", {"Origin": "https://evil.example"}).status == 403


def test_large_and_malformed_forms_are_refused(server: Live) -> None:
    assert server.post("/collections", {"path": "x" * 100_000}).status == 413
    assert server.post("/collections", {str(number): "" for number in range(200)}).status == 400
    own = {**server.own_headers(), "Origin": server.address, "Content-Type": "application/x-www-form-urlencoded"}
    assert server.request("POST", "/collections", b"a=1&a=2", own).status == 400
    assert server.request("POST", "/collections", b"\xff\xfe", own).status == 400


def test_other_methods_are_refused(server: Live) -> None:
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FOO"]:
        assert server.request(method, "/").status in (400, 405)


def test_paths_outside_the_root_are_refused(server: Live) -> None:
    for path in [
        "..",
        "../secret",
        "out",
        "out/a.txt",
        "pictures/../../secret",
        "/etc/passwd",
        "/",
        "~",
        "\0",
        "x" * 5000,
        "%2e%2e",
    ]:
        for answer in (server.get(f"/browse?path={quote(path)}"), server.post("/collections", {"path": path})):
            assert answer.status in (400, 404)
            assert "what nobody may read" not in answer.text
        assert str(server.root / "out") not in server.get("/browse").text


def test_a_collection_with_links_out_of_the_root_is_refused(server: Live) -> None:
    answer = server.post("/collections", {"path": "pictures"})
    assert answer.status == 400 and "symbolic links" in answer.text


def test_names_cannot_leave_their_folder(server: Live) -> None:
    for name in ["..", "%2e%2e", "..%2f..%2fsecret", "a/../../secret", "a%00b", ".hidden", "A"]:
        addresses = ("/runs/{}", "/jobs/{}", "/collections/{}", "/plans/{}", "/runs/{}/documents/public.html")
        for address in (*addresses, "/runs/x/documents/{}"):
            assert server.get(address.format(name)).status in (400, 404)


def test_every_answer_carries_the_policy(server: Live) -> None:
    for path in ("/", "/browse", "/nowhere", "/static/web.css"):
        headers = server.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy and "http:" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert headers["Server"] is None


def test_pages_have_no_inline_script_or_style_and_no_outside_address(server: Live) -> None:
    for path in ("/", "/browse", "/nowhere"):
        text = server.get(path).text
        assert not re.search(r"<script(?! src=\"/static/)|\son\w+=|style=|<style|https?:", text)
        assert re.search(r'class="banner (inside|leave|plain)"', text)


def archive(files: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        for name, content in files.items():
            target.writestr(name, content)
    return buffer.getvalue()


def link() -> bytes:
    entry = zipfile.ZipInfo("cat/a.png")
    entry.external_attr = 0o120777 << 16
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        target.writestr(entry, "/etc/passwd")
    return buffer.getvalue()


def lying() -> bytes:
    """A bomb whose table of contents says that it is small."""
    content = bytes(8 * MEBIBYTE)
    found = archive({"cat/a.png": content})
    size = len(content).to_bytes(4, "little")
    return found.replace(size, (1000).to_bytes(4, "little"))


def overlapping() -> bytes:
    """Many entries that share one compressed stream, after Fifield's "A better zip bomb"."""
    found = bytearray(archive({"a": bytes(MEBIBYTE)}))
    start = found.index(b"PK\x01\x02")
    end = found.index(b"PK\x05\x06")
    entry = bytes(found[start:end])
    entries = b"".join(entry[:46] + bytes([65 + number]) for number in range(15))
    tail = bytearray(found[end:])
    tail[8:10] = tail[10:12] = (15).to_bytes(2, "little")
    tail[12:16] = len(entries).to_bytes(4, "little")
    return bytes(found[:start]) + entries + bytes(tail)


BAD_ZIPS = {
    "a bomb by ratio": archive({"cat/a.png": bytes(3 * MEBIBYTE)}),
    "a bomb by size": archive({f"cat/{n}.png": os.urandom(1000) + bytes(10**6) for n in range(6)}),
    "a bomb that lies": lying(),
    "overlapping entries": overlapping(),
    "a zip in a zip of zeros": archive({"a.zip": archive({"b": bytes(3 * MEBIBYTE)}), "b": bytes(3 * MEBIBYTE)}),
    "too many files": archive({f"cat/{n}.png": b"x" for n in range(21)}),
    "too many bytes": archive({"cat/a.png": os.urandom(3 * MEBIBYTE)}, method=zipfile.ZIP_STORED),
    "a path upwards": archive({"../../escape.png": b"x"}),
    "an absolute path": archive({"/tmp/escape.png": b"x"}),
    "a path with backslashes": archive({"..\\escape.png": b"x"}),
    "a control character": archive({"cat/a\n.png": b"x"}),
    "a link": link(),
    "a file and a folder of one name": archive({"cat": b"x", "cat/a.png": b"x"}),
    "names that differ in case": archive({"cat/a.png": b"x", "CAT/A.png": b"x"}),
    "nothing": archive({}),
    "no zip": b"PK\x03\x04" + bytes(100),
    "a damaged zip": archive({"cat/a.png": zlib.compress(os.urandom(1000))})[:-40],
}


def test_bad_zips_are_refused_and_leave_nothing(server: Live) -> None:
    for name in BAD_ZIPS:
        uploads = server.folder / "uploads"
        answer = server.upload("bad.zip", BAD_ZIPS[name])
        assert answer.status == 400 and "error" in answer.text
        assert list(uploads.iterdir()) == []


def test_a_script_in_a_class_name_is_shown_as_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    (tmp_path / "data").mkdir()
    with live(tmp_path) as server:
        slug = Workspace((server.root,)).add_collection(server.root / "data")
        job = private_folder(server.folder / "jobs" / "20260101-000000-inspect-0")
        facts = {"id": job.name, "kind": "inspect", "title": name, "commands": [["inspect"]], "locks": []}
        write_json(job / "job.json", {**facts, "collection": slug}, private=True)
        write_json(job / "status.json", {"state": "done"}, private=True)
        (job / "log").write_text(name)
        found = {"format": name, "images": 1, "bad_images": 0, "sizes": [], "colours": {name: 1}, "persons": 0}
        found |= {"labels": {name: 1}, "burned_in_annotations": 0, "bad": [name]}
        found["suggested"] = {"classes": name}
        write_json(job / "output-0", found, private=True)
        for path in ("/", f"/collections/{slug}", f"/jobs/{job.name}"):
            text = server.get(path).text
            assert "&lt;script&gt;alert(1)" in text
            assert "<script>alert" not in text and "<img src=x" not in text
