"""A region as a Relax function: composites become local functions, as TVM's codegens expect them.

Equal regions share one function, with the names of one: which calls of the host each use stands for is noted beside it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ..core.tvm_fast import ByIdentity, items
from ..ir.tvm_compat import call_of, is_a, is_constant, make_var, static_shape

__all__ = ["RegionBuilder", "names_of_uses", "with_uses"]


class RegionBuilder:
    """One group of bindings as a function.

    Parameters
    ----------
    bindings : iterable
        Calls of composite functions, and what handles their tuples.
    outputs : sequence of Var
        Results of the function.
    lookup : callable
        Global variable → composite function.
    """

    def __init__(self, bindings: Iterable[Any], outputs: Sequence[Any], lookup: Callable[[Any], Any]) -> None:
        self._lookup = lookup
        self._builder = relax.BlockBuilder()
        self._bindings: list[Any] = []
        self._locals: ByIdentity[Any] = ByIdentity()  # composite's global variable -> local variable
        self._values: ByIdentity[Any] = ByIdentity()  # variable of the host -> expression inside
        self._params: list[Any] = []
        #: variables of the host that hold the results
        self.outputs = list(outputs)
        #: names of the variables of the host that are bound inside
        self.names: list[str] = []
        #: the host's arguments, in the order of the parameters: also fields of tuples, which it has to bind first
        self.arguments: list[Any] = []
        wiring: list[Any] = []
        for binding in bindings:
            value = binding.value
            if is_a(value, relax.Call):
                args = [self._operand(a) for a in items(value.args)]
                wiring.append((value.op, *map(_structure, args)))
                value = _called(self._local(value.op), args, value.ty)
            elif is_a(value, relax.TupleGetItem):
                value = relax.TupleGetItem(self._operand(value.tuple_value), value.index)
                wiring.append((_structure(value.tuple_value), value.index))
            elif is_a(value, relax.Tuple):
                value = relax.Tuple([self._operand(f) for f in value.fields])
                wiring.append(_structure(value))
            else:
                value = self._operand(value)
                wiring.append((_structure(value),))
            if is_a(binding, relax.MatchCast):
                wiring.append(str(binding.ty))
            self._bind(binding, value)
        self._outputs = [self._values[v] for v in outputs]
        wiring.append(tuple(self._outputs))
        #: equal for groups of equal composites that are wired equally
        self.wiring = _numbered(wiring)

    def _operand(self, expr: Any) -> Any:
        if is_constant(expr):
            return expr
        if is_a(expr, relax.Tuple):
            return relax.Tuple([self._operand(f) for f in expr.fields])
        if expr not in self._values:
            self._values[expr] = self._parameter(expr.name if is_a(expr, relax.Var) else "shape", expr, expr.ty)
        return self._values[expr]

    def _parameter(self, name: str, argument: Any, ty: Any) -> Any:
        """A new parameter; for a tuple one per field, since external functions are called with tensors."""
        if is_a(ty, relax.TupleType):
            items = [(f"{name}_{i}", relax.TupleGetItem(argument, i), field) for i, field in enumerate(ty.fields)]
            return relax.Tuple([self._parameter(*item) for item in items])
        self._params.append(make_var(name, ty))
        self.arguments.append(argument)
        return self._params[-1]

    def _local(self, gv: Any) -> Any:
        if gv not in self._locals:
            func = self._lookup(gv).without_attr("Primitive")
            self._locals[gv] = make_var(gv.name_hint, func.ty)
            self._bindings.append(relax.VarBinding(self._locals[gv], func))
        return self._locals[gv]

    def _bind(self, binding: Any, value: Any) -> None:
        var, value = binding.var, self._builder.normalize(value)
        self.names.append(str(var.name))
        self._values[var] = new = make_var(var.name, var.ty)
        is_cast = is_a(binding, relax.MatchCast)  # its dims may be other expressions than those of the value
        self._bindings.append(relax.MatchCast(new, value, binding.ty) if is_cast else relax.VarBinding(new, value))

    @functools.cached_property
    def function(self) -> relax.Function:
        """The region; inside of its composites the variables are those of the module."""
        single = len(self._outputs) == 1
        result = self._outputs[0] if single else relax.Tuple(self._outputs)
        ret_ty = result.ty if single else relax.TupleType([v.ty for v in self._outputs])
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        return self._builder.normalize(relax.Function(self._params, body, ret_ty))

    def function_beside(self, used: set[Any]) -> relax.Function:
        """The region with variables of its own, in a module whose regions contain the composites ``used``.

        A copy infers the types of all calls again, so none is made where it is not needed. The region's composites
        are added to ``used``.
        """
        func = self.function
        is_open = relax.analysis.defined_symbolic_vars(func) or relax.analysis.free_symbolic_vars(func)
        shares = not used.isdisjoint(self._locals)
        used.update(self._locals)
        return relax.utils.copy_with_new_vars(func) if is_open or shares else func


def _called(callee: Any, args: list[Any], ty: Any) -> Any:
    """A call; ``ty`` is that of the host's call, which is the same here unless it names symbols."""
    fields = items(ty.fields) if is_a(ty, relax.TupleType) else [ty]
    is_static = all(is_a(field, relax.TensorType) and static_shape(field) is not None for field in fields)
    return call_of(callee, args, ty) if is_static else relax.Call(callee, args)


def _structure(expr: Any) -> Any:
    """The fields of an operand that is a tuple, else the operand."""
    return tuple(map(_structure, expr.fields)) if is_a(expr, relax.Tuple) else expr


def _numbered(wiring: list[Any]) -> tuple[Any, ...]:
    """The wiring with variables replaced by the order of their appearance, so that equal ones compare equal."""
    numbers: dict[Any, int] = {}

    def number(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(number, item))
        return numbers.setdefault(item, len(numbers)) if is_a(item, relax.Var) else item

    return tuple(map(number, wiring))


#: module attribute, JSON: region -> for each further use the name of a variable in the region -> that of the host
_USES_ATTR = "byoc_uses"


def with_uses(mod: tvm.IRModule, uses: Mapping[str, Sequence[Sequence[str]]]) -> tvm.IRModule:
    """The module with a note of the names in each use of its regions; the function has those of the first one."""
    further = {name: [dict(zip(first, use)) for use in others] for name, (first, *others) in uses.items() if others}
    return mod.with_attr(_USES_ATTR, json.dumps({**names_of_uses(mod), **further})) if further else mod


def names_of_uses(mod: tvm.IRModule) -> dict[str, list[dict[str, str]]]:
    """Region -> for each use after the first, name of a variable in the region -> name in this use."""
    return json.loads(str(mod.attrs[_USES_ATTR])) if mod.attrs and _USES_ATTR in mod.attrs else {}
