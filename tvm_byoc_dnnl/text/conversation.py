"""A compiled decoder, called step by step: the caches that a step gives are inputs of the next."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from ..core.errors import ByocError, InputError
from ..core.tensor_info import TensorInfo
from ..runtime.runner import Runner
from .caches import Caches, Conversation
from .folder import Folder

__all__ = ["Decoder"]

#: tokens of a prompt that are computed at once: what is computed of all of them is in memory
_BLOCK = 512
#: of logits: a part of the largest one, by which those of a step of two may differ from those of a step of one
_TOLERANCE = 1e-2


class Decoder:
    """A compiled model of a folder; for one thread at a time.

    Raises `InputError` if the model has other inputs or outputs than the folder says, or logits for fewer tokens than
    the tokenizer has.
    """

    def __init__(self, folder: Folder, runner: Runner) -> None:
        self._runner = runner
        inputs, outputs = ({i.name: i for i in infos} for infos in (runner.inputs, runner.outputs))
        roles = {role: folder.inputs[role] for role in ("input_ids", "attention_mask", "position_ids")}
        self._inputs = {role: inputs[name] for role, name in roles.items() if name in inputs}
        self._logits = folder.outputs["logits"]
        self._pairs = folder.caches(inputs)
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
        if logits is not None and folder.largest >= logits:
            raise InputError(
                f"the tokenizer does not fit {folder.model}: it has the token {folder.largest}, and the model "
                f"logits for {logits} tokens; take the tokenizer.json of the same model"
            )
        empty = {past: _empty(inputs[past], outputs[present], folder) for past, present in self._pairs.items()}
        self.caches = Caches(empty, runner.grown)

    def read(self, conversations: list[Conversation]) -> np.ndarray:
        """Read further tokens; gives the logits [conversation, vocabulary] behind the last of these.

        ``conversations``: one, of which at most a block is read; or several with one token each.
        """
        rows = min(len(conversations[0].unread), _BLOCK)
        group = self.caches.group(conversations, rows)
        members = sorted(conversations, key=lambda c: c.slot)
        before = np.array([[c.length] for c in members])
        roles = {
            "input_ids": np.array([c.unread[:rows] for c in members], "int64"),
            "attention_mask": (np.arange(before.max() + rows) < before + rows).astype("int64"),
            "position_ids": before + np.arange(rows),
        }
        feeds = {i.name: roles[role].astype(i.dtype, copy=False) for role, i in self._inputs.items()}
        results = self._runner.appended(feeds | group.caches)
        group.caches = {past: results[present] for past, present in self._pairs.items()}
        for c in members:
            c.length += rows
            del c.unread[:rows]
        return np.from_dlpack(results[self._logits])[[members.index(c) for c in conversations], -1]

    @functools.cached_property
    def joins(self) -> bool:
        """Whether sequences of different lengths may share a step: each of two has the logits that it has alone."""

        read_ones: list[Conversation] = []

        def read(tokens: Sequence[int]) -> Conversation:
            read_ones.append(made := Conversation(tokens))
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
            for made in read_ones:
                made.is_over = True
        return bool(np.abs(together - alone).max() <= _TOLERANCE * np.abs(alone).max())


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
