"""Operations that change nothing, broadcasts that the reading operator would do anyway, and zero padding that the
convolution or the average pooling behind it can do.

    x                                 x
    |                                 |
    pad(before, after, 0)             |
    |                       ──>       |
    conv(padding p)                   conv(padding p + before, p + after)
    avg_pool(padding p)               avg_pool(the same, counting the padding)

Left alone when the padding is not of zeros or not of the spatial axes alone, when another call reads the padded tensor,
and for an average that rounds its shape up or that has padding of its own which it does not count. A max_pool takes
padding that never wins: that is a pattern of the backend that says so.

What TVM's own importer of ONNX writes although Relax has an operator for it: for modules that users import with it.

Clip and Pad (and ``auto_pad``) become ``call_tir`` of functions that *look* like a known operator. The name of a
function is not trusted: its only store says which operator it should be, the function is generated again from that, and
the two must be structurally equal.

Sum, Max, Min and Mean of several tensors become ``broadcast_to`` of each, ``stack``, then a reduction of the new axis,
as ``torch.stack([a, b]).sum(0)`` does: three copies of everything, and nothing that a backend could fuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, tirx, topi

from ..core.tvm_fast import items
from ..ir.relax_utils import RESHAPES, equal_dims, with_attributes
from ..ir.tvm_compat import analyzer
from .rewrite import Rule, Rules, Scope


def _same_type(scope: Scope, call: Any) -> Any:
    data = call.args[0]
    return data if scope.same_shape(data, call) and scope.dtype(data) == scope.dtype(call) else None


def _whole_slice(scope: Scope, call: Any) -> Any:
    strides = call.args[4].fields if len(call.args) > 4 else ()
    return _same_type(scope, call) if all(getattr(s, "value", None) == 1 for s in strides) else None


def _view_of_view(scope: Scope, call: Any) -> Any:
    inner = scope.call(call.args[0], *RESHAPES)
    shape = scope.shape(call)
    return None if inner is None or shape is None else relax.op.reshape(inner.args[0], shape)


def _permute_inside(scope: Scope, call: Any) -> Any:
    """``reshape(permute_dims(reshape(x)))``: leading axes merged, left in place and split again."""
    found = scope.match(call.args[0], ("permute_dims", ("merged:reshape", "x")))
    if found is None:
        return None
    shape, merged, result = map(scope.dims, (found["x"], found["merged"], call))
    if shape is None or merged is None or result is None:
        return None
    axes, lead = axes_of(scope.value(call.args[0]), len(merged)), len(shape) - len(merged) + 1
    if lead < 1 or axes[0] != 0 or not equal_dims(shape[lead:], merged[1:]):
        return None
    wide = [*range(lead), *(a - 1 + lead for a in axes[1:])]
    if not equal_dims(result, [shape[a] for a in wide]) or not scope.only_inside(found.inside, call):
        return None
    return relax.op.permute_dims(found["x"], wide)


def _permute(scope: Scope, call: Any) -> Any:
    data, rank = call.args[0], scope.rank(call)
    if rank < 0:
        return None
    axes = axes_of(call, rank)
    if axes == list(range(rank)):
        return data
    inner = scope.call(data, "relax.permute_dims")
    if inner is None:
        return None
    first = axes_of(inner, rank)
    return relax.op.permute_dims(inner.args[0], [first[a] for a in axes])


def axes_of(call: Any, rank: int) -> list[int]:
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(a) % rank for a in axes]


def _neutral(value: float, either_side: bool) -> Rule:
    """``x op value`` is x, exactly; also the other way round when ``either_side``."""

    def rule(scope: Scope, call: Any) -> Any:
        a, b = items(call.args)
        sides = [(a, b), (b, a)] if either_side else [(a, b)]
        for data, constant in sides:
            if scope.scalar(constant) == value and scope.same_shape(data, call):
                return data
        return None

    return rule


def _zeros(either_side: bool) -> Rule:
    """``x + dequantize(q)`` is x where all of the constant q is the zero point."""

    def rule(scope: Scope, call: Any) -> Any:
        a, b = items(call.args)
        for data, other in [(a, b), (b, a)] if either_side else [(a, b)]:
            dequantize = scope.call(other, "relax.dequantize")
            if dequantize is None or not scope.same_shape(data, call):
                continue
            stored, scale, zero = (scope.const(x) for x in dequantize.args)
            if stored is None or scale is None or zero is None or zero.size != 1 or not np.isfinite(scale).all():
                continue
            if (stored.astype("int64") == int(zero.reshape(-1)[0])).all():
                return data
        return None

    return rule


def _implicit_broadcast(scope: Scope, call: Any) -> Any:
    """``op(x, broadcast_to(y))`` where ``op`` broadcasts y to the same shape by itself."""
    args = items(call.args)
    for i, arg in enumerate(args):
        spread = scope.call(arg, "relax.broadcast_to")
        if spread is not None and scope.same_shape(args[1 - i], call):
            args[i] = spread.args[0]
            return scope.with_args(call, *args)
    return None


def _batched_broadcast(scope: Scope, matmul: Any) -> Any:
    """``matmul(x, broadcast_to(w))``, where the product repeats w for the batches of x by itself."""
    args = items(matmul.args)
    dims = [scope.dims(a) for a in args]
    for i, arg in enumerate(args):
        spread = scope.call(arg, "relax.broadcast_to")
        own = None if spread is None else scope.dims(spread.args[0])
        wide, other = dims[i], dims[1 - i]
        if spread is None or own is None or wide is None or other is None or len(own) < 2:
            continue
        if equal_dims(own[-2:], wide[-2:]) and equal_dims(wide[:-2], other[:-2]):
            args[i] = spread.args[0]
            return scope.with_args(matmul, *args)
    return None


def _batches_apart(scope: Scope, call: Any) -> Any:
    """``reshape(matmul(reshape(a), reshape(b)))``, which merges batch axes only for PyTorch's bmm, as it has one."""
    matmul = scope.call(call.args[0], "relax.matmul")
    if matmul is None or not scope.only_inside([call.args[0]], call):
        return None
    views = [scope.call(a, "relax.reshape") for a in matmul.args]
    if any(v is None for v in views):
        return None
    result = scope.dims(call)
    if result is None or len(result) < 4 or not equal_dims(result[-2:], (scope.dims(matmul) or [])[-2:]):
        return None
    batches, sources = result[:-2], []
    for view in views:
        source, merged = scope.dims(view.args[0]), scope.dims(view) or []
        wanted = [*batches, *merged[-2:]]
        if source is None or len(merged) != 3 or not _has_size(batches, merged[0]):
            return None
        sources.append((view.args[0], wanted, equal_dims(source, wanted)))
    if not any(is_apart for *_, is_apart in sources):
        return None
    # A source may have another shape where its view has taken the place of two, as of heads that are repeated.
    operands = [x if is_apart else scope.emit(relax.op.reshape(x, wanted)) for x, wanted, is_apart in sources]
    return relax.op.matmul(*operands, out_dtype=matmul.attrs.out_dtype or None)


def _has_size(dims: Sequence[Any], size: Any) -> bool:
    """Whether so many batches can be these axes; open sizes are as the view says."""
    known = [size, *dims]
    return not all(isinstance(d, int) for d in known) or math.prod(dims) == size


_MARKED = ("equal", "number", "places")
_ONE_HOT = ("matmul", [("astype", _MARKED), ("where", _MARKED, 1.0, 0.0)], "table")


def _rows_of_table(scope: Scope, call: Any) -> Any:
    """``one_hot(numbers) @ table``: rows of the table, and one of zeros for numbers that are out of range."""
    found = scope.match(call, _ONE_HOT)
    if found is None:
        return None
    table, places, dims = scope.const(found["table"]), scope.const(found["places"]), scope.dims(found["number"])
    if table is None or places is None or dims is None or table.ndim != 2 or len(dims) != places.ndim:
        return None
    depth, dtype = len(table), scope.dtype(found["number"])
    is_one_hot = dims[-1] == 1 and dtype in ("int32", "int64") and places.shape[-1] == depth == places.size
    if not is_one_hot or not (places.reshape(-1) == np.arange(depth)).all() or not np.isfinite(table).all():
        return None  # an infinity times 0 is a NaN
    number = scope.emit(relax.op.reshape(found["number"], dims[:-1]))
    row = scope.emit(relax.op.clip(number, -1, depth))
    row = scope.emit(relax.op.add(row, scope.constant(np.array(1), dtype)))
    return relax.op.take(scope.constant(np.pad(table, ((1, 1), (0, 0)))), row, axis=0, mode="fast")


def _dropout(scope: Scope, item: Any) -> Any:
    call = scope.call(item.tuple_value, "relax.nn.dropout")
    return call.args[0] if call is not None and item.index == 0 else None


def _never_nan(scope: Scope, where: Any) -> Any:
    """``where(isnan(x), y, x)`` of dequantised integers: none of them is NaN."""
    found = scope.match(where, ("where", ("isnan", "real"), "other", ("real:dequantize", "stored", "scale")))
    if found is None or not scope.same_shape(found["real"], where):
        return None
    scale = scope.const(found["scale"])
    return found["real"] if scale is not None and np.isfinite(scale).all() else None


def _single(scope: Scope, call: Any) -> Any:
    fields: list[Any] = list(getattr(call.args[0], "fields", ()))
    return fields[0] if len(fields) == 1 else None


RULES: Rules = {
    "relax.astype": [_same_type],
    "relax.broadcast_to": [_same_type],
    "relax.strided_slice": [_whole_slice],
    **{name: [_same_type, _batches_apart, _view_of_view, _permute_inside] for name in RESHAPES},
    "relax.matmul": [_batched_broadcast, _rows_of_table],
    "relax.permute_dims": [_permute],
    "relax.concat": [_single],
    "relax.add": [_neutral(0.0, True), _zeros(True), _implicit_broadcast],
    "relax.subtract": [_neutral(0.0, False), _zeros(False), _implicit_broadcast],
    "relax.multiply": [_neutral(1.0, True), _implicit_broadcast],
    "relax.divide": [_neutral(1.0, False), _implicit_broadcast],
    "relax.power": [_neutral(1.0, False)],
    "relax.maximum": [_implicit_broadcast],
    "relax.minimum": [_implicit_broadcast],
    "relax.where": [_never_nan],
    "TupleGetItem": [_dropout],
}

_CONVS = tuple(f"relax.nn.conv{d}d" for d in (1, 2, 3))
_POOLS = tuple(f"relax.nn.avg_pool{d}d" for d in (1, 2, 3))


def _zeros_around(scope: Scope, data: Any, layout: str) -> tuple[Any, list[int], list[int]] | None:
    pad = scope.call(data, "relax.nn.pad")
    if pad is None:
        return None
    if scope.uses(data) != 1:
        return scope.miss("padding", "what is padded is read elsewhere, too", at=data)
    if pad.attrs.pad_mode != "constant" or float(pad.attrs.pad_value):
        how = pad.attrs.pad_mode if pad.attrs.pad_mode != "constant" else f"the number {float(pad.attrs.pad_value):g}"
        return scope.miss("padding", f"it pads with {how}, not with zeros", at=data)
    widths = [int(w) for w in pad.attrs.pad_width]
    if len(widths) != 2 * len(layout) or any(w < 0 for w in widths):
        return scope.miss("padding", f"its widths are {widths}", at=data)
    pairs = dict(zip(layout, zip(widths[::2], widths[1::2], strict=True), strict=True))
    if any(sum(pairs[axis]) for axis in layout if axis in "NC"):
        return scope.miss("padding", f"it pads batch or channels: {widths} in {layout}", at=data)
    spatial = [pairs[axis] for axis in layout if axis not in "NC"]
    return pad.args[0], [w[0] for w in spatial], [w[1] for w in spatial]


def _both_sides(padding: Any, rank: int) -> list[int]:
    """Padding as before... after..., from any of the forms that Relax allows."""
    widths = [int(p) for p in padding]
    return widths * (2 * rank // len(widths)) if len(widths) in (1, rank) else widths


def _added(padding: Any, before: list[int], after: list[int]) -> list[int]:
    rank = len(before)
    return [a + b for a, b in zip(_both_sides(padding, rank), before + after, strict=True)]


def _conv(scope: Scope, call: Any) -> Any:
    layout = str(call.attrs.data_layout)
    around = _zeros_around(scope, call.args[0], layout) if layout.isalpha() else None
    if around is None:
        return None
    data, before, after = around
    return with_attributes(call, [data, call.args[1]], padding=_added(call.attrs.padding, before, after))


def _avg_pool(scope: Scope, call: Any) -> Any:
    attrs, layout = call.attrs, str(call.attrs.layout)
    own = any(int(p) for p in attrs.padding)
    around = _zeros_around(scope, call.args[0], layout) if layout.isalpha() else None
    if around is None:
        return None
    if attrs.ceil_mode or (own and not attrs.count_include_pad):
        why = "rounds its shape up" if attrs.ceil_mode else "has padding of its own that it does not count"
        return scope.miss("padding", f"the average {why}", at=call.args[0])
    data, before, after = around
    return with_attributes(call, [data], padding=_added(attrs.padding, before, after), count_include_pad=True)


PADDING: Rules = {**{op: [_conv] for op in _CONVS}, **{op: [_avg_pool] for op in _POOLS}}


def _store(func: Any) -> Any:
    stmt = func.body
    while not isinstance(stmt, tirx.BufferStore):
        if hasattr(stmt, "block"):
            stmt = stmt.block.body
        elif hasattr(stmt, "loop_var"):
            stmt = stmt.body
        else:
            return None
    return stmt


def _same(func: Any, function: Callable[..., Any], types: list[Any], *rest: Any) -> bool:
    """Whether it is what the importer makes of a TE computation on tensors of these types."""
    builder = relax.BlockBuilder()
    call = builder.call_te(function, *(relax.Var(f"p{i}", ty) for i, ty in enumerate(types)), *rest)
    new = builder.get()[call.args[0]]
    if len(func.params) == len(types) + 1:
        return tvm_ffi.structural_equal(func, new)
    # Symbols are parameters too, in the order of a hash table.
    return len(func.params) == len(new.params) and tvm_ffi.structural_equal(func.body, new.body, map_free_vars=True)


def _number(expr: Any) -> Any:
    return expr.value if isinstance(expr, (tirx.IntImm, tirx.FloatImm)) else None


# ---- Clip -------------------------------------------------------------------------------------------

_BOUNDS = {"Max": (topi.maximum, relax.op.maximum), "Min": (topi.minimum, relax.op.minimum)}


def _bound(scope: Scope, func: Any, operands: list[Any]) -> Any:
    kind = type(_store(func).value).__name__
    if kind not in _BOUNDS:
        return None
    make, op = _BOUNDS[kind]
    types = [x.ty for x in operands]
    if len(operands) == 2:
        return op(*operands) if _same(func, make, types) else None
    number = _number(_store(func).value.b)
    if len(operands) != 1 or number is None or not _same(func, make, types, number):
        return None
    return op(operands[0], scope.constant(number, scope.dtype(operands[0])))


# ---- Pad --------------------------------------------------------------------------------------------


def _difference(large: Any, small: Any) -> int:
    """-1 when that is no number."""
    difference = large - small
    number = difference if isinstance(difference, int) else _number(analyzer().simplify(difference))
    return -1 if number is None else int(number)


def _pad(scope: Scope, func: Any, operands: list[Any], result: Any) -> Any:
    store = _store(func)
    value = store.value
    if len(operands) != 1 or not isinstance(value, relax.Call) or len(value.args) != 3:
        return None
    data, filler = operands[0], _number(value.args[2])
    small, large = scope.dims(data), scope.dims(result)
    indices = getattr(value.args[1], "indices", ())
    if filler is None or small is None or large is None or not len(indices) == len(small) == len(large):
        return None
    before = [_difference(to, at) for to, at in zip(store.indices, indices, strict=True)]
    after = [_difference(*dims) - start for dims, start in zip(zip(large, small, strict=True), before, strict=True)]
    if min([*before, *after], default=0) < 0 or not _same(func, topi.nn.pad, [data.ty], before, after, filler):
        return None
    widths = [width for pair in zip(before, after, strict=True) for width in pair]
    return relax.op.nn.pad(data, widths, "constant", filler)


# ---- dispatch ---------------------------------------------------------------------------------------


def _call_tir(scope: Scope, call: Any) -> Any:
    func = scope.module.functions.get(call.args[0])
    if len(call.args) != 2 or func is None or not isinstance(call.args[1], relax.Tuple):
        return None
    store, fields = _store(func), list(call.args[1].fields)
    operands = [x for x in fields if isinstance(x.ty, relax.TensorType)]
    if store is None or not all(isinstance(x, tirx.Var) for x in fields if x not in operands):
        return None
    if type(store.value).__name__ in _BOUNDS:
        return _bound(scope, func, operands)
    return _pad(scope, func, operands, call)


WRITTEN_AS_TIR: Rules = {"relax.call_tir": [_call_tir]}

_CHAIN: dict[str, Callable[[Any, Any], Any]] = {
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}


def _terms(scope: Scope, stacked: Any) -> list[Any]:
    terms = []
    for field in stacked.args[0].fields:
        spread = scope.call(field, "relax.broadcast_to")
        terms.append(field if spread is None else spread.args[0])
    return terms


def _spans(scope: Scope, terms: list[Any], result: Any) -> bool:
    """Whether broadcasting the terms against each other gives the shape of ``result``."""
    if any(scope.same_shape(term, result) for term in terms):
        return True
    shapes: list[Any] = [scope.shape(term) for term in terms]
    return None not in shapes and np.broadcast_shapes(*shapes) == scope.shape(result)


def _chain(scope: Scope, call: Any) -> Any:
    stacked = scope.call(call.args[0], "relax.stack")
    if stacked is None or not isinstance(stacked.args[0], relax.Tuple):
        return None
    stack_axis = 0 if stacked.attrs.axis is None else int(stacked.attrs.axis)
    axes = call.attrs.axis
    if axes is None or [int(a) for a in axes] != [0] or stack_axis != 0 or call.attrs.keepdims:
        return None
    terms = _terms(scope, stacked)
    if not _spans(scope, terms, call):
        return None
    op = _CHAIN[call.op.name]
    total = reduce(lambda a, b: scope.emit(op(a, b)), terms)
    if call.op.name != "relax.mean":
        return total
    return relax.op.divide(total, scope.constant(len(terms), scope.dtype(call)))


VARIADIC: Rules = {op: [_chain] for op in _CHAIN}
