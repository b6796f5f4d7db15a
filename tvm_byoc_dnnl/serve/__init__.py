"""The server: compiled models, and language models, by the Open Inference Protocol and by OpenAI's.

Why a request gets no result, and the status that says so, are said here, for all of it.
"""

from __future__ import annotations

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
