"""Attacks on the local page: each is refused, the server answers afterwards, and nothing was written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from sfumato.files import private_folder, write_json
from sfumato.web.workspace import Workspace
from web.live import Live, live

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
    with live(folder / "root") as running:
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
