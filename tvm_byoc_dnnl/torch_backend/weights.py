"""Whether weights are still the ones that a model was compiled with."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

_version, _place = operator.attrgetter("_version"), operator.methodcaller("data_ptr")
_SAMPLES = 16  # of one weight; an optimiser, `load_state_dict` or a scaling changes each of them


class Watch:
    """Remembers weights, to recognise others, and changes of these in place.

    PyTorch counts writes to a tensor, but not those through ``tensor.data``. So a few values of each weight are
    compared as well, and a change of other single values through ``.data`` stays unseen.

    Parameters
    ----------
    weights : sequence of torch.Tensor
        Parameters and buffers.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = list(weights)
        self._places = list(map(_place, weights))
        self._counting = [w for w in weights if not w.is_inference()]  # PyTorch counts no writes to the others
        self._versions = list(map(_version, self._counting))
        self._samples = [_sample(w) for w in weights]
        self._values = [sample() for sample in self._samples]

    def same(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether these are the same tensors, with the same values as far as can be seen quickly."""
        return (
            all(map(operator.is_, weights, self._weights))
            and list(map(_place, weights)) == self._places
            and list(map(_version, self._counting)) == self._versions
            and [sample() for sample in self._samples] == self._values
        )


def _sample(tensor: torch.Tensor) -> Callable[[], bytes]:
    """Reads some values of a tensor; of one whose memory has gaps, none."""
    flat = _flat(tensor.detach())
    if flat is None or not flat.numel():
        return bytes
    return flat[:: -(-flat.numel() // _SAMPLES)].numpy().tobytes


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """All of a tensor's values in the order of memory, without a copy, as integers where NumPy lacks their type."""
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return None
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.int16) if tensor.dtype == torch.bfloat16 else flat
