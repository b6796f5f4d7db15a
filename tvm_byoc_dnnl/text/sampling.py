"""Which token comes next; and tokens to text while they come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import InputError, InputValueError

#: with it, or one over it, no logit of float32 overflows in float64
_MOST_PENALTY = 1e30


class Sampling:
    """Chooses tokens: the one of the largest logit, or one that is drawn.

    ``temperature``, ``top_k``, ``top_p``, ``seed``, ``repetition_penalty``: as for `TextGenerator.generate`.
    ``defaults``: ``do_sample``, and the numbers where an argument is ``None``. ``before``: the tokens of the prompt.
    Raises `InputError` if a number is out of its range.
    """

    def __init__(
        self,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        seed: int | None,
        defaults: Mapping[str, Any],
        repetition_penalty: float | None = None,
        before: Sequence[int] = (),
    ) -> None:
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        draws = defaults["do_sample"] or any(value is not None for value in given.values())
        given["repetition_penalty"] = repetition_penalty
        numbers = {name: defaults[name] if value is None else value for name, value in given.items()}
        self._temperature = _checked("temperature", numbers["temperature"], "a number from 0 on", math.inf)
        self._top_k = int(_checked("top_k", numbers["top_k"], "an integer from 0 on", math.inf, whole=True))
        self._top_p = _checked("top_p", numbers["top_p"], "a number above 0, up to 1", 1.0, least=math.ulp(0.0))
        penalty = numbers["repetition_penalty"]
        expected = f"a number above 0, from {1 / _MOST_PENALTY:g} to {_MOST_PENALTY:g}"
        self._penalty = _checked("repetition_penalty", penalty, expected, _MOST_PENALTY, least=1 / _MOST_PENALTY)
        if seed is not None:
            _checked("seed", seed, "an integer from 0 on, or None", math.inf, whole=True)
        self._greedy = not draws or self._temperature == 0 or self._top_k == 1
        self._random = np.random.default_rng(seed)
        self._seen = set(before)

    def __call__(self, logits: np.ndarray) -> int:
        """The token for the logits of a position, [vocabulary]."""
        token = self._chosen(self._penalised(logits))
        self._seen.add(token)
        return token

    def _penalised(self, logits: np.ndarray) -> np.ndarray:
        """The logits of tokens that were there before are smaller (Keskar et al., CTRL, 2019, section 4.1)."""
        if self._penalty == 1 or not self._seen:
            return logits
        row, seen = np.array(logits, "float64"), list(self._seen)
        row[seen] = np.where(row[seen] < 0, row[seen] * self._penalty, row[seen] / self._penalty)
        return row

    def _chosen(self, logits: np.ndarray) -> int:
        likeliest = int(np.argmax(logits))  # the first NaN, if there is one
        best = float(logits[likeliest])
        if not math.isfinite(best):
            raise InputValueError(f"the largest logit is {best}: the model's weights or its precision are at fault")
        if self._greedy:
            return likeliest
        row = np.asarray(logits, "float64")
        tokens = np.arange(row.size)
        if 0 < self._top_k < row.size:
            tokens = np.argpartition(-row, self._top_k - 1)[: self._top_k]
        if self._top_p < 1:
            tokens = tokens[np.argsort(-row[tokens], kind="stable")]
        with np.errstate(over="ignore"):  # of a temperature near 0, which leaves the likeliest token
            shares = np.exp((row[tokens] - best) / self._temperature).cumsum()
        # the first tokens whose probabilities together reach top_p: at least one
        shares = shares[: int(np.searchsorted(shares, self._top_p * shares[-1])) + 1]
        drawn = int(np.searchsorted(shares, self._random.random() * shares[-1], side="right"))
        return int(tokens[min(drawn, shares.size - 1)])


def _checked(name: str, value: Any, expected: str, most: float, *, whole: bool = False, least: float = 0.0) -> float:
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    is_number = not isinstance(value, bool) and isinstance(value, kinds)
    if not is_number or not least <= value <= most or value == math.inf:
        raise InputError(f"{name} is {value!r}; expected {expected}")
    return value


_UNKNOWN = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet
_MOST_OPEN = 3  # bytes of a character that is not complete


class Pieces:
    """The text behind a prompt.

    ``prompt``: the tokens before: a decoder may drop a space at the beginning of what it is
    given. ``stops``: the text ends before the first of them.
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
        """What was held back, at the end; nothing if it is asked for again."""
        if self.stopped:
            return ""
        text = self._decode(self._ids)
        self._held += text[self._given :]
        self._given = len(text)
        piece = self._before_stop()
        if not self.stopped:
            piece, self._held = piece + self._held, ""
        return piece

    def _before_stop(self) -> str:
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            return self._held[: min(places)]
        held = max((n for s in self._stops for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        end = len(self._held) - held
        piece, self._held = self._held[:end], self._held[end:]
        return piece
