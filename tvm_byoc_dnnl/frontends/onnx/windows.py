"""Models that the ONNX standard forbids, but TVM's importer would accept, are refused, as ONNX Runtime refuses them.

Neither ONNX's checker nor its strict shape inference is used, since both refuse models that ONNX Runtime runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .value import Node

__all__ = ["check_windows"]

_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
_POOLS = ("AveragePool", "LpPool", "MaxPool", "MaxUnpool")
_WINDOWS = frozenset({*_CONVOLUTIONS, *_POOLS})
#: where the weights are among the inputs
_WEIGHTS = {"QLinearConv": 3}
#: attribute → its least value, numbers per spatial axis
_WINDOW = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 2)}


def check_windows(node: Node) -> None:
    """Raise an `InputError` for a convolution or a pooling that the standard forbids."""
    if node.domain == "" and node.op in _WINDOWS:
        for problem in _problems(node):
            raise node.wrong(problem)


def _problems(node: Node) -> Iterator[str]:
    attrs = node.attrs
    kernel = attrs.get("kernel_shape")
    if kernel is None and node.op in _POOLS:
        yield "has no attribute kernel_shape"
        return
    rank = node.needed(0).rank
    spatial = rank - 2 if rank is not None else None if kernel is None else len(kernel)
    for name, (least, per_axis) in _WINDOW.items():
        values = attrs.get(name)
        if values is None:
            continue
        if min(values, default=least) < least:
            yield f"has {name} {list(values)}; expected numbers from {least} on"
        if spatial is not None and len(values) != per_axis * spatial:
            yield f"has {name} {list(values)}; expected {per_axis * spatial} numbers for {spatial} spatial axes"
    if kernel is not None and node.op in _POOLS:
        yield from _empty_windows(attrs, kernel)
    elif kernel is not None:
        weights = node.needed(_WEIGHTS.get(node.op, 1)).dims
        wanted = None if weights is None else weights[2:]
        if wanted is not None and any(isinstance(w, int) and w != k for w, k in zip(wanted, kernel, strict=False)):
            yield f"has kernel_shape {list(kernel)}; its weights have {list(wanted)}"


def _empty_windows(attrs: dict[str, Any], kernel: Sequence[int]) -> Iterator[str]:
    if attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return  # pads are not looked at
    pads, dilations = attrs.get("pads", []), attrs.get("dilations", [1] * len(kernel))
    for pad, size, step in zip(pads, [*kernel] * 2, [*dilations] * 2, strict=False):
        if pad >= (size - 1) * step + 1:
            wrong = f"has pads {list(pads)} for windows of {list(kernel)}"
            yield f"{wrong}; expected less, or a window would see padding alone"
