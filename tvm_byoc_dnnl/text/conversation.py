"""A compiled decoder, called step by step: the caches that a step gives are inputs of the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..core.errors import InputError
from ..ir.signature import TensorInfo
from ..runtime.runner import Runner
from .folder import Folder

#: tokens of a prompt that are computed at once: the logits of all of them are in memory
_BLOCK = 512


class Decoder:
    """A compiled model of a folder.

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
        self._caches = {past: present for past, present in folder.caches.items() if past in inputs}
        missing = [n for n in (roles["input_ids"], self._logits, *self._caches.values()) if n not in inputs | outputs]
        unknown = [name for name in inputs if name not in {*roles.values(), *self._caches}]
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
        self._empty = {past: _empty(inputs[past], outputs[present], folder) for past, present in self._caches.items()}

    def conversation(self) -> Callable[[Sequence[int]], np.ndarray]:
        """A function that reads further tokens and gives the logits [vocabulary] behind the last of them."""
        caches, length = dict(self._empty), 0

        def read(tokens: Sequence[int]) -> np.ndarray:
            nonlocal caches, length
            for start in range(0, len(tokens), _BLOCK):
                ids = np.array([tokens[start : start + _BLOCK]], "int64")
                before, length = length, length + ids.shape[1]
                roles = {
                    "input_ids": ids,
                    "attention_mask": np.ones((1, length), "int64"),
                    "position_ids": np.arange(before, length)[None],
                }
                feeds = {i.name: roles[role].astype(i.dtype, copy=False) for role, i in self._inputs.items()}
                results = self._runner.named(feeds | caches)
                caches = {past: results[present] for past, present in self._caches.items()}
            return np.asarray(results[self._logits][0, -1])

        return read


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
