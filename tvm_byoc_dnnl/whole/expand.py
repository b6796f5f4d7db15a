"""Operators that are kept whole become the operators of their definitions, in all functions of the host."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import StructuralKey

from ..core.tvm_fast import ByIdentity, is_a, items
from ..ir.relax_utils import blocks_in, is_host_function, is_op_call, ops_of, static_shape
from ..ir.signature import NODES_ATTR
from ..ir.tvm_compat import is_constant, var_name, with_args
from ..ir.walker import Replace, rewrite_calls_in
from .table import expanded, is_whole

__all__ = ["Expand", "expand", "whole_ops"]

_MOST_COMPARED = 64  # numbers of a constant


def whole_ops(func: relax.Function) -> set[str]:
    """The operators that are kept whole and that a function calls, in branches too."""
    return set(filter(is_whole, ops_of(func)))


class _Builder:
    """A builder that names new variables after the one that they belong to, those of nested calls too.

    Equal calls are made once in a block (``known``): the layers of a model have the same masks.
    """

    def __init__(self, bb: relax.BlockBuilder, name: str, known: dict[StructuralKey, Any]) -> None:
        self._bb = bb
        self._name = f"{name}_part"
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bb, name)

    def normalize(self, expr: Any) -> Any:
        return self._bb.normalize(self._flat(expr))

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        flat = self._bb.normalize(self._flat(expr))  # with its type, which is compared, too
        key = StructuralKey(flat) if _is_comparable(flat) else None
        found = None if key is None else self._known.get(key)
        if found is None:
            found = self._bb.emit(flat, name_hint or self._name)
            if key is not None:
                self._known[key] = found
        return found

    def emit_te(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.emit(self._bb.call_te(func, *args, **kwargs))

    def match_cast(self, value: Any, ty: Any, name_hint: str = "") -> Any:
        return self._bb.match_cast(self._atom(value), ty, name_hint or self._name)

    def _flat(self, expr: Any) -> Any:
        if is_a(expr, relax.Call):
            old = items(expr.args)
            new = [self._atom(arg) for arg in old]
            return expr if all(map(operator.is_, old, new)) else with_args(expr, new)
        if is_a(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._atom(expr.tuple_value), expr.index)
        return relax.Tuple([self._atom(f) for f in items(expr.fields)]) if is_a(expr, relax.Tuple) else expr

    def _atom(self, expr: Any) -> Any:
        if is_a(expr, (relax.Call, relax.TupleGetItem)):
            return self.emit(expr)
        return self._flat(expr) if is_a(expr, relax.Tuple) else expr


def _is_comparable(expr: Any) -> bool:
    """Whether it is a call without large constants, whose numbers would be read, of what TVM knows."""
    if not is_op_call(expr) or (expr.op.name.startswith("relax.call_") and expr.op.name != "relax.call_tir"):
        return False
    return all(not is_constant(a) or math.prod(static_shape(a.ty) or ()) <= _MOST_COMPARED for a in items(expr.args))


def _expander(func: relax.Function, ops: Iterable[str]) -> Replace:
    """What replaces calls of these operators."""
    nodes = (func.attrs or {}).get(NODES_ATTR) or {}  # variable → node, as the importer noted it
    known: ByIdentity[dict[StructuralKey, Any]] = ByIdentity()  # variable → calls of its block that are made
    for block in blocks_in(func):
        in_block: dict[StructuralKey, Any] = {}
        known.update((binding.var, in_block) for binding in items(block.bindings))

    def replace(bb: relax.BlockBuilder, call: Any, var: Any) -> Any:
        if not is_op_call(call) or call.op.name not in ops:
            return None
        name = var_name(var)
        node = str(nodes.get(name, name))
        return expanded(_Builder(bb, name, known.get(var, {})), bb.normalize(call), node)

    return replace


def expand(mod: tvm.IRModule, ops: Callable[[relax.Function], Iterable[str]] = whole_ops) -> tvm.IRModule:
    """The module with these operators of its host functions expanded; ``mod`` itself where there are none.

    Parameters
    ----------
    mod : IRModule
        A Relax module.
    ops : callable
        ``ops(func)``: names of the Relax operators to expand in a function; by default all that are kept whole.

    Raises
    ------
    UnsupportedError
        If an operator has no definition, or its definition refuses a call.
    """
    found = {gv: set(ops(func)) for gv, func in mod.functions.items() if is_host_function(func)}
    if not any(found.values()):
        return mod
    for gv, names in found.items():
        if names:
            mod = rewrite_calls_in(mod, [gv], _expander(mod[gv], names))
    return tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])(
        mod
    )


@tvm.transform.module_pass(opt_level=0, name="ExpandOperators")
def Expand(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: all operators that are kept whole."""
    return expand(mod)
