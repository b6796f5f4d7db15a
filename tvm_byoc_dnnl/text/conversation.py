"""A compiled decoder, called step by step: the caches that a step gives are inputs of the next."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ..core.errors import ByocError, InputError
from ..core.tensor_info import TensorInfo
from ..runtime.runner import Runner
from .folder import Folder

__all__ = ["Conversation", "Decoder"]

#: tokens of a prompt that are computed at once: what is computed of all of them is in memory
_BLOCK = 512
#: of logits: a part of the largest one, by which those of a step of two may differ from those of a step of one
_TOLERANCE = 1e-2


class Conversation:
    """Tokens that a decoder has read, or is to read.

    Attributes
    ----------
    unread : list of int
        Tokens that come next.
    length : int
        The number of those that were read.
    caches : dict
        Name of the input → what the decoder keeps of them; only while it has no part in the batch.
    """

    def __init__(self, unread: Iterable[int]) -> None:
        self.unread, self.length = list(unread), 0
        self.caches: dict[str, np.ndarray] = {}


class Decoder:
    """A compiled model of a folder; for one thread at a time.

    Raises
    ------
    InputError
        If the model has other inputs or outputs than the folder says, or logits for fewer tokens than the tokenizer
        has.
    """

    def __init__(self, folder: Folder, runner: Runner) -> None:
        self._runner = runner
        inputs, outputs = ({i.name: i for i in infos} for infos in (runner.inputs, runner.outputs))
        roles = {role: folder.inputs[role] for role in ("input_ids", "attention_mask", "position_ids")}
        self._inputs = {role: inputs[name] for role, name in roles.items() if name in inputs}
        self._logits = folder.outputs["logits"]
        self._pairs = {past: present for past, present in folder.caches.items() if past in inputs}
        missing = [n for n in (roles["input_ids"], self._logits, *self._pairs.values()) if n not in inputs | outputs]
        unknown = [name for name in inputs if name not in {*roles.values(), *self._pairs}]
        if missing or unknown:
            what = f"has no {missing[0]!r}" if missing else f"needs {unknown[0]!r}"
            raise InputError(
                f"{folder.model} {what}, which does not fit the folder's genai_config.json; expected a decoder of text "
                "whose caches are named there"
            )
        size = (outputs[self._logits].shape or (None,))[-1]
        logits = size if isinstance(size, int) else folder.vocabulary
        largest = max(folder.tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if logits is not None and largest >= logits:
            raise InputError(
                f"the tokenizer does not fit {folder.model}: it has the token {largest}, and the model logits for "
                f"{logits} tokens; take the tokenizer.json of the same model"
            )
        self._empty = {past: _empty(inputs[past], outputs[present], folder) for past, present in self._pairs.items()}
        self._batch: list[Conversation] = []  # of the last step of several
        self._caches: dict[str, np.ndarray] = {}  # of all of them

    def read(self, conversations: list[Conversation]) -> np.ndarray:
        """Read further tokens; gives the logits [conversation, vocabulary] behind the last of these.

        Parameters
        ----------
        conversations : list of Conversation
            One, of which at most a block is read; or several with one token each.
        """
        ids = np.array([c.unread[:_BLOCK] for c in conversations], "int64")
        rows = ids.shape[1]
        before = np.array([[c.length] for c in conversations])
        roles = {
            "input_ids": ids,
            "attention_mask": (np.arange(before.max() + rows) < before + rows).astype("int64"),
            "position_ids": before + np.arange(rows),
        }
        feeds = {i.name: roles[role].astype(i.dtype, copy=False) for role, i in self._inputs.items()}
        results = self._runner.named(feeds | self._gathered(conversations))
        caches = {past: results[present] for past, present in self._pairs.items()}
        if self._batch == conversations:
            self._caches = caches
        else:
            conversations[0].caches = caches
        for c in conversations:
            c.length += rows
            del c.unread[:rows]
        return np.asarray(results[self._logits][:, -1])

    def _gathered(self, conversations: list[Conversation]) -> dict[str, np.ndarray]:
        """Their caches. The batch stays as it is while one that has no part in it reads its prompt."""
        first, *others = conversations
        if self._batch != conversations and (others or first in self._batch):
            self.forget()
            if others:
                own = [c.caches or self._empty for c in conversations]
                self._caches = {past: _stacked([caches[past] for caches in own]) for past in self._empty}
                self._batch = [*conversations]
                for c in conversations:
                    c.caches = {}
        return self._caches if self._batch == conversations else first.caches or self._empty

    def forget(self) -> None:
        """There is no batch: each conversation has its own part of the caches."""
        for row, c in enumerate(self._batch):
            c.caches = {past: self._part(past, a, row, c.length) for past, a in self._caches.items()}
        self._batch, self._caches = [], {}

    def _part(self, past: str, cache: np.ndarray, row: int, length: int) -> np.ndarray:
        """What one sequence has of a cache."""
        grown = [slice(None if size else length) for size in self._empty[past].shape[1:]]
        place = (slice(row, row + 1), *grown)
        return cache[place]

    @functools.cached_property
    def joins(self) -> bool:
        """Whether sequences of different lengths may share a step: each of two has the logits that it has alone."""

        def read(tokens: Sequence[int]) -> Conversation:
            made = Conversation(tokens)
            self.read([made])
            made.unread.append(2)
            return made

        prompts = [1], [0, 1]
        try:
            alone = np.concatenate([self.read([read(tokens)]) for tokens in prompts])
            together = self.read([read(tokens) for tokens in prompts])
        except ByocError:  # a model of one sequence
            return False
        finally:
            self.forget()
        return bool(np.abs(together - alone).max() <= _TOLERANCE * np.abs(alone).max())


def _stacked(caches: Sequence[np.ndarray]) -> np.ndarray:
    """The caches of several sequences; rows that some have more of are 0 in the others."""
    sizes = [max(of) for of in zip(*(c.shape[1:] for c in caches), strict=True)]
    made = np.zeros([len(caches), *sizes], caches[0].dtype)
    for row, cache in zip(made, caches, strict=True):
        row[tuple(map(slice, cache.shape[1:]))] = cache[0]
    return made


def _empty(past: TensorInfo, present: TensorInfo, folder: Folder) -> np.ndarray:
    """A cache before the first token: no rows; where it slides, as many as its window has."""
    shape: list[int | str] = list(past.shape or ())
    if shape:
        shape[0] = 1
    for axis, dim in enumerate(shape):
        if isinstance(dim, int):
            continue
        behind = present.shape[axis] if present.shape is not None else None
        if axis < len(shape) - 1:
            size = (folder.window or folder.context) if behind == dim else 0
        elif isinstance(behind, int):
            size = behind
        elif folder.head_size is not None:
            size = folder.head_size
        else:
            raise InputError(f"{folder.model}: the head size of {past} is open; expected model.decoder.head_size")
        shape[axis] = size
    return np.zeros([int(dim) for dim in shape], past.dtype)
