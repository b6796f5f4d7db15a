"""Operators that are kept whole become the operators of their definitions, in all functions of the host."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import StructuralKey

from .._compat import is_a, is_constant, static_shape, var_name, with_args
from ..handles import items
from ..relax_utils import is_host_function, is_op_call, ops_of, with_functions
from ..signature import NODES_ATTR
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


@relax.expr_functor.mutator
class _Expander(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, ops: set[str], nodes: Any) -> None:
        super().__init__(mod)
        self._ops = ops
        self._nodes = nodes  # variable → node, as the importer noted it
        self._var = ""  # that is bound
        self._known: dict[StructuralKey, Any] = {}  # calls of the block → their variables

    def visit_dataflow_block_(self, block: Any) -> Any:
        return self._apart(super().visit_dataflow_block_, block)

    def visit_binding_block_(self, block: Any) -> Any:
        return self._apart(super().visit_binding_block_, block)

    def _apart(self, visit: Callable[[Any], Any], block: Any) -> Any:
        around, self._known = self._known, {}
        visited = visit(block)
        self._known = around
        return visited

    def visit_var_binding_(self, binding: Any) -> None:
        self._var = var_name(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not is_op_call(call) or call.op.name not in self._ops:
            return call
        node = str(self._nodes.get(self._var, self._var))
        return expanded(_Builder(self.builder_, self._var, self._known), self.builder_.normalize(call), node)


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
            func = mod[gv]
            expander = _Expander(mod, names, (func.attrs or {}).get(NODES_ATTR) or {})
            func = expander.visit_expr(func)
            mod = with_functions(expander.builder_.get(), {gv: func})
    return tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])(
        mod
    )


@tvm.transform.module_pass(opt_level=0, name="ExpandOperators")
def Expand(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: all operators that are kept whole."""
    return expand(mod)
