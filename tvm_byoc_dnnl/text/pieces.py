"""Tokens to text while they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet
_MOST_OPEN = 3  # bytes of a character that is not complete


class Pieces:
    """The text behind a prompt.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Decodes.
    prompt : sequence of int
        The tokens before: a decoder may drop a space at the beginning of what it is given.
    stops : sequence of str
        The text ends before the first of them.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._decode = tokenizer.decode
        self._stops = stops
        self._ids = list(prompt)
        self._mark = len(self._ids)  # tokens whose text is complete, and known to the next ones as what is before them
        self._given = len(self._decode(self._ids))  # characters of the decoded tokens that have been taken
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that is final behind one more token; may be empty."""
        self._ids.append(token)
        text = self._decode(self._ids)
        final = max(len(text.rstrip(_UNKNOWN)), len(text) - _MOST_OPEN)
        self._held += text[self._given : final]
        self._given = max(final, self._given)
        if final == len(text) and (last := self._decode(self._ids[self._mark :])):
            del self._ids[: self._mark]
            self._mark, self._given = len(self._ids), len(last)
        return self._before_stop()

    def rest(self) -> str:
        """What was held back, at the end."""
        if self.stopped:
            return ""
        self._held += self._decode(self._ids)[self._given :]
        piece = self._before_stop()
        return piece if self.stopped else piece + self._held

    def _before_stop(self) -> str:
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            return self._held[: min(places)]
        held = max((n for s in self._stops for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        end = len(self._held) - held
        piece, self._held = self._held[:end], self._held[end:]
        return piece
