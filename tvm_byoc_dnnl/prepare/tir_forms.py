"""What TVM's own importer of ONNX writes although Relax has an operator for it: for modules that users import with it.

Clip and Pad (and ``auto_pad``) become ``call_tir`` of functions that *look* like a known operator. The name of a
function is not trusted: its only store says which operator it should be, the function is generated again from that, and
the two must be structurally equal.

Sum, Max, Min and Mean of several tensors become ``broadcast_to`` of each, ``stack``, then a reduction of the new axis,
as ``torch.stack([a, b]).sum(0)`` does: three copies of everything, and nothing that a backend could fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, tirx, topi

from ..ir.tvm_compat import analyzer
from .rewrite import Rules, Scope


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


RULES: Rules = {"relax.call_tir": [_call_tir]}

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
