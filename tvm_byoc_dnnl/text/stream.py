"""Texts while a model writes them: those that are open at the same time share the steps of the model.

There is no thread for this. Whoever needs a token that is not there computes a step, for itself and all others; the
rest waits for it. A text that nobody reads is a few tokens ahead at most.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..core.errors import InputError
from .caches import Conversation
from .conversation import Decoder
from .sampling import Pieces

Choice = Callable[[np.ndarray], int]

__all__ = ["TextStream", "Turns"]

#: tokens of a text that nobody has asked for yet
_AHEAD = 16


class TextStream(Iterator[str]):
    """Pieces of a text while a model writes it; `TextGenerator.stream` makes it. It is for one thread.

    Attributes
    ----------
    prompt_tokens, tokens : int
        Tokens of the prompt, and tokens of the text until now.
    finished : str or None
        Why the text ends: ``"stop"`` at a token that ends it or a stop string, ``"length"`` at a limit, ``"closed"``;
        ``None`` while it goes on.
    prompt_seconds : float
        The time of the calls of the model that read the prompt; the last one gives the first token.
    steps, step_seconds : int, float
        Further calls, each of which gives a token, and their time. Other texts may have shared them.
    """

    def __init__(
        self,
        turns: Turns,
        ids: Sequence[int],
        choose: Choice,
        pieces: Pieces,
        limit: int,
        ends: frozenset[int],
    ) -> None:
        self.prompt_tokens, self.tokens, self.steps = len(ids), 0, 0
        self.prompt_seconds = self.step_seconds = 0.0
        self.finished: str | None = None
        self._turns, self._choose, self._pieces = turns, choose, pieces
        self._limit, self._left, self._ends = limit, limit, ends
        # for whoever computes steps: tokens that nobody has read, or why there is none; whether the first token is
        # still to come, no further one is, and it has part in the steps that others need
        self._conversation, self._ready = Conversation(ids, len(ids) + limit), deque[int | Exception]()
        self._is_prompt, self._is_over, self._keeps_up = True, False, True

    def __next__(self) -> str:
        piece = ""
        while not piece and self.finished is None:
            try:
                token = self._turns.token(self)
            except Exception:
                self.close()
                raise
            if token in self._ends:
                self._finish("stop")
                continue
            self.tokens += 1
            piece = self._pieces.add(token)
            if self.tokens == self._limit:
                piece += self._pieces.rest()
            if self._pieces.stopped or self.tokens == self._limit:
                self._finish("stop" if self._pieces.stopped else "length")
        piece = piece or ("" if self.finished == "closed" else self._pieces.rest())
        if not piece:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Cancel: no further token is computed, and the caches are freed."""
        if self.finished is None:
            self._finish("closed")

    def _finish(self, why: str) -> None:
        self.finished = why
        self._turns.leave(self)

    def _add(self, logits: np.ndarray, seconds: float) -> None:
        """Take the logits of a step, which are those of the next token if nothing is left to be read."""
        if self._is_prompt:
            self.prompt_seconds += seconds
        else:
            self.steps, self.step_seconds = self.steps + 1, self.step_seconds + seconds
        if self._conversation.unread:
            return
        self._is_prompt = False
        token = self._choose(logits)
        self._left -= 1
        self._ready.append(token)
        self._conversation.unread.append(token)
        self._is_over = self._is_over or token in self._ends or not self._left
        self._keeps_up = len(self._ready) < _AHEAD

    def _fail(self, error: Exception) -> None:
        """There is no further token, for this reason."""
        self._ready.append(error)
        self._is_over = True


class Turns:
    """The texts that are open; any number of threads read them. ``most``: texts of one step."""

    def __init__(self, decoder: Decoder, most: int) -> None:
        self._decoder, self._most = decoder, most
        self._changed = threading.Condition()
        self._is_busy = False
        self._texts: list[weakref.ref[TextStream]] = []  # a stream that nobody holds any more is over

    def token(self, text: TextStream) -> int:
        """The next token of a text.

        Raises
        ------
        InputError
            As the model does, or if there is no token to be chosen.
        """
        while not text._ready:
            with self._changed:
                self._changed.wait_for(lambda: text._ready or not self._is_busy)
                if text._ready:
                    break
                self._is_busy = True
                if text not in self._open():
                    self._texts.append(weakref.ref(text))
                texts = self._open()
            try:
                self._turn(text, texts)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._tidy()
                    self._changed.notify_all()
        token = text._ready.popleft()
        text._keeps_up = text._keeps_up or not text._ready
        if isinstance(token, Exception):
            raise token
        return token

    def leave(self, text: TextStream) -> None:
        """No token of this text is needed any more."""
        text._is_over = text._conversation.is_over = True
        with self._changed:
            if not self._is_busy:
                self._tidy()

    def _open(self) -> list[TextStream]:
        """In the order in which they came."""
        return [text for of in self._texts if (text := of()) is not None and not text._is_over]

    def _tidy(self) -> None:
        texts = self._open()
        self._texts = list(map(weakref.ref, texts))
        if not texts:
            self._decoder.caches.clear()

    def _turn(self, own: TextStream, texts: Sequence[TextStream]) -> None:
        """A block of the first prompt that is not read, and then a step, if this text needs one."""
        needs_step = not own._is_prompt
        if (prompt := next((text for text in texts if text._is_prompt), None)) is not None:
            self._advance([prompt])
            texts = [text for text in texts if text is not prompt]
        if not needs_step:
            return
        others = [text for text in texts if text is not own and text._keeps_up and not text._is_prompt]
        if others and not self._decoder.joins:
            others = []
        chosen = {id(text) for text in (own, *others[: self._most - 1])}
        self._advance([text for text in texts if id(text) in chosen])

    def _advance(self, texts: Sequence[TextStream]) -> None:
        started = time.perf_counter()
        try:
            rows = self._decoder.read([text._conversation for text in texts])
        except Exception as error:  # whoever computes the step, it is the error of those who have part in it
            for text in texts:
                text._fail(error)
            return
        seconds = time.perf_counter() - started
        for text, logits in zip(texts, rows, strict=True):
            try:
                text._add(logits, seconds)
            except InputError as error:  # there is no token to be chosen
                text._fail(error)
