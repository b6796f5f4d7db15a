"""What went wrong with a region, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass

from ..verdict import Reject

__all__ = ["Failure", "describe"]

_LONGEST_REASON = 600


@dataclass(frozen=True)
class Failure:
    """What broke: ``lower``, ``plan`` or ``codegen``, and why."""

    stage: str
    reason: str


def describe(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    text = text if isinstance(error, Reject) else f"{type(error).__name__}: {text}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} …"
