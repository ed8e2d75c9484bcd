"""The application in a thread of this process, which has torch loaded already, and a client of the standard library."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import uvicorn

from sfumato.web.security import Access
from sfumato.web.server import HOST, application, server_config
from sfumato.web.workspace import Workspace


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str


class Live:
    """A server; requests carry the session unless they say otherwise."""

    def __init__(self, root: Path, port: int, access: Access) -> None:
        self.root, self.port, self.access = root, port, access
        self.folder = root / "sfumato"
        answer = self.get(f"/?token={access.token}", headers={})
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
        self.csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', self.get("/browse").text)[0]

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def entrance(self) -> str:
        return f"{self.address}/?token={self.access.token}"

    def own_headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie}

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, host: str = ""
    ) -> Answer:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=600)
        try:
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host or f"{HOST}:{self.port}")
            for name, value in (self.own_headers() if headers is None else headers).items():
                connection.putheader(name, value)
            if body or method == "POST":
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode(errors="replace"))
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None, host: str = "") -> Answer:
        return self.request("GET", path, headers=headers, host=host)

    def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """As a form of the page sends it; ``headers`` replace those of the page."""
        own = {**self.own_headers(), "Origin": self.address, "Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode({"csrf": self.csrf, **fields}).encode()
        return self.request("POST", path, body, {**own, **(headers or {})})

    def files(self) -> dict[str, int]:
        """Everything below the root; of files also the time of the last change."""
        return {str(path): 0 if path.is_dir() else path.lstat().st_mtime_ns for path in self.root.rglob("*")}


@contextlib.contextmanager
def live(root: Path) -> Iterator[Live]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(256)
        port = listener.getsockname()[1]
        access = Access(port)
        server = uvicorn.Server(server_config(application(Workspace.opened([root]), access)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Live(root, port, access)
        finally:
            server.should_exit = True
            thread.join(20)
