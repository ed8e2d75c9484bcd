"""Who may ask for what: every request passes this guard before anything else looks at it.

The server listens on the loopback interface only. The address that it prints holds a random token, which is exchanged
for a cookie once. Requests under another host name are refused (DNS rebinding), and so are posts that do not come from
the page itself (cross-site request forgery).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FORM_LIMIT = 64 * 1024
FIELDS = 100
SESSIONS = 200
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
DOCUMENT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
"""For pages that commands wrote: they carry their style and their pictures, and no script may run in them."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": browsers then send the origin "null" with forms, which could not be checked.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Access:
    """The token of this server and the sessions that were opened with it."""

    def __init__(self, port: int, *, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.cookie = f"sfumato-{port}"
        self.hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, None] = {}

    def open_session(self, token: str) -> str | None:
        """A new session for whoever has the token."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        while len(self._sessions) > SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return session

    def session(self, headers: Headers) -> str | None:
        """The session of a request, if it has one that is known."""
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return None
        found = cookies[self.cookie].value if self.cookie in cookies else ""
        return found if found in self._sessions else None

    def csrf(self, session: str) -> str:
        """The value that every form of this session carries."""
        return hmac.new(self._key, session.encode(), hashlib.sha256).hexdigest()

    def is_own(self, headers: Headers) -> bool:
        """Whether the browser says that a post comes from a page of this server."""
        host = headers.get("host", "")
        site = headers.get("sec-fetch-site")
        return headers.get("origin") == f"http://{host}" and site in (None, "same-origin")


class Guard:
    """Middleware in front of everything."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            raise ValueError("only HTTP is served")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {"Content-Security-Policy": POLICY, **HEADERS}.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = await self._refusal(scope, receive)
        if refusal is None:
            return await self.app(scope, receive, send_with_headers)
        # The body of a refused request is not read; the connection cannot be used again.
        refusal.headers["Connection"] = "close"
        # A client that has broken the protocol by now, or has gone, gets no answer.
        with contextlib.suppress(LocalProtocolError):
            await refusal(scope, receive, send_with_headers)
        return None

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        headers = Headers(scope=scope)
        if scope["http_version"] not in ("1.0", "1.1"):
            return _plain("This server speaks HTTP/1.0 and HTTP/1.1.", 505)
        if headers.getlist("host") not in [[host] for host in self.access.hosts]:
            return _plain("This server answers under its own address only.", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _plain("This method is not allowed.", 405)
        if scope["method"] == "GET" and (token := _token(scope)) is not None:
            return self._login(scope, token)
        session = self.access.session(headers)
        if session is None:
            return _plain("Open the address that 'sfumato web' printed; it holds the token of this server.", 403)
        csrf = self.access.csrf(session)
        scope.setdefault("state", {})["csrf"] = csrf
        if scope["method"] == "POST":
            return await self._refused_post(scope, receive, headers, csrf)
        return None

    def _login(self, scope: Scope, token: str) -> Response:
        session = self.access.open_session(token)
        if session is None:
            return _plain("The token is not that of this server.", 403)
        response = RedirectResponse(scope["path"] if scope["path"] == "/" else "/", 303)
        response.set_cookie(self.access.cookie, session, httponly=True, samesite="strict", path="/")
        return response

    async def _refused_post(self, scope: Scope, receive: Receive, headers: Headers, csrf: str) -> Response | None:
        if not self.access.is_own(headers):
            return _plain("This request does not come from the page.", 403)
        if headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
            return _plain("Forms are sent as application/x-www-form-urlencoded.", 415)
        body = await _body(receive, FORM_LIMIT)
        if body is None:
            return _plain("The form is too large.", 413)
        form = _fields(body)
        if form is None:
            return _plain("The form cannot be read.", 400)
        scope["state"]["form"] = form
        if not hmac.compare_digest(form.get("csrf", "").encode(), csrf.encode()):
            return _plain("This form was not made for this session; load the page again.", 403)
        return None


def _plain(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status)


def _token(scope: Scope) -> str | None:
    try:
        query = parse_qs(scope["query_string"].decode("ascii"), max_num_fields=FIELDS)
    except ValueError:
        return None
    return query["token"][0] if "token" in query else None


async def _body(receive: Receive, limit: int) -> bytes | None:
    body = b""
    while True:
        message: dict[str, Any] = dict(await receive())
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body"):
            return body


def _fields(body: bytes) -> dict[str, str] | None:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=FIELDS
        )
    except ValueError:
        return None
    return None if len({key for key, _ in pairs}) != len(pairs) else dict(pairs)
