"""Groups of calls as composite functions, in the form that TVM's FuseOpsByPattern gives to the match of a pattern.

FuseOpsByPattern infers the type of each call again, which takes long. Here a call keeps its type, and its result keeps
its variable.

A group of several results becomes a call that returns a tuple, in the place of the group's last binding. What reads an
earlier result in front of that place moves behind the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal, structural_hash

from ...core.tvm_fast import ByIdentity, items
from ...ir.order import in_order
from ...ir.relax_utils import global_var, is_op_call
from ...ir.tvm_compat import call_of, constant_numpy, is_a, is_constant, make_var, with_args
from ...ir.walker import rewrite_blocks

__all__ = ["Composites", "Group"]

#: elements of a constant by which composites are told apart before all values are compared
_SAMPLE = 16


@dataclass(frozen=True)
class Group:
    """What becomes one composite function.

    Attributes
    ----------
    bindings : sequence of (Var, Expr)
        Variables and their values, in the order of the program. Others read the last one, a call, and ``outputs``.
    attributes : mapping
        Of the composite function.
    outputs : sequence of Var
        Variables before the last one that others read, in the order of the program.
    """

    bindings: Sequence[tuple[Any, Any]]
    attributes: Mapping[str, Any]
    outputs: Sequence[Any] = ()


class Composites:
    """Puts groups of calls in dataflow blocks into composite functions.

    Parameters
    ----------
    mod : IRModule
        Its names are taken.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._taken = {gv.name_hint for gv in mod.get_global_vars()}
        self._known: dict[Any, list[tuple[relax.Function, Any]]] = {}  # all values are only compared among these
        #: global variable → composite function
        self.functions: dict[Any, relax.Function] = {}

    def replace_in(self, func: relax.Function, group_of: Callable[[Any, Any], Group | None]) -> relax.Function:
        """``func`` with calls of composite functions in the place of groups.

        ``group_of(var, value)`` gives the group whose last binding this is; it is asked in the order of the program.
        """
        return rewrite_blocks(func, partial(self._grouped, group_of))

    def _grouped(self, group_of: Callable[[Any, Any], Group | None], block: Any) -> Any:
        steps: list[tuple[Any, list[Any]]] = []  # variables, and what stands in the place of their bindings
        inside: ByIdentity[None] = ByIdentity()  # variables that a composite function has, or gives with its last one
        is_in_order = True
        for binding in items(block.bindings):
            var = binding.var
            group = group_of(var, binding.value)
            if group is None:
                steps.append((var, [binding]))
                continue
            for inner, _ in group.bindings[:-1]:
                inside[inner] = None
            steps.append((var, self._called(group)))
            is_in_order = is_in_order and not group.outputs
        made = [step for var, step in steps if var not in inside]
        return relax.DataflowBlock([b for step in made for b in step] if is_in_order else in_order(made))

    def _called(self, group: Group) -> list[Any]:
        """The call of a composite function, and what takes the results out of a tuple."""
        func, arguments = _composite(group)
        gv = self._first(func, group)
        last, value = group.bindings[-1]
        if not group.outputs:
            return [relax.VarBinding(last, call_of(gv, arguments, value.ty))]
        results = [*group.outputs, last]
        call = call_of(gv, arguments, relax.TupleType([var.ty for var in results]))
        whole = make_var(last.name, call.ty, is_dataflow=True)  # the name by which reports and policies know the call
        fields = [relax.TupleGetItem(whole, place) for place in range(len(results))]
        return [relax.VarBinding(whole, call), *map(relax.VarBinding, results, fields)]

    def _first(self, func: relax.Function, group: Group) -> Any:
        """The global variable of the first function that equals ``func``."""
        calls = [value for _, value in group.bindings if is_op_call(value)]
        constants = [arg for call in calls for arg in items(call.args) if is_constant(arg)]
        samples = [constant_numpy(constant).flat[:_SAMPLE].tobytes() for constant in constants]
        known = self._known.setdefault((structural_hash(func, skip_tensor_content=True), *samples), [])
        gv = next((gv for other, gv in known if structural_equal(other, func)), None)
        if gv is None:
            gv = self._add(func, calls)
            known.append((func, gv))
        return gv

    def _add(self, func: relax.Function, calls: Iterable[Any]) -> Any:
        name = "_".join(["fused", *(call.op.name.replace(".", "_") for call in calls)])
        numbered = next(n for k in count() if (n := f"{name}{k or ''}") not in self._taken)
        self._taken.add(numbered)
        gv = global_var(numbered, func)
        self.functions[gv] = func
        return gv


class _Operands:
    """What the calls inside of a composite read, and the parameters that they need.

    It is no function in `_composite`, which would refer to itself, and keep all of this until the next garbage
    collection.
    """

    def __init__(self) -> None:
        self.params: dict[Any, Any] = {}  # what the caller has → parameter
        self.inside: ByIdentity[Any] = ByIdentity()  # variable of the caller → the one in the function

    def of(self, expr: Any) -> Any:
        """An operand of the caller's call as one inside."""
        if is_a(expr, relax.Tuple):
            return relax.Tuple([self.of(field) for field in expr.fields])
        if not is_a(expr, relax.Var) and not _is_open(expr):
            return expr  # a constant, a number, a string, a shape of numbers
        if expr in self.inside:
            return self.inside[expr]
        if expr not in self.params:
            name = expr.name if is_a(expr, relax.Var) else f"param_{len(self.params)}"
            self.params[expr] = make_var(name, expr.ty)
        return self.params[expr]

    def value(self, value: Any) -> Any:
        """A value of the caller with these operands."""
        if is_a(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.of(value.tuple_value), value.index)
        args, ty = [self.of(arg) for arg in items(value.args)], value.ty
        if not _is_known(ty):
            return relax.BlockBuilder().normalize(with_args(value, args))  # its type may name a variable of the caller
        return with_args(value, args, ty)


def _composite(group: Group) -> tuple[relax.Function, list[Any]]:
    """A function of the bindings, with its constants inside, and the arguments of its call."""
    operands, bindings = _Operands(), group.bindings
    results = [*group.outputs, bindings[-1][0]]
    names = ByIdentity.of((var, f"gv{number or ''}") for number, var in enumerate(results))
    made = []
    for var, value in bindings:
        inner = operands.value(value)
        new = make_var(names.get(var, var.name), inner.ty, is_dataflow=var not in names)
        operands.inside[var] = new
        made.append(relax.VarBinding(new, inner))
    inside = [operands.inside[var] for var in results]
    result = relax.Tuple(inside) if group.outputs else inside[0]
    body = relax.SeqExpr([relax.DataflowBlock(made)], result)
    relax.expr._update_type(body, result.ty)
    attributes = tvm.ir.DictAttrs({**group.attributes, "Primitive": True})
    params, arguments = list(operands.params.values()), list(operands.params)
    func = relax.Function(params, body, result.ty, attrs=attributes)
    symbols = relax.analysis.free_symbolic_vars(func)
    if symbols:  # that are in the sizes of the parameters, but are not one of them
        sizes = relax.ShapeExpr(symbols)
        func = relax.Function([*params, relax.Var("tir_vars", sizes.ty)], body, result.ty, attrs=attributes)
        arguments.append(sizes)
    is_open = bool(symbols or relax.analysis.defined_symbolic_vars(func))
    return relax.utils.copy_with_new_vars(func) if is_open else func, arguments


def _is_open(expr: Any) -> bool:
    """Whether it is a shape with symbols."""
    return is_a(expr, relax.ShapeExpr) and not all(isinstance(dim, tvm.tirx.IntImm) for dim in expr.values)


def _is_known(ty: Any) -> bool:
    """Whether all dims are given by numbers and symbols."""
    if is_a(ty, relax.TupleType):
        return all(map(_is_known, ty.fields))
    return is_a(ty, relax.TensorType) and is_a(ty.shape, relax.ShapeExpr)
