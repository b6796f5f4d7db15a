"""The server: compiled models, and language models, by the Open Inference Protocol and by OpenAI's.

Why a request gets no result, the status that says so, and what Prometheus reads are here, for all of it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

from ..core.errors import ByocError, InputError, OutOfFilesError, OutOfMemoryError

BAD_REQUEST, NOT_FOUND, TOO_SLOW, TOO_LARGE, TOO_MANY, FAILED, UNAVAILABLE, TIMED_OUT = (
    400, 404, 408, 413, 429, 500, 503, 504,
)  # fmt: skip


class Refusal(ByocError):
    """A request that the server does not answer, with HTTP's status for it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: BaseException) -> int:
    """HTTP's status for an error of a request."""
    if isinstance(error, Refusal):
        return error.status
    if isinstance(error, (OutOfMemoryError, OutOfFilesError)):
        return UNAVAILABLE
    return BAD_REQUEST if isinstance(error, InputError) else FAILED


#: the folder through which the processes of a server count together. prometheus_client reads it when it is imported, so
#: it is imported late.
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The counters of this process; with `FOLDER`, those of all processes are told together."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = registry = CollectorRegistry()
        self._requests = Counter("byoc_requests", "Requests answered", ["model", "status"], registry=registry)
        self._seconds = Histogram("byoc_request_seconds", "From request to answer", ["model"], registry=registry)
        self._call_seconds = Histogram("byoc_call_seconds", "One call of the model", ["model"], registry=registry)
        self._rows = Histogram("byoc_call_rows", "Rows of one call", ["model"], registry=registry, buckets=_ROWS)
        self._tokens = Counter("byoc_tokens", "Tokens read and written", ["model", "kind"], registry=registry)
        self._waiting = Gauge(
            "byoc_waiting", "Requests in the queue", ["model"], registry=registry, multiprocess_mode="livesum"
        )

    @contextlib.contextmanager
    def request(self, model: str, status_of: Callable[[BaseException], int]) -> Iterator[None]:
        """Count a request that is answered inside of the context."""
        started, status = time.perf_counter(), 200
        try:
            yield
        except Exception as error:
            status = status_of(error)
            raise
        finally:
            self._requests.labels(model, status).inc()
            self._seconds.labels(model).observe(time.perf_counter() - started)

    def call(self, model: str, rows: int, seconds: float) -> None:
        """Count a call of a model."""
        self._rows.labels(model).observe(rows)
        self._call_seconds.labels(model).observe(seconds)

    def tokens(self, model: str, prompt: int, text: int) -> None:
        """Count what a language model has read and written."""
        self._tokens.labels(model, "prompt").inc(prompt)
        self._tokens.labels(model, "text").inc(text)

    def text(self, waiting: Iterable[tuple[str, int]]) -> tuple[bytes, str]:
        """All of it as Prometheus reads it, and its type; ``waiting`` says how many requests wait, by model."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        for model, count in waiting:
            self._waiting.labels(model).set(count)
        registry = self._registry
        if FOLDER in os.environ:
            from prometheus_client.multiprocess import MultiProcessCollector

            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST
