"""A verdict is yes, or a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Crash", "Reject", "Works", "as_reject", "require"]


class Reject(Exception):
    """A refusal of a call or a match. It is falsy, and works both ways: ``return Reject(..)`` or ``raise Reject(..)``.

    Parameters
    ----------
    reason : str
        The reason, with the offending value: ``"dilation 3 with ceil_mode"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Reject({self.reason!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reject) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)


@dataclass(frozen=True)
class Works:
    """The answer of a blob runner's ``check`` that bytes can be loaded here, and compiled here would be better.

    Parameters
    ----------
    reason : str
        What differs: ``"made for chip 1, here is chip 2"``. Whoever loads the model is warned.
    """

    reason: str


class Crash(Reject):
    """A refusal that no code decided: the code that was asked raised an error."""


def require(condition: bool, reason: str) -> None:
    """Raise `Reject` with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise Reject(reason)


def as_reject(answer: Any, who: str) -> Reject | None:
    """``None`` for yes, a `Reject` for no; ``who`` is the name of the predicate in the error message.

    Raises
    ------
    TypeError
        If ``answer`` is neither a bool nor a `Reject`.
    """
    if isinstance(answer, Reject):
        return answer
    if isinstance(answer, bool):
        return None if answer else Reject(f"{who} says no")
    raise TypeError(f"{who} returned {answer!r}; expected True, False or byoc.Reject(reason)")
