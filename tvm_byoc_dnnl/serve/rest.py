"""The Open Inference Protocol over HTTP, and /metrics."""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..core.errors import InputError
from . import FAILED, TOO_LARGE, TOO_SLOW, UNAVAILABLE, Refusal, status_of
from .models import Models, server_metadata
from .tensors import HEADER, read_request, written_answer

_logger = logging.getLogger("tvm_byoc_dnnl")

LARGEST = 1 << 28
#: seconds in which a body must arrive
_PATIENCE = 60.0
_INFLATE = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class Rest:
    """The addresses of a server; ``largest``: bytes that a request may have."""

    def __init__(self, models: Models, largest: int = LARGEST) -> None:
        self.models, self._largest = models, largest

    def routes(self) -> list[Route]:
        """Addresses and the methods that answer them."""
        found = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/metrics", self.metrics),
        ]
        for start in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            found += [
                Route(start, self.model),
                Route(start + "/ready", self.model_ready),
                Route(start + "/infer", self.infer, methods=["POST"]),
            ]
        return found

    async def live(self, _: Request) -> Response:
        """The process answers."""
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        """Whether every model answers."""
        return JSONResponse({"ready": self.models.is_ready}, 200 if self.models.is_ready else UNAVAILABLE)

    async def server(self, _: Request) -> Response:
        """The server's name, version and extensions."""
        return JSONResponse(server_metadata())

    async def model(self, request: Request) -> Response:
        """A model's inputs and outputs."""
        return JSONResponse(self._found(request).metadata())

    async def model_ready(self, request: Request) -> Response:
        """Whether a model answers."""
        is_ready = self.models.is_ready
        answer = {"name": self._found(request).name, "ready": is_ready}
        return JSONResponse(answer, 200 if is_ready else UNAVAILABLE)

    async def metrics(self, _: Request) -> Response:
        """Counters for Prometheus."""
        waiting = [(model.name, model.waiting()) for model in self.models]
        content, kind = self.models.metrics.text(waiting)
        return Response(content, headers={"Content-Type": kind})

    async def infer(self, request: Request) -> Response:
        """The outputs of a model for the inputs of a request."""
        asked = read_request(await self.body(request), request.headers.get(HEADER))
        parameters = request.path_params
        names = None if asked.outputs is None else list(asked.outputs)
        model, arrays = await self.models.infer(parameters["model"], parameters.get("version"), asked.inputs, names)
        record = {"model_name": model.name, "model_version": model.version}
        if asked.id:
            record["id"] = asked.id
        binary = asked.outputs or dict.fromkeys(arrays, asked.binary)
        content, json_length = written_answer(record, arrays, binary)
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {HEADER: str(json_length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def body(self, request: Request) -> bytes:
        """The body, if it comes in time and is not too large.

        Raises `Refusal` if it is too large, or too slow; `InputError` if it is compressed in another way than gzip or
        deflate, or wrongly.
        """
        try:
            body = await asyncio.wait_for(self._received(request), _PATIENCE)
        except asyncio.TimeoutError:
            raise Refusal(TOO_SLOW, f"the request did not arrive within {_PATIENCE:g} s") from None
        kind = request.headers.get("content-encoding", "identity")
        if kind == "identity":
            return body
        if kind not in _INFLATE:
            raise InputError(f"Content-Encoding is {kind!r}; expected gzip or deflate, or none")
        inflate = zlib.decompressobj(_INFLATE[kind])
        try:
            body = inflate.decompress(body, self._largest + 1)
        except zlib.error as error:
            raise InputError(f"the request is not {kind}: {error}") from None
        self._check_size(len(body))
        return body

    async def _received(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "")
        self._check_size(int(length) if length.isdecimal() else 0)
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            self._check_size(size)
            parts.append(part)
        return b"".join(parts)

    def _check_size(self, size: int) -> None:
        if size > self._largest:
            raise Refusal(TOO_LARGE, f"the request has more than {self._largest} bytes, the most that are taken")

    def _found(self, request: Request) -> Any:
        return self.models.find(request.path_params["model"], request.path_params.get("version"))


def error_answer(error: BaseException) -> tuple[int, str]:
    """Status and message of an error; what no user has caused is logged."""
    status = status_of(error)
    if status == FAILED:
        _logger.error("a request failed", exc_info=error)
        return status, f"{type(error).__name__}: {error}".splitlines()[0]
    return status, str(error)
