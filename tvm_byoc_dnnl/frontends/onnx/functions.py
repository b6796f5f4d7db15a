"""Functions of Relax: made of one dataflow block if that is possible, and with one symbol for dims that are equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from ...core.tvm_fast import is_a, items
from ...ir.relax_utils import shape_dims
from ...ir.signature import NODES_ATTR
from ...ir.tvm_compat import substitute, var_name
from ...ir.walker import Substitute
from .scope import Again, PlainBlocks


def built_function(
    bb: relax.BlockBuilder,
    name: str,
    params: Sequence[relax.Var] | None,
    read: Callable[[bool], tuple[Any, Any, Mapping[str, str]]],
    *,
    private: bool = False,
) -> Any:
    """A new function of a builder's module, by its variable; without ``params`` its body finds them.

    ``read(is_dataflow)`` emits the body, and returns the parameters, the result, and node names by the last variable of
    each. It raises `PlainBlocks` if that cannot be one dataflow block, and `Again` to be asked once more.
    """
    is_dataflow = True
    while True:
        try:
            with bb.function(name, params, private=private):
                with bb.dataflow() if is_dataflow else contextlib.nullcontext():
                    own, result, node_of = read(is_dataflow)
                    result = bb.emit_output(result) if is_dataflow else result
                made = bb.emit_func_output(result, None if params is not None else own)
        except BaseException as error:
            bb._end_block()
            bb.end_scope()
            if not isinstance(error, (Again, PlainBlocks)):
                raise
            is_dataflow = isinstance(error, Again)
        else:
            func = bb.get()[made]
            bb.update_func(made, func.with_attr(NODES_ATTR, _nodes_by_variable(func, node_of)))
            return made


def _nodes_by_variable(func: relax.Function, node_of: Mapping[str, str]) -> dict[str, str]:
    """Variable to node, for every variable of the imported function that comes from a node with a name."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for block in items(func.body.blocks):
        for binding in items(block.bindings):
            name = var_name(binding.var)
            if is_a(binding.value, relax.Var) and var_name(binding.value) in found:
                found[name] = found[var_name(binding.value)]
                continue
            waiting.append(name)
            if name in node_of:
                found.update(dict.fromkeys(waiting, node_of[name]))
                waiting = []
    return {variable: node for variable, node in found.items() if node}


# ---- open dims that must be equal although an exporter names them differently -----------------------------
#
# A decoder adds a mask of length ``total`` to scores of length ``past + new``. The importer writes that as a
# ``match_cast`` where the two meet. Here the mask is compared at once, and all that is made of it has the one length:
# it is then seen that they are the same, and such a comparison no longer divides a region.


def unify_dims(func: relax.Function) -> relax.Function:
    """The function with each dim that must be equal to an expression of inputs' dims written as this.

    The inputs keep their own dims; the body begins with their comparison. A dim that a call computes is compared where
    it is computed.
    """
    free = {dim for param in func.params for dim in _dims(param.ty) if isinstance(dim, tirx.Var)}
    every = _equal(func, free)
    computed = {symbol: value for symbol, value in every.items() if symbol not in free}
    if computed:
        func = Substitute(computed).function(func)
    found = {symbol: value for symbol, value in every.items() if symbol in free}
    if not found:
        return func
    inner = func.bind_symbolic_vars(found)
    params, checks = [], []
    for given, bound in zip(func.params, inner.params, strict=True):
        if any(symbol in found for dim in _dims(given.ty) for symbol in symbols_in(dim)):
            params.append(relax.Var(var_name(given), given.ty))
            checks.append(relax.MatchCast(bound, params[-1], bound.ty))
        else:
            params.append(bound)
    body = relax.SeqExpr([relax.BindingBlock(checks), *inner.body.blocks], inner.body.body)
    return relax.Function(params, body, inner.ret_ty, inner.is_pure, inner.attrs, inner.span)


def _equal(func: relax.Function, free: set[tirx.Var]) -> dict[tirx.Var, Any]:
    """Symbol → the expression of symbols of inputs (``free``) that it is compared with."""
    known: dict[tirx.Var, Any] = {}  # no symbol is in its own expression or in that of another
    for block in items(func.body.blocks):
        for binding in items(block.bindings):
            if not is_a(binding, relax.MatchCast) or not is_a(binding.ty, relax.TensorType):
                continue
            for pair in zip(_dims(binding.value.ty), _dims(binding.ty), strict=False):
                a, b = (dim if isinstance(dim, int) else substitute(dim, known) for dim in pair)
                for symbol, value in ((a, b), (b, a)):
                    if _can_replace(symbol, value, free):
                        known = {s: substitute(v, {symbol: value}) for s, v in known.items()} | {symbol: value}
                        break
    return known


def _can_replace(symbol: Any, value: Any, free: set[tirx.Var]) -> bool:
    within = symbols_in(value)
    return (
        isinstance(symbol, tirx.Var)
        and bool(within)
        and all(other in free and not other.same_as(symbol) for other in within)
    )


def _dims(ty: Any) -> list[Any]:
    return (shape_dims(ty) or []) if isinstance(ty, relax.TensorType) else []


def symbols_in(size: Any) -> list[Any]:
    if isinstance(size, tirx.Var):
        return [size]
    return [s for part in ("a", "b") if hasattr(size, part) for s in symbols_in(getattr(size, part))]
