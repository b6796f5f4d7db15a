"""The errors behind reasons: a report keeps the text, and an exception that quotes it is raised from the error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["cause_of", "note_cause", "remembering_causes"]

_logger = logging.getLogger("tvm_byoc_dnnl")
# Texts → errors: those noted inside of a `remembering_causes`, and those of passes that run outside of one.
_INSIDE: ContextVar[dict[str, BaseException] | None] = ContextVar("inside", default=None)
_OUTSIDE: ContextVar[dict[str, BaseException] | None] = ContextVar("outside", default=None)
_MOST_OUTSIDE = 16  # an error keeps alive what its frames hold


@contextmanager
def remembering_causes() -> Iterator[None]:
    """Remember the errors that are noted inside, and forget them at the end."""
    token = _INSIDE.set({})
    try:
        yield
    finally:
        _INSIDE.reset(token)
        _OUTSIDE.set(None)


def note_cause(text: str, error: BaseException) -> None:
    """Remember an error that later code only knows as ``text``; its traceback is logged at DEBUG."""
    _logger.debug("%s", text, exc_info=error)
    inside = _INSIDE.get()
    if inside is not None:
        inside.setdefault(text, error)
        return
    others = [item for item in (_OUTSIDE.get() or {}).items() if item[0] != text]
    _OUTSIDE.set(dict([*others[1 - _MOST_OUTSIDE :], (text, error)]))


def cause_of(text: str) -> BaseException | None:
    """The first remembered error whose description ``text`` quotes."""
    causes = {**(_OUTSIDE.get() or {}), **(_INSIDE.get() or {})}
    return next((error for said, error in causes.items() if said and said in text), None)
