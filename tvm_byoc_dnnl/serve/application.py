"""All addresses of a server as one ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..core.errors import ByocError
from . import TOO_MANY, TOO_SLOW
from .completions import Completions, error_record
from .models import Models
from .rest import LARGEST, Rest

#: seconds in which requests that are being answered end
GRACE = 30
#: seconds in which clients with kept connections hear that they end
_PARTING = 1.0


def application(
    models: Models,
    largest: int = LARGEST,
    started: Callable[[], contextlib.AbstractAsyncContextManager[Any]] | None = None,
) -> Starlette:
    """The ASGI application.

    ``models``: what is served; they start and end with the application. ``largest``: bytes that a request may have.
    ``started``: a context that is open while the application answers.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        models.start()
        async with contextlib.AsyncExitStack() as stack:
            if started is not None:
                await stack.enter_async_context(started())
            yield
            models.close()

    rest = Rest(models, largest)
    handlers = {
        ByocError: _answer_error,
        Exception: _answer_error,
        HTTPException: _answer_no_address,
        ClientDisconnect: _answer_nobody,
    }
    return Starlette(routes=rest.routes() + Completions(rest).routes(), lifespan=lifespan, exception_handlers=handlers)  # type: ignore[arg-type]


class Server(uvicorn.Server):
    """Serves the application; before it ends, it asks clients to go elsewhere.

    A connection that is kept would else be closed in the moment in which its client sends the next request.
    """

    def __init__(self, app: Starlette, models: Models) -> None:
        how = {"log_level": "warning", "access_log": False, "lifespan": "on", "timeout_graceful_shutdown": GRACE}
        super().__init__(uvicorn.Config(app, **how))  # type: ignore[arg-type]
        self._models = models

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no further connections, end those that are kept with their next answer, and then all."""
        self._models.is_ready = False
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        end = time.monotonic() + _PARTING
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)


async def _answer_error(request: Request, error: Exception) -> Response:
    record = error_record(error)
    status, is_text = record["code"], request.url.path.startswith("/v1/")
    headers = {"Retry-After": "1"} if status == TOO_MANY else None
    return JSONResponse({"error": record if is_text else record["message"]}, status, headers=headers)


async def _answer_no_address(request: Request, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}; the addresses begin with /v2 and /v1"
    return JSONResponse({"error": message}, error.status_code, headers=error.headers)


async def _answer_nobody(_: Request, error: Exception) -> Response:
    return Response(status_code=TOO_SLOW)
