"""The walks over a function that change it: variables are substituted, blocks rewritten, calls replaced.

`relax_utils` has those that only read. A part in which nothing changes stays the same object.

Calls that a pass must not see: calls of a function without a meaning stand in their places while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ..core.tvm_fast import ByIdentity, is_a, items
from .relax_utils import is_op_call, with_functions
from .tvm_compat import substitute

#: ``replace(builder, call, var)`` gives what stands in the place of a call that is bound to ``var``, or None; it may
#: emit bindings in front of it
Replace = Callable[[relax.BlockBuilder, Any, Any], Any]

_NEVER_IN_TYPES = (relax.TensorType, relax.TupleType, relax.FuncType)


class Substitute:
    """Puts expressions in the place of variables and symbols, in types as well; no type is inferred again.

    Where a variable is bound or is a parameter, another variable takes its place, and no other expression does.
    """

    def __init__(self, mapping: Mapping[Any, Any]) -> None:
        self._expressions: ByIdentity[Any] = ByIdentity()
        self._symbols: dict[Any, Any] = {}
        self._changes_types = False
        for old, new in mapping.items():
            self.put(old, new)

    def put(self, old: Any, new: Any) -> None:
        self._expressions[old] = new
        if tvm.ir.is_prim_expr(old):
            self._symbols[old] = new
        may_be_in_types = not is_a(old, tvm.ir.GlobalVar) and not is_a(getattr(old, "ty", None), _NEVER_IN_TYPES)
        self._changes_types = self._changes_types or may_be_in_types

    def function(self, func: relax.Function) -> relax.Function:
        old = [*items(func.params), func.body, func.ret_ty]
        *params, body, ty = new = [*map(self._bound, old[:-2]), self.of(old[-2]), self._type(old[-1])]
        return relax.Function(params, body, ty, func.is_pure, func.attrs, func.span) if _differ(old, new) else func

    def of(self, expr: Any) -> Any:
        if is_a(expr, (relax.Var, tvm.ir.GlobalVar)):
            return self._expressions.get(expr, expr)
        if self._symbols and tvm.ir.is_prim_expr(expr):
            return self._number(expr)
        if is_a(expr, relax.Call):
            old, types = [expr.op, *items(expr.args)], items(expr.ty_args)
            op, *args = new = [self.of(part) for part in old]
            new_types = [self._type(ty) for ty in types]
            if not _differ([*old, *types], [*new, *new_types]):
                return expr
            return self._typed(relax.Call(op, args, expr.attrs, new_types, expr.span), expr)
        if is_a(expr, relax.Tuple):
            old = items(expr.fields)
            new = [self.of(field) for field in old]
            return relax.Tuple(new) if _differ(old, new) else expr
        if is_a(expr, relax.TupleGetItem):
            old = expr.tuple_value
            new = self.of(old)
            return expr if new is old else relax.TupleGetItem(new, expr.index)
        if is_a(expr, relax.SeqExpr):
            old = [*items(expr.blocks), expr.body]
            *blocks, body = new = [*map(self.block, old[:-1]), self.of(old[-1])]
            blocks = [block for block in blocks if len(block.bindings)]
            return self._typed(relax.SeqExpr(blocks, body), expr) if _differ(old, new) else expr
        if is_a(expr, relax.If):
            old = [expr.cond, expr.true_branch, expr.false_branch]
            new = [self.of(part) for part in old]
            return self._typed(relax.If(*new, expr.span), expr) if _differ(old, new) else expr
        if is_a(expr, relax.ShapeExpr):
            dims = self._dims(expr)
            return expr if dims is None else relax.ShapeExpr(dims)
        return self.function(expr) if is_a(expr, relax.Function) else expr

    def block(self, block: Any) -> Any:
        old = items(block.bindings)
        new = [binding for given in old for binding in self.bindings(given)]
        return type(block)(new) if _differ(old, new) else block

    def bindings(self, binding: Any) -> Iterable[Any]:
        old = [binding.var, binding.value]
        value = self.of(old[1])
        new = [self._bound(old[0]), value]
        if is_a(binding, relax.MatchCast):
            old.append(binding.ty)
            new.append(self._type(old[-1]))
        return [type(binding)(*new) if _differ(old, new) else binding]

    def _bound(self, var: Any) -> Any:
        """The variable that is bound, or is a parameter, instead of another one."""
        new = self._expressions.get(var)
        if new is not None:
            return new if is_a(new, relax.Var) else var
        old = var.ty
        ty = self._type(old)
        if ty is old:
            return var
        self._expressions[var] = new = type(var)(var.name, ty)
        return new

    def _type(self, ty: Any) -> Any:
        if not self._changes_types:
            return ty
        if is_a(ty, relax.TensorType):
            shape = ty.shape
            new = self.of(shape)
            return ty if new is shape else relax.TensorType(new, ty.dtype, ty.vdevice)
        if is_a(ty, relax.TupleType):
            old = items(ty.fields)
            new = [self._type(field) for field in old]
            return relax.TupleType(new) if _differ(old, new) else ty
        if is_a(ty, relax.FuncType) and ty.params is not None:
            old = [*items(ty.params), ty.ret]
            *params, result = new = [self._type(part) for part in old]
            return relax.FuncType(params, result, ty.purity) if _differ(old, new) else ty
        dims = self._dims(ty) if is_a(ty, relax.ShapeType) else None
        return ty if dims is None else relax.ShapeType(dims)

    def _dims(self, shape: Any) -> list[Any] | None:
        """The new dims of a shape, or of its type; None where they are the old ones, or unknown."""
        old = items(shape.values) if self._symbols and shape.values is not None else []
        new = [self._number(dim) for dim in old]
        return new if _differ(old, new) else None

    def _number(self, number: Any) -> Any:
        new = substitute(number, self._symbols)
        return number if new.same_as(number) else new

    def _typed(self, expr: Any, like: Any) -> Any:
        """An expression that stands for another one, with the type of that; one of fields has a type anyway."""
        relax.expr._update_type(expr, self._type(like.ty))
        return expr


def _differ(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True))


class _Blocks(Substitute):
    def __init__(self, rewrite: Callable[[Any], Any]) -> None:
        super().__init__({})
        self._rewrite = rewrite

    def block(self, block: Any) -> Any:
        return self._rewrite(block) if is_a(block, relax.DataflowBlock) else super().block(block)


def rewrite_blocks(func: relax.Function, rewrite: Callable[[Any], Any]) -> relax.Function:
    """``func`` with ``rewrite(block)``, which has the same results, for each dataflow block, in branches too."""
    return _Blocks(rewrite).function(func)


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    def __init__(self, replace: Replace, mod: tvm.IRModule | None = None) -> None:
        super().__init__(mod)
        self._replace = replace
        self._changes = False
        self._var: Any = None  # that is bound

    def function(self, func: relax.Function) -> relax.Function:
        self._changes = False
        new = self.visit_expr(func)
        return new if self._changes else func

    def visit_var_binding_(self, binding: Any) -> None:
        self._var = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        new = self._replace(self.builder_, call, self._var)
        self._changes = self._changes or new is not None
        return call if new is None else new


def rewrite_calls(func: relax.Function, replace: Replace) -> relax.Function:
    """``func`` with other expressions in the place of calls; types are inferred where something changes."""
    return _Calls(replace).function(func)


def rewrite_calls_in(mod: tvm.IRModule, functions: Iterable[Any], replace: Replace) -> tvm.IRModule:
    """The module with these functions rewritten, and the functions that ``replace`` adds by its builder."""
    calls = _Calls(replace, mod)
    rewritten = {gv: calls.function(mod[gv]) for gv in functions}
    return with_functions(calls.builder_.get(), rewritten)


_NAME = "byoc.hidden."


def without_hidden(
    mod: tvm.IRModule,
    functions: Iterable[Any],
    sees: Callable[[Any, Any], bool],
    run: Callable[[tvm.IRModule], tvm.IRModule],
) -> tvm.IRModule:
    """The module, of dataflow blocks, behind a pass that sees some of the calls of these functions.

    ``sees(global variable, call)`` is asked once for each call of an operator, in order.
    """
    hidden: list[Any] = []

    def hide(gv: Any, var: Any, call: Any) -> Any:
        if not is_op_call(call) or any(is_a(a, (tvm.ir.GlobalVar, relax.ExternFunc)) for a in call.args):
            return None
        if sees(gv, call):
            return None
        hidden.append(call)
        name = relax.ExternFunc(f"{_NAME}{len(hidden) - 1}")
        return relax.Call(tvm.ir.Op.get("relax.call_pure_packed"), [name, *call.args], None, [var.ty])

    def show(_var: Any, call: Any) -> Any:
        name = str(getattr(call.args[0], "global_symbol", "")) if len(call.args) else ""
        if not name.startswith(_NAME):
            return None
        own = hidden[int(name.removeprefix(_NAME))]
        return relax.Call(own.op, list(call.args)[1:], own.attrs, own.ty_args, own.span)

    changed = {gv: _with_calls(mod[gv], partial(hide, gv)) for gv in functions}
    if not hidden:
        return run(mod)
    given = with_functions(mod, changed)
    made = run(given)
    before, after = dict(given.functions.items()), dict(made.functions.items())
    if after.keys() == before.keys() and all(func.same_as(before[gv]) for gv, func in after.items()):
        same = not made.attrs or (given.attrs is not None and made.attrs.same_as(given.attrs))
        own = dict(mod.functions.items())
        return mod if same else tvm.IRModule(own, attrs=made.attrs, global_infos=mod.global_infos)
    shown = {gv: _with_calls(f, show) for gv, f in made.functions.items() if is_a(f, relax.Function)}
    return with_functions(made, shown)


def _with_calls(func: relax.Function, replace: Callable[[Any, Any], Any]) -> relax.Function:
    """``func`` with ``replace(variable, call)``, of the same type, for calls in its dataflow blocks, if not None."""

    def rewrite(block: Any) -> Any:
        bindings, changes = list(block.bindings), False
        for place, binding in enumerate(bindings):
            if is_a(binding, relax.VarBinding) and is_a(binding.value, relax.Call):
                new = replace(binding.var, binding.value)
                if new is not None:
                    relax.expr._update_type(new, binding.value.ty)
                    bindings[place] = relax.VarBinding(binding.var, new)
                    changes = True
        return relax.DataflowBlock(bindings) if changes else block

    return rewrite_blocks(func, rewrite)
