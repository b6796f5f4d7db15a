"""Shape operators: views where the layout allows, else one copy; they keep a region whole. Channel shuffle, which
Relax writes with three of them.

    reshape (N, a, b, H, W) ── permute_dims (0, 2, 1, 3, 4) ── reshape (N, a·b, H, W)      shuffle

One primitive that reads and writes the layouts of convolutions, where the views would need plain ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_op, wildcard

from ...vendor import Dim, GraphBuilder, Reject, Value, register_lowering, require, static_shape
from .common import FLOATS, Match, ints, movable, pattern, product, require_float, require_movable, size_of

_RESHAPES = [
    "relax.reshape",
    "relax.flatten",
    "relax.squeeze",
    "relax.expand_dims",
    "relax.nn.batch_flatten",
]
#: constant indices become one slice per run of them, up to as many as this
_MAX_SLICES = 8
_INDICES = ("int32", "int64")
#: Relax's mode of `take` → the treatment of an index that is out of range
_MODES = {"fast": "checked", "clip": "clip", "wrap": "wrap"}


@register_lowering("dnnl", _RESHAPES)
def reshape(g: GraphBuilder, call: Any) -> Value:
    """Same elements, another shape."""
    src = movable(g, call)
    shape = g.shape_of(call.ty)
    fixed = all(isinstance(d, int) for d in shape)
    require(src.is_static or not fixed, f"a tensor of symbolic shape {src.shape} as {shape}, which fits one size only")
    return g.emit("reshape", [src], shape)


@register_lowering("dnnl", "relax.permute_dims")
def permute(g: GraphBuilder, call: Any) -> Value:
    """Axes in another order; without ``axes`` they are reversed."""
    src, axes = movable(g, call), call.attrs.axes
    order = [a % src.ndim for a in ints(axes)] if axes is not None else list(reversed(range(src.ndim)))
    return g.emit("permute", [src], [src.shape[a] for a in order], axes=order)


@register_lowering("dnnl", "relax.broadcast_to")
def broadcast(g: GraphBuilder, call: Any) -> Value:
    """Repeat along axes of size 1."""
    src, shape = movable(g, call), g.shape_of(call.ty)
    fits = all(a in (1, b) for a, b in zip(src.shape, shape[len(shape) - src.ndim :], strict=True))
    require(fits, f"a broadcast of {src.shape} to {shape}, which may not fit")
    return g.emit("expand", [g.reshape(src, (1,) * (len(shape) - src.ndim) + src.shape)], shape)


@register_lowering("dnnl", "relax.tile")
def tile(g: GraphBuilder, call: Any) -> Value:
    """The whole tensor again and again along each axis."""
    src, repeats = movable(g, call), ints(call.attrs.repeats)
    rank = max(src.ndim, len(repeats))
    shape = (1,) * (rank - src.ndim) + src.shape
    repeats = [1] * (rank - len(repeats)) + repeats
    return _repeated(g, src, [(1, d) for d in shape], [(r, d) for r, d in zip(repeats, shape, strict=True)])


@register_lowering("dnnl", "relax.repeat")
def repeat(g: GraphBuilder, call: Any) -> Value:
    """Each element several times along one axis; without an axis, of the flattened tensor."""
    src, times, axis = movable(g, call), int(call.attrs.repeats), call.attrs.axis
    if axis is None:
        src, axis = g.reshape(src, (product(src.shape),)), 0
    axis = int(axis) % src.ndim
    again = [times if i == axis else 1 for i in range(src.ndim)]
    return _repeated(g, src, [(d, 1) for d in src.shape], [(d, r) for d, r in zip(src.shape, again, strict=True)])


def _repeated(g: GraphBuilder, src: Value, split: Sequence[tuple[Dim, Dim]], wide: Sequence[tuple[Dim, Dim]]) -> Value:
    """``src`` with each axis split in two, of which one is repeated, and joined again."""
    kept = [i for i, (a, b) in enumerate(zip(split, wide, strict=True)) if a != b]

    def joined(pairs: Sequence[tuple[Dim, Dim]]) -> list[Dim]:
        return [d for i, pair in enumerate(pairs) for d in (pair if i in kept else (product(pair),))]

    expanded = g.emit("expand", [g.reshape(src, joined(split))], joined(wide))
    return g.reshape(expanded, [product(pair) for pair in wide])


def _parts(g: GraphBuilder, call: Any) -> tuple[Value, ...]:
    parts = g.values(call.args[0])
    require(isinstance(parts, tuple) and bool(parts), f"{call.op.name} of something that is not a tuple of tensors")
    require_movable(call.op.name, *parts)
    return parts


@register_lowering("dnnl", "relax.concat")
def concat(g: GraphBuilder, call: Any) -> Value:
    """Tensors joined along one axis; without an axis, flattened ones."""
    parts, axis = _parts(g, call), call.attrs.axis
    if axis is None:
        parts, axis = tuple(g.reshape(p, (product(p.shape),)) for p in parts), 0
    return g.emit("concat", parts, g.shape_of(call.ty), axis=int(axis) % parts[0].ndim)


@register_lowering("dnnl", "relax.stack")
def stack(g: GraphBuilder, call: Any) -> Value:
    """Tensors joined along a new axis."""
    parts, shape = _parts(g, call), g.shape_of(call.ty)
    axis = int(call.attrs.axis or 0) % len(shape)
    slices = [g.reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return g.emit("concat", slices, shape, axis=axis)


@register_lowering("dnnl", "relax.split")
def split(g: GraphBuilder, call: Any) -> tuple[Value, ...]:
    """Consecutive slices along one axis."""
    src, axis = movable(g, call), int(call.attrs.axis)
    axis %= src.ndim
    parts, begin, reason = [], 0, f"split of the symbolic axis {src.shape[axis]}"
    size_of(src.shape[axis], reason)
    for field in call.ty.fields:
        size = size_of(g.shape_of(field)[axis], reason)
        parts.append(slice_axis(g, src, axis, begin, size))
        begin += size
    return tuple(parts)


def slice_axis(g: GraphBuilder, src: Value, axis: int, begin: int, size: Dim, step: int = 1) -> Value:
    """``size`` slices of ``src`` along one axis, ``step`` apart."""
    whole = src.shape[axis]
    if step > 1 and isinstance(size, int) and isinstance(whole, int) and size > 1 and size * step > whole:
        # oneDNN takes a whole step behind the last slice to belong to it, and calls that an overlap.
        last = slice_axis(g, src, axis, begin + (size - 1) * step, 1)
        shape = [size if i == axis else d for i, d in enumerate(src.shape)]
        return g.emit("concat", [slice_axis(g, src, axis, begin, size - 1, step), last], shape, axis=axis)
    shape = [size if i == axis else d for i, d in enumerate(src.shape)]
    begins = [begin if i == axis else 0 for i in range(src.ndim)]
    steps = [step if i == axis else 1 for i in range(src.ndim)]
    return g.emit("slice", [src], shape, begin=begins, steps=steps)


def gather_axis(g: GraphBuilder, src: Value, axis: int, indices: Sequence[int], what: str) -> Value:
    """The slices of ``src`` with these indices along one axis: a slice per run of them."""
    runs = _runs(indices)
    require(
        0 < len(runs) <= _MAX_SLICES,
        f"{what} is {len(runs)} slices; up to {_MAX_SLICES} are taken",
    )
    slices = [slice_axis(g, src, axis, begin, count, step) for begin, count, step in runs]
    shape = [len(indices) if i == axis else d for i, d in enumerate(src.shape)]
    return slices[0] if len(slices) == 1 else g.emit("concat", slices, shape, axis=axis)


def is_long(*tables: Sequence[int]) -> bool:
    """Whether indices in one or more parts are more slices than `gather_axis` takes."""
    return sum(len(_runs(table)) for table in tables) > _MAX_SLICES


def _runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Indices as runs ``(begin, count, step)`` of constant positive step, longest first from the left."""
    runs: list[tuple[int, int, int]] = []
    for index in indices:
        begin, count, step = runs[-1] if runs else (index, 0, 1)
        if count == 1 and index > begin:
            step = index - begin
        if count and index == begin + count * step:
            runs[-1] = (begin, count + 1, step)
        else:
            runs.append((index, 1, 1))
    return runs


@register_lowering("dnnl", "relax.flip")
def flip(g: GraphBuilder, call: Any) -> Value:
    """An axis in reverse order; a long one becomes a `take` first."""
    src = movable(g, call)
    axis = int(call.attrs.axis) % src.ndim
    size = size_of(src.shape[axis], f"flip along the symbolic axis {src.shape[axis]}")
    return gather_axis(g, src, axis, range(size)[::-1], f"an axis of {size} from back to front") if size else src


@register_lowering("dnnl", "relax.strided_slice")
def strided_slice(g: GraphBuilder, call: Any) -> Value:
    """Slices with constant bounds; many of them from back to front become a `take` first."""
    src, shape = movable(g, call), g.shape_of(call.ty)
    axes, begins = (int_tuple(a) for a in call.args[1:3])
    steps = int_tuple(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    out = src
    for axis, begin, step in zip(axes, begins, steps, strict=True):
        axis %= src.ndim
        size, count = src.shape[axis], shape[axis]
        require(step != 0, "strided_slice with step 0")
        if not isinstance(size, int) or not isinstance(count, int):
            raise Reject(f"strided_slice of the symbolic axis {size}")
        begin = begin + size if begin < 0 else begin
        if step > 0:
            out = slice_axis(g, out, axis, min(max(begin, 0), size), count, step)
            continue
        wanted = backwards(size, begin, step, count)
        out = (
            gather_axis(g, out, axis, wanted, f"{count} from back to front")
            if count
            else slice_axis(g, out, axis, 0, 0)
        )
    return out if out is not src else g.reshape(src, shape)


def backwards(size: int, begin: int, step: int, count: int) -> list[int]:
    """The positions of a slice with a negative step."""
    begin = min(begin + size if begin < 0 else begin, size - 1)
    return [begin + i * step for i in range(count)]


def int_tuple(expr: Any) -> list[int]:
    """The numbers of a bound of a slice."""
    if not isinstance(expr, relax.Tuple):
        raise Reject("strided_slice with bounds that are not constant")
    values = [getattr(f, "value", f) for f in expr.fields]
    values = [getattr(v, "value", v) for v in values]
    if not all(isinstance(v, int) for v in values):
        raise Reject("strided_slice with bounds that are not constant")
    return values


@register_lowering("dnnl", "relax.take")
def take(g: GraphBuilder, call: Any) -> Value:
    """Constant indices as slices, where these are few: a row, a range, or a short table; else a gather."""
    src, indices, mode = movable(g, call), g.value(call.args[1]), str(call.attrs.mode)
    require(call.attrs.axis is not None or src.ndim == 1, "take without an axis flattens its input")
    require(mode in _MODES, f"take with mode {mode!r}, which makes numbers of indices that are out of range")
    axis = int(call.attrs.axis or 0) % src.ndim
    size, shape = src.shape[axis], g.shape_of(call.ty)
    if indices.constant is not None and isinstance(size, int):
        wanted = [int(i) for i in indices.constant.reshape(-1)]
        inside = all(0 <= i < size for i in wanted)
        require(inside or mode != "fast", f"take with an index outside of [0, {size})")
        if inside and 0 < len(_runs(wanted)) <= _MAX_SLICES:
            return g.reshape(gather_axis(g, src, axis, wanted, f"a table of {len(wanted)} indices"), shape)
    return _gathered(g, src, indices, axis, _MODES[mode], shape)


@register_lowering("dnnl", "relax.index_tensor")
def index_tensor(g: GraphBuilder, call: Any) -> Value:
    """One tensor of indices, of the first axis; several would be the coordinates of elements."""
    src, indices = movable(g, call), g.values(call.args[1])
    require(len(indices) == 1, f"index_tensor with {len(indices)} tensors of indices; one is taken")
    return _gathered(g, src, indices[0], 0, "checked", g.shape_of(call.ty))


def _gathered(g: GraphBuilder, src: Value, indices: Value, axis: int, alg: str, shape: Sequence[Dim]) -> Value:
    require(indices.dtype in _INDICES, f"indices of dtype {indices.dtype}; {' and '.join(_INDICES)} are taken")
    return g.emit("gather", [src, indices], shape, alg=alg, axis=axis)


@register_lowering("dnnl", "relax.nn.pixel_shuffle")
def pixel_shuffle(g: GraphBuilder, call: Any) -> Value:
    """Channels to positions: ``(…, C·r², H, W)`` to ``(…, C, H·r, W·r)``."""
    src, r = g.value(call.args[0]), int(call.attrs.upscale_factor)
    require_movable(call.op.name, src)
    shape, lead = g.shape_of(call.ty), src.ndim - 3
    apart = g.reshape(src, (*src.shape[:lead], shape[-3], r, r, *src.shape[-2:]))
    order = [*range(lead), *(lead + i for i in (0, 3, 1, 4, 2))]
    return g.reshape(g.permute(apart, order), shape)


@register_lowering("dnnl", "relax.nn.pad")
def pad(g: GraphBuilder, call: Any) -> Value:
    """Padding with a constant, or the tensor's own elements; a wide one with these becomes a `take` first."""
    src, attrs = movable(g, call), call.attrs
    widths, mode = ints(attrs.pad_width), str(attrs.pad_mode)
    require(min(widths, default=0) >= 0, f"negative padding {widths}")
    if mode in PADDED:
        for axis, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
            if before or after:
                src = _padded(g, src, axis, before, after, mode)
        return src
    require(mode == "constant", f"pad_mode {mode}")
    value = float(attrs.pad_value)
    exact = src.dtype in FLOATS or value in ((0, 1) if src.dtype == "bool" else (int(value),))
    require(exact, f"padding with {value:g}, which is no {src.dtype}")
    return g.emit(
        "pad",
        [src],
        g.shape_of(call.ty),
        pad_begin=widths[::2],
        pad_end=widths[1::2],
        value=value,
    )


#: mode of a padding with the tensor's own elements → (position outside of the axis, its size) → position inside of it
PADDED: dict[str, Callable[[int, int], int]] = {
    "reflect": lambda i, n: -i if i < 0 else 2 * (n - 1) - i if i >= n else i,
    "replicate": lambda i, n: min(max(i, 0), n - 1),
    "circular": lambda i, n: i % n,
}


def padded_sides(mode: str, size: int, before: int, after: int) -> tuple[list[int], list[int]] | None:
    """The positions in an axis that a padding repeats at both ends, ``None`` if it is negative or too wide."""
    if min(before, after) < 0 or max(before, after) >= size + (mode != "reflect"):
        return None
    position = PADDED[mode]
    return [position(i, size) for i in range(-before, 0)], [position(i, size) for i in range(size, size + after)]


def _padded(g: GraphBuilder, src: Value, axis: int, before: int, after: int, mode: str) -> Value:
    size = size_of(src.shape[axis], f"{mode} padding along the symbolic axis {src.shape[axis]}")
    sides = padded_sides(mode, size, before, after)
    if sides is None:
        raise Reject(f"{mode} padding {before},{after} of an axis of {size}")
    return gather_axis(g, src, axis, [*sides[0], *range(size), *sides[1]], f"{mode} padding {before},{after}")


def _axis(match: Match) -> int:
    """The axis that is shuffled."""
    before, apart, after = (static_shape(match[key].ty) for key in ("x", "apart", "root"))
    if before is None or apart is None or after is None:
        raise Reject("a shuffle of a symbolic shape")
    require(before == after, f"a shape {before} becomes {after}; a shuffle keeps it")
    axes = match["permute"].attrs.axes
    order = ints(axes) if axes is not None else list(range(len(apart)))[::-1]
    for axis, dim in enumerate(before):
        swapped = list(range(len(apart)))
        swapped[axis : axis + 2] = swapped[axis : axis + 2][::-1]
        split = apart[:axis] == before[:axis] and apart[axis + 2 :] == before[axis + 1 :]
        if order == swapped and split and apart[axis] * apart[axis + 1] == dim:
            return axis
    raise Reject(f"axes {order} of {apart} swap no two parts of one axis of {before}")


def _channel_shuffle(g: GraphBuilder, match: Match) -> Value:
    """Two parts of one axis change places."""
    src, axis = g.value(match["x"]), _axis(match)
    require_float("shuffle", src)
    shape = static_shape(match["apart"].ty)
    assert shape is not None
    return g.emit("shuffle", [src], src.shape, axis=axis, group_size=shape[axis + 1])


def _register() -> None:
    x = wildcard()
    apart = is_op("relax.reshape")(x, wildcard())
    permute = is_op("relax.permute_dims")(apart)
    root = is_op("relax.reshape")(permute, wildcard())
    parts = {"x": x, "apart": apart, "permute": permute}
    pattern("channel_shuffle", root, parts, _channel_shuffle, _shuffle_example, (2, 6, 5, 7))


def _shuffle_example(x: Any) -> Any:
    apart = R.permute_dims(R.reshape(x, (2, 3, 2, 5, 7)), (0, 2, 1, 3, 4))
    return R.reshape(apart, (2, 6, 5, 7))


_register()
