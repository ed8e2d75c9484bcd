"""Ten thousand bad requests of every kind: all refused, nothing written, and the page still works."""

from __future__ import annotations

import random
import socket
from collections import Counter
from pathlib import Path

import pytest

from sfumato.web.server import HOST
from web.live import Live, live

REQUESTS = 10_000


def bad_request(draw: random.Random, server: Live) -> bytes:
    """One request that must be refused."""
    host = f"Host: {HOST}:{server.port}\r\n"
    cookie = f"Cookie: {server.cookie}\r\n"
    noise = "".join(draw.choice("abc/.%\\?&=;~<>'\"é") for _ in range(draw.randrange(1, 60)))
    body = f"csrf={noise}&path=/etc"
    post = f"Origin: {server.address}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    return (
        draw.choice(
            [
                f"GET /{noise.replace('?', '')} HTTP/1.1\r\n{host}",
                f"GET /?token={noise} HTTP/1.1\r\n{host}",
                f"GET / HTTP/1.1\r\nHost: {noise}\r\n{cookie}",
                f"GET /browse?path={noise}/../../.. HTTP/1.1\r\n{host}",
                f"GET / HTTP/1.1\r\n{host}Cookie: {server.access.cookie}={noise}\r\n",
                f"{noise}\r\n",
                f"GET / HTTP/9.9\r\n{host}{cookie}",
                f"GET / HTTP/1.1\r\n{host}X: {'y' * 70_000}\r\n",
                f"DELETE /runs/x HTTP/1.1\r\n{host}{cookie}",
                f"POST /collections HTTP/1.1\r\n{host}{cookie}{post}Content-Length: {len(body.encode())}\r\n\r\n{body}",
                f"POST /collections HTTP/1.1\r\n{host}{cookie}Content-Length: 99999999999\r\n",
                f"POST /jobs/x/stop HTTP/1.1\r\n{host}{cookie}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            ]
        ).encode()
        + b"\r\n"
    )


def answer(server: Live, request: bytes) -> int:
    """The status, or 0 where the connection was closed without one."""
    with socket.create_connection((HOST, server.port), timeout=600) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            line = connection.recv(64).split()
        except ConnectionError:
            return 0
    return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0


@pytest.mark.long
def test_ten_thousand_bad_requests(tmp_path: Path) -> None:
    draw = random.Random(0)
    with live(tmp_path) as server:
        before = server.files()
        found = Counter(answer(server, bad_request(draw, server)) for _ in range(REQUESTS))
        assert set(found) <= {0, 400, 403, 404, 405, 413, 415, 421, 431, 505}, found
        assert server.files() == before
        assert server.get("/").status == 200
