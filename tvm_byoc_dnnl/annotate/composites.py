"""Single calls as composite functions, in the form that FuseOpsByPattern gives to the match of a pattern.

FuseOpsByPattern infers the type of each call again, which takes a millisecond for a convolution. Here a call keeps its
type, and its result keeps its variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal, structural_hash

from .._compat import constant_numpy, is_constant
from ..handles import items
from ..relax_utils import op_calls

__all__ = ["Alike", "SingleCalls"]

#: elements of a constant by which composites are told apart before all values are compared
_SAMPLE = 16


class Alike:
    """Composite functions by what they compute: the first of equal ones stands for all."""

    def __init__(self) -> None:
        self._known: dict[Any, list[tuple[relax.Function, Any]]] = {}  # all values are only compared among these

    def first(self, func: relax.Function, add: Callable[[], Any]) -> Any:
        """The global variable of the first function that equals ``func``; ``add`` gives one to a new function."""
        constants = [arg for _, call in op_calls(func) for arg in items(call.args) if is_constant(arg)]
        samples = [constant_numpy(constant).flat[:_SAMPLE].tobytes() for constant in constants]
        known = self._known.setdefault((structural_hash(func, skip_tensor_content=True), *samples), [])
        gv = next((gv for other, gv in known if structural_equal(other, func)), None)
        if gv is None:
            gv = add()
            known.append((func, gv))
        return gv


@relax.expr_functor.mutator
class SingleCalls(relax.PyExprMutator):
    """Puts single calls of operators in dataflow blocks into composite functions.

    Parameters
    ----------
    mod : IRModule
        Its names are taken.
    accept : callable
        ``accept(var, call)``: the attributes of the call's composite function, ``None`` for a call that stays.
    """

    def __init__(self, mod: tvm.IRModule, accept: Callable[[Any, Any], Mapping[str, Any] | None]) -> None:
        super().__init__()
        self._accept = accept
        self._taken = {gv.name_hint for gv in mod.get_global_vars()}
        self._numbers: dict[str, int] = {}  # name -> how many functions have it, with a number behind
        self._alike = Alike()
        #: global variable → composite function
        self.functions: dict[Any, relax.Function] = {}

    def visit_dataflow_block_(self, block: Any) -> Any:
        return relax.DataflowBlock([self._replaced(binding) for binding in items(block.bindings)])

    def _replaced(self, binding: Any) -> Any:
        call = binding.value
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            return binding
        attributes = self._accept(binding.var, call)
        if attributes is None:
            return binding
        func, arguments = _composite(call)
        func = func.with_attr({**attributes, "Primitive": True})
        gv = self._alike.first(func, lambda: self._add(func, f"fused_{call.op.name.replace('.', '_')}"))
        called = relax.Call(gv, arguments)
        relax.expr._update_type(called, call.ty)
        return relax.VarBinding(binding.var, called)

    def _add(self, func: relax.Function, name: str) -> Any:
        while (numbered := f"{name}{self._numbers.get(name) or ''}") in self._taken:
            self._numbers[name] = self._numbers.get(name, 0) + 1
        self._taken.add(numbered)
        gv = tvm.ir.GlobalVar(numbered)
        relax.expr._update_type(gv, func.ty)
        self.functions[gv] = func
        return gv


def _composite(call: Any) -> tuple[relax.Function, list[Any]]:
    """A function of a call, whose constants are inside, and the arguments to call it with."""
    params: dict[Any, Any] = {}

    def operand(expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([operand(field) for field in expr.fields])
        if not isinstance(expr, relax.Var) and not _is_open(expr):
            return expr  # a constant, a number, a string, a shape of numbers
        if expr not in params:
            name = expr.name if isinstance(expr, relax.Var) else f"param_{len(params)}"
            params[expr] = relax.Var(name, expr.ty)
        return params[expr]

    inner = relax.Call(call.op, [operand(arg) for arg in items(call.args)], call.attrs, call.ty_args, call.span)
    if _is_known(call.ty):
        relax.expr._update_type(inner, call.ty)
    else:
        inner = relax.BlockBuilder().normalize(inner)  # its type may name a variable of the caller
    result = relax.Var("gv", inner.ty)
    body = relax.SeqExpr([relax.DataflowBlock([relax.VarBinding(result, inner)])], result)
    relax.expr._update_type(body, inner.ty)
    func, arguments = relax.Function(list(params.values()), body, inner.ty), list(params)
    symbols = relax.analysis.free_symbolic_vars(func)
    if symbols:  # that are in the sizes of the parameters, but are not one of them
        sizes = relax.ShapeExpr(symbols)
        func = relax.Function([*func.params, relax.Var("tir_vars", sizes.ty)], body, inner.ty)
        arguments.append(sizes)
    if symbols or relax.analysis.defined_symbolic_vars(func):
        func = relax.utils.copy_with_new_vars(func)
    return func, arguments


def _is_open(expr: Any) -> bool:
    """Whether it is a shape with symbols."""
    return isinstance(expr, relax.ShapeExpr) and not all(isinstance(dim, tvm.tirx.IntImm) for dim in expr.values)


def _is_known(ty: Any) -> bool:
    """Whether all dims are given by numbers and symbols."""
    if isinstance(ty, relax.TupleType):
        return all(map(_is_known, ty.fields))
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
