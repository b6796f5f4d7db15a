"""All addresses of a server as one ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..core.errors import ByocError
from .completions import Completions, error_record
from .models import Models
from .refusals import TOO_MANY, TOO_SLOW
from .rest import LARGEST, Rest


def application(
    models: Models,
    largest: int = LARGEST,
    started: Callable[[], contextlib.AbstractAsyncContextManager[Any]] | None = None,
) -> Starlette:
    """The ASGI application.

    Parameters
    ----------
    models : Models
        What is served; they start and end with the application.
    largest : int
        Bytes that a request may have.
    started : callable, optional
        A context that is open while the application answers.
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
