"""Shape operators: views where the layout allows, else one copy; they keep a region whole."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...builder import GraphBuilder, Value
from ...registry import register_lowering
from ...verdict import Reject, require
from .common import ints, require_float

__all__: list[str] = []

_RESHAPES = [
    "relax.reshape",
    "relax.flatten",
    "relax.squeeze",
    "relax.expand_dims",
    "relax.nn.batch_flatten",
]


@register_lowering("dnnl", _RESHAPES)
def reshape(g: GraphBuilder, call: Any) -> Value:
    """Same elements, another shape."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    return g.emit("reshape", [src], g.shape_of(call.ty))


@register_lowering("dnnl", "relax.permute_dims")
def permute(g: GraphBuilder, call: Any) -> Value:
    """Axes in another order; without ``axes`` they are reversed."""
    src, axes = g.value(call.args[0]), call.attrs.axes
    require_float(call.op.name, src)
    order = [a % src.ndim for a in ints(axes)] if axes is not None else list(reversed(range(src.ndim)))
    return g.emit("permute", [src], [src.shape[a] for a in order], axes=order)


@register_lowering("dnnl", "relax.broadcast_to")
def broadcast(g: GraphBuilder, call: Any) -> Value:
    """Repeat along axes of size 1."""
    src, shape = g.value(call.args[0]), g.shape_of(call.ty)
    require_float(call.op.name, src)
    return g.emit("expand", [g.reshape(src, (1,) * (len(shape) - src.ndim) + src.shape)], shape)


@register_lowering("dnnl", "relax.concat")
def concat(g: GraphBuilder, call: Any) -> Value:
    """Tensors one behind the other along one axis."""
    parts = g.values(call.args[0])
    require(isinstance(parts, tuple) and bool(parts), "concat of something that is not a tuple of tensors")
    require_float(call.op.name, *parts)
    axis = call.attrs.axis
    if axis is None:
        return Reject("concat without an axis flattens its inputs")  # type: ignore[return-value]
    return g.emit("concat", parts, g.shape_of(call.ty), axis=int(axis) % parts[0].ndim)


@register_lowering("dnnl", "relax.split")
def split(g: GraphBuilder, call: Any) -> tuple[Value, ...]:
    """Consecutive slices along one axis."""
    src, axis = g.value(call.args[0]), int(call.attrs.axis)
    require_float(call.op.name, src)
    axis %= src.ndim
    require(isinstance(src.shape[axis], int), f"split of the symbolic axis {src.shape[axis]}")
    parts, begin = [], 0
    for field in call.ty.fields:
        shape = g.shape_of(field)
        begins = [begin if i == axis else 0 for i in range(src.ndim)]
        parts.append(g.emit("slice", [src], shape, begin=begins, steps=[1] * src.ndim))
        size = shape[axis]
        assert isinstance(size, int)
        begin += size
    return tuple(parts)


@register_lowering("dnnl", "relax.strided_slice")
def strided_slice(g: GraphBuilder, call: Any) -> Value:
    """Slices with constant bounds and positive steps."""
    src, shape = g.value(call.args[0]), g.shape_of(call.ty)
    require_float(call.op.name, src)
    axes, begins = (_int_tuple(a) for a in call.args[1:3])
    steps = _int_tuple(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    begin, step = [0] * src.ndim, [1] * src.ndim
    for axis, b, s in zip(axes, begins, steps, strict=True):
        size = src.shape[axis]
        require(s >= 1, f"strided_slice with step {s}")
        require(isinstance(size, int), f"strided_slice of the symbolic axis {size}")
        assert isinstance(size, int)
        begin[axis] = min(max(b + size if b < 0 else b, 0), size)
        step[axis] = s
    return g.emit("slice", [src], shape, begin=begin, steps=step)


def _int_tuple(expr: Any) -> list[int]:
    if not isinstance(expr, relax.Tuple):
        raise Reject("strided_slice with bounds that are not constant")
    values = [getattr(f, "value", f) for f in expr.fields]
    values = [getattr(v, "value", v) for v in values]
    if not all(isinstance(v, int) for v in values):
        raise Reject("strided_slice with bounds that are not constant")
    return values


@register_lowering("dnnl", "relax.nn.pad")
def pad(g: GraphBuilder, call: Any) -> Value:
    """Padding with a constant."""
    src, attrs = g.value(call.args[0]), call.attrs
    require_float(call.op.name, src)
    require(str(attrs.pad_mode) == "constant", f"pad_mode {attrs.pad_mode}; only constant padding is taken")
    widths = ints(attrs.pad_width)
    require(min(widths) >= 0, f"negative padding {widths}")
    return g.emit(
        "pad",
        [src],
        g.shape_of(call.ty),
        pad_begin=widths[::2],
        pad_end=widths[1::2],
        value=float(attrs.pad_value),
    )
