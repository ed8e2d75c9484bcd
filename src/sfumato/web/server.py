"""The application and the server: loopback only, one address with a token."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from sfumato.web.actions import action_routes
from sfumato.web.jobs import Jobs
from sfumato.web.pages import INSIDE, page, page_routes
from sfumato.web.security import Access, Guard
from sfumato.web.workspace import NotThere, Refused, Workspace, download_routes

HOST = "127.0.0.1"


def application(workspace: Workspace, access: Access) -> ASGIApp:
    """The application behind its guard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    jobs = Jobs(workspace)
    app.include_router(page_routes(workspace, jobs))
    app.include_router(download_routes(workspace))
    app.include_router(action_routes(workspace, jobs))
    app.add_exception_handler(Refused, _shown(400))
    app.add_exception_handler(NotThere, _shown(404))
    app.add_exception_handler(HTTPException, _status)
    app.add_exception_handler(RequestValidationError, _shown(400, "The request cannot be read."))
    return Guard(app, access)


def _shown(status: int, text: str | None = None) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return page(
            request,
            "error.html.jinja",
            status=status,
            banner=INSIDE,
            message=text or str(error),
            back=getattr(error, "back", None),
        )

    return handler


async def _status(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    message = "There is no such page." if status == 404 else "The request is not allowed."
    return page(request, "error.html.jinja", status=status, banner=INSIDE, message=message, back=None)


def serve(roots: list[Path], *, port: int, announce: Callable[[str], None]) -> None:
    """Serve until the process is interrupted. Trainings go on when the server ends.

    Args:
        roots: The folders that the page may use; it writes into ``sfumato/`` of the first.
        port: A port, or 0 for a free one.
        announce: Called with the address once connections are accepted.
    """
    workspace = Workspace.opened(roots)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(512)
        chosen = listener.getsockname()[1]
        access = Access(chosen)
        server = uvicorn.Server(server_config(application(workspace, access)))
        announce(f"http://{HOST}:{chosen}/?token={access.token}")
        server.run(sockets=[listener])


def server_config(app: ASGIApp) -> uvicorn.Config:
    """No access log, because addresses hold the token; no headers of a proxy are believed."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=500,
        h11_max_incomplete_event_size=32 * 1024,
    )
