"""Computes of the ops that TVM lowers outside of its legalisers (the sort and scan family), or not at all."""

from __future__ import annotations

from typing import Any

from tvm import te, topi


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
