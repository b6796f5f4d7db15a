"""Pad: Relax's operator where it is one, else a function of our own that reads no element beyond the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ..dim import Dim, Size
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .computed import asked, computed

__all__ = ["padded"]

#: mode of ONNX → Relax's
_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


@operator("Pad")
def _pad(e: Emit, node: Node, data: Value, *, mode: str = "constant", value: float = 0.0) -> Any:
    if mode not in _MODES:
        raise node.wrong(f"has the mode {mode}; expected {', '.join(_MODES)}")
    rank = len(data.sizes)
    axes = node.ints(3, "axes")
    along = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    widths = _widths(e, node, 2 * len(along))
    before: list[Any] = [0] * rank
    after: list[Any] = [0] * rank
    for axis, b, a in zip(along, widths, widths[len(along) :], strict=False):
        before[axis], after[axis] = b, a
    fill = node.input(2)
    if fill is None:
        fill = e.const(value, data.dtype)
    return padded(e, data, before, after, mode, fill)


def _widths(e: Emit, node: Node, count: int) -> list[Any]:
    given = node.attr("paddings") if node.opset < 2 else node.attr("pads")
    if given is not None:
        return list(given)
    value = node.needed(1)
    known = value.known
    return asked(e, value, [f"pad{i}" for i in range(count)]) if known is None else list(known.reshape(-1).tolist())


def padded(
    e: Emit,
    data: Value,
    before: Sequence[Size],
    after: Sequence[Size],
    mode: str = "constant",
    fill: Value | None = None,
) -> Value:
    """A value with more elements around it, or fewer where widths are below 0."""
    fill = e.const(0, data.dtype) if fill is None else fill
    number = fill.known
    is_plain = all(isinstance(w, int) and w >= 0 for w in (*before, *after))
    if not any(isinstance(w, Dim) or w for w in (*before, *after)):
        return data
    widths = [w for pair in zip(before, after, strict=True) for w in pair]
    if mode == "constant" and is_plain and number is not None and _says(number, data.dtype):
        return e.pad(data, pad_width=widths, pad_mode="constant", pad_value=float(number.reshape(())))
    if mode != "constant" and is_plain and data.dtype != "bool":  # the call finds too few elements to repeat
        return e.pad(data, pad_width=widths, pad_mode=_MODES[mode])
    sizes = [n + b + a for n, b, a in zip(data.sizes, before, after, strict=True)]
    fill = e.reshape(e.cast(fill, data.dtype), [])
    made: Value = computed(e, "pad", _around(mode), data, fill, list(before), list(after), sizes)
    return made


def _says(number: np.ndarray, dtype: str) -> bool:
    """Whether the attribute of Relax's operator, a float64, says a number of a dtype."""
    return dtype != "bool" and float(number.reshape(())) == number.reshape(()) and number.size == 1


def _around(mode: str) -> Callable[..., Any]:
    def compute(x: Any, fill: Any, before: Any, after: Any, sizes: Any) -> Any:
        def element(*index: Any) -> Any:
            places = [i - b for i, b in zip(index, before, strict=True)]
            if mode == "constant":
                inside = [t for p, n in zip(places, x.shape, strict=True) for t in (p >= 0, p < n)]
                return tirx.if_then_else(tirx.all(*inside), x(*places), fill())
            # what widths below 0 cut is not read, neither here nor on the other side
            first = [tirx.max(-b, 0) for b in before]
            last = [n - 1 - tirx.max(-a, 0) for n, a in zip(x.shape, after, strict=True)]
            return x(*(_PLACES[mode](p, f, q) for p, f, q in zip(places, first, last, strict=True)))

        return te.compute(tuple(sizes), element, name="pad")

    return compute


def _reflected(place: Any, first: Any, last: Any) -> Any:
    period = tirx.max(2 * (last - first), 1)
    rest = tirx.floormod(place - first, period)
    return tirx.min(first + tirx.min(rest, period - rest), tirx.max(last, first))


_PLACES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "edge": lambda place, first, last: tirx.max(tirx.min(place, last), first),
    "reflect": _reflected,
    "wrap": lambda place, first, last: first + tirx.floormod(place - first, tirx.max(last - first + 1, 1)),
}
