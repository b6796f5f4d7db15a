"""Computes of our own: of the ops that TVM lowers outside of its legalisers (the sort and scan family), or not at all;
of normalisations, which are computed in float64 and rounded once (equal numbers have their value as mean, and a large
mean costs nothing); and what a padding by elements of the tensor itself reads.

TVM's own normalisation takes the variance from the mean of the squares, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx, topi


def _sort(attrs: Any, data: te.Tensor) -> te.Tensor:
    return topi.sort(data, attrs.axis, not attrs.descending)


def _argsort(attrs: Any, data: te.Tensor) -> te.Tensor:
    return topi.argsort(data, axis=attrs.axis, is_ascend=not attrs.descending, dtype=attrs.dtype)


def _topk(attrs: Any, data: te.Tensor) -> Any:
    return topi.topk(
        data,
        k=attrs.k,
        axis=attrs.axis,
        ret_type=attrs.ret_type,
        is_ascend=not attrs.largest,
        dtype=attrs.dtype,
    )


def _scan(scan: Any) -> Any:
    def compute(attrs: Any, data: te.Tensor) -> te.Tensor:
        axis = None if attrs.axis is None else int(attrs.axis)
        return scan(data, axis, attrs.dtype, attrs.exclusive)

    return compute


def _pixel_shuffle(attrs: Any, data: te.Tensor) -> te.Tensor:
    """TVM's legaliser calls a TOPI function that does not exist."""
    factor = attrs.upscale_factor
    *batch, channels, height, width = data.shape

    def element(*index: Any) -> Any:
        *lead, c, y, x = index
        channel = (c * factor + y % factor) * factor + x % factor
        return data(*lead, channel, y // factor, x // factor)

    shape = [*batch, channels // (factor * factor), height * factor, width * factor]
    return te.compute(shape, element, name="pixel_shuffle")


# op -> fn(attrs, *args)
BUILTIN: dict[str, Any] = {
    "relax.argsort": _argsort,
    "relax.cumprod": _scan(topi.cumprod),
    "relax.cumsum": _scan(topi.cumsum),
    "relax.nn.pixel_shuffle": _pixel_shuffle,
    "relax.sort": _sort,
    "relax.topk": _topk,
}


def normalized(
    x: te.Tensor,
    axes: Sequence[int],
    epsilon: float,
    scale: Callable[[Sequence[Any]], Any],
    shift: Callable[[Sequence[Any]], Any],
) -> te.Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift``, with statistics over ``axes``.

    Parameters
    ----------
    x : te.Tensor
        Of any shape, float32.
    axes : sequence of int
        Of the numbers that are normalised together.
    epsilon : float
        Added to the variance.
    scale, shift : callable
        The indices of a number → its factor and its summand, expressions of float32.

    Returns
    -------
    te.Tensor
        Of the shape of ``x``, float32.
    """
    kept = [1 if i in axes else size for i, size in enumerate(x.shape)]
    count = tirx.Cast("float64", tirx.const(1, "int64"))
    for axis in axes:
        count = count * tirx.Cast("float64", x.shape[axis])

    def wide(at: Sequence[Any]) -> Any:
        return tirx.Cast("float64", x[tuple(at)])

    def statistic(name: str, of: Callable[[Sequence[Any], Sequence[Any]], Any]) -> te.Tensor:
        inner = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}

        def one(*row: Any) -> Any:
            at = [inner[i].var if i in inner else row[i] for i in range(len(kept))]
            return te.sum(of(at, row), axis=list(inner.values()))

        return te.compute(kept, one, name=name)

    total = statistic("total", lambda at, _: wide(at))

    def centred(at: Sequence[Any], row: Sequence[Any]) -> Any:
        return wide(at) - total[tuple(row)] / count

    squares = statistic("squares", lambda at, row: centred(at, row) * centred(at, row))

    def result(*at: Any) -> Any:
        row = [0 if i in axes else at[i] for i in range(len(kept))]
        deviation = tirx.sqrt(squares[tuple(row)] / count + tirx.const(epsilon, "float64"))
        return tirx.Cast("float32", centred(at, row) / deviation) * scale(at) + shift(at)

    return te.compute(x.shape, result, name="normalized")


def group_normalized(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, groups: int, channel: int, axes: Sequence[int], epsilon: float
) -> te.Tensor:
    """`normalized` over ``axes`` and the channels of each of some groups; ``gamma`` and ``beta`` are per channel."""
    shape = list(x.shape)
    each = tirx.floordiv(shape[channel], groups)
    split = topi.reshape(x, [*shape[:channel], groups, each, *shape[channel + 1 :]])
    moved = [channel + 1, *(axis + (axis > channel) for axis in axes)]

    def of_channel(parameter: te.Tensor) -> Callable[[Sequence[Any]], Any]:
        return lambda at: parameter[at[channel] * each + at[channel + 1]]

    return topi.reshape(normalized(split, moved, epsilon, of_channel(gamma), of_channel(beta)), shape)


#: mode → elements that an axis must have to be padded by so many
_NEEDED = {"reflect": lambda pads: pads + 1, "replicate": lambda pads: 1, "circular": lambda pads: pads}


def least_sizes(attrs: Any) -> list[int]:
    """How many elements each axis must have, by the attributes of ``relax.nn.pad``; empty where it pads by a number."""
    needed = _NEEDED.get(str(attrs.pad_mode))
    if needed is None:
        return []
    widths = [int(width) for width in attrs.pad_width]
    return [needed(max(pair)) if max(pair) > 0 else 0 for pair in zip(widths[::2], widths[1::2], strict=True)]
