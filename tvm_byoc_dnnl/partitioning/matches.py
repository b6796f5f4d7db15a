"""The matches of a pattern in the dataflow blocks of a function, as TVM's FuseOpsByPattern finds them, and their
composite functions, in the form that it gives them.

FuseOpsByPattern rebuilds the whole module for each pattern, with or without a match, and infers all types again. Here
only calls that can be the root of a match are tried, a call keeps its type, and its result keeps its variable. A group
of several results becomes a call that returns a tuple, in the place of the group's last binding; what reads an earlier
result in front of that place moves behind the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import count
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import dpl
from tvm_ffi import structural_equal, structural_hash

from ..core.tvm_fast import ByIdentity, is_a, items
from ..core.verdict import Reject
from ..ir.order import WritersBetween, in_order
from ..ir.relax_utils import blocks_in, constant_numpy, global_var, is_op_call, leaf_types
from ..ir.tvm_compat import call_of, is_constant, make_var, with_args
from ..ir.walker import rewrite_blocks

#: elements of a constant by which composites are told apart before all values are compared
_SAMPLE = 16


@dataclass(frozen=True)
class Group:
    #: variables and their values, in the order of the program. Others read the last one, a call, and ``outputs``
    bindings: Sequence[tuple[Any, Any]]
    #: of the composite function
    attributes: Mapping[str, Any]
    #: variables before the last one that others read, in the order of the program
    outputs: Sequence[Any] = ()


class Composites:
    def __init__(self, mod: tvm.IRModule) -> None:
        self._taken = {gv.name_hint for gv in mod.get_global_vars()}
        self._known: dict[Any, list[tuple[relax.Function, Any]]] = {}  # all values are only compared among these
        #: global variable → composite function
        self.functions: dict[Any, relax.Function] = {}

    def replace_in(self, func: relax.Function, group_of: Callable[[Any, Any], Group | None]) -> relax.Function:
        """``func`` with calls of composites in the place of groups, of which ``group_of`` is told the last binding."""
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
    def __init__(self) -> None:
        self.params: dict[Any, Any] = {}  # what the caller has → parameter
        self.inside: ByIdentity[Any] = ByIdentity()  # variable of the caller → the one in the function

    def of(self, expr: Any) -> Any:
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
        if is_a(value, relax.TupleGetItem):
            return relax.TupleGetItem(self.of(value.tuple_value), value.index)
        args, ty = [self.of(arg) for arg in items(value.args)], value.ty
        if not all(is_a(leaf, relax.TensorType) and is_a(leaf.shape, relax.ShapeExpr) for leaf in leaf_types(ty)):
            return relax.BlockBuilder().normalize(with_args(value, args))  # its type may name a variable of the caller
        return with_args(value, args, ty)


def _composite(group: Group) -> tuple[relax.Function, list[Any]]:
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
    return is_a(expr, relax.ShapeExpr) and not all(isinstance(dim, tvm.tirx.IntImm) for dim in expr.values)


@dataclass(frozen=True)
class Context:
    """A match, with the fields of ``tvm.relax.transform.PatternCheckContext``."""

    matched_expr: Any
    annotated_expr: Mapping[str, Any]
    #: in the order of the program
    matched_bindings: Mapping[Any, Any]
    var_usages: Mapping[Any, Any]
    value_to_bound_var: Mapping[Any, Any]
    #: variable → all that are bound together with it: by the same match, of those before this one
    together: Callable[[Any], Iterable[Any]]

    def outputs(self, root: Any) -> list[Any]:
        """The variables of the match before ``root`` that are read outside of it, in the order of the program."""
        own = self.matched_bindings
        return [
            var
            for var in own
            if not var.same_as(root)
            and (not is_a(var, relax.DataflowVar) or any(u not in own for u in items(self.var_usages[var])))
        ]


class Searched:
    def __init__(self, func: relax.Function) -> None:
        self._values: list[tuple[Any, Any]] = []
        self._blocks: list[_Block] = []
        self._calls: dict[str, list[tuple[int, _Block]]] = {}  # operator → places of its calls, and their blocks
        for block in blocks_in(func):
            is_dataflow, searched = is_a(block, relax.DataflowBlock), _Block(block)
            for binding in items(block.bindings):
                if is_a(binding, relax.MatchCast):
                    continue
                value = binding.value
                if is_dataflow and is_a(value, relax.Call):
                    op = value.op
                    name = op.name if is_a(op, tvm.ir.Op) else ""
                    self._calls.setdefault(name, []).append((len(self._values), searched))
                self._values.append((binding.var, value))
        self._value_of = tvm_ffi.Map(dict(self._values))
        self._place = ByIdentity.of((value, place) for place, (_, value) in enumerate(self._values))
        self._var_of = ByIdentity.of((value, var) for var, value in self._values)

    def matches(
        self, pattern: Any, annotations: Mapping[str, Any], check: Callable[[Context], Mapping[str, Any] | None]
    ) -> ByIdentity[Group]:
        """Variable of the result → the match, of those to which ``check`` gives attributes.

        Of two matches with a call in common the first has it, but where the second contains all of the first.
        """
        found: ByIdentity[Group] = ByIdentity()
        owner: ByIdentity[Any] = ByIdentity()  # variable → result of the match that has it
        for place, block in self._roots(pattern):
            root, call = self._values[place]
            parts = pattern.extract_matched_expr(call, self._value_of)
            if parts is None:
                continue
            members = self._members(parts)
            context = Context(
                call,
                {name: parts[part] for name, part in annotations.items() if part in parts},
                ByIdentity.of(members),
                block.readers,
                self._var_of,
                lambda var: [other for other, _ in found[owner[var]].bindings] if var in owner else (),
            )
            attributes = check(context)
            if attributes is None:
                continue
            before = ByIdentity.of((owner[var], None) for var, _ in members if var in owner)
            if not all(var in context.matched_bindings for result in before for var, _ in found[result].bindings):
                continue
            for result in before:
                del found[result]
            found[root] = Group(members, attributes, outputs=context.outputs(root))
            owner.update((var, root) for var, _ in members)
        return found

    def _roots(self, pattern: Any) -> list[tuple[int, _Block]]:
        ops = root_ops(pattern)
        calls = [self._calls.get(op, ()) for op in (self._calls if ops is None else ops)]
        return sorted((c for of_op in calls for c in of_op), key=lambda c: c[0])

    def _members(self, parts: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        matched = [expr for part, expr in parts.items() if is_a(part, (dpl.CallPattern, dpl.TupleGetItemPattern))]
        return [self._values[place] for place in sorted({self._place[expr] for expr in matched})]


class _Block:
    def __init__(self, block: Any) -> None:
        self._block = block

    @cached_property
    def readers(self) -> ByIdentity[Any]:
        return ByIdentity.of(relax.analysis.udchain(self._block).items())


def root_ops(pattern: Any) -> Iterable[str] | None:
    """Names of the operators whose calls ``pattern`` can match, ``None`` if it may be any."""
    if isinstance(pattern, dpl.OrPattern):
        sides = [root_ops(pattern.left), root_ops(pattern.right)]
        return None if None in sides else set().union(*sides)  # type: ignore[arg-type]
    if isinstance(pattern, dpl.AndPattern):
        left = root_ops(pattern.left)
        return root_ops(pattern.right) if left is None else left
    if isinstance(pattern, dpl.CallPattern):
        op = pattern.op
        return {op.expr.name} if isinstance(op, dpl.ExprPattern) and isinstance(op.expr, tvm.ir.Op) else None
    inner = getattr(pattern, "pattern", None)  # of a pattern with attributes, a type or a shape
    return None if inner is None or isinstance(pattern, dpl.NotPattern) else root_ops(inner)


_PARTS = ("op", "args", "fields", "tuple", "pattern", "left", "right")


@cache
def ops_of_pattern(pattern: Any) -> frozenset[str]:
    """Names of the operators that are in every match of ``pattern``."""
    return frozenset(_ops(pattern, set.intersection))


@cache
def ops_in_pattern(pattern: Any) -> frozenset[str]:
    """Names of the operators that are in some match of ``pattern``."""
    return frozenset(_ops(pattern, set.union))


def _ops(pattern: Any, either: Callable[[set[str], set[str]], set[str]]) -> set[str]:
    if is_a(pattern, dpl.ExprPattern):
        return {pattern.expr.name} if is_a(pattern.expr, tvm.ir.Op) else set()
    if is_a(pattern, dpl.NotPattern):
        return set()
    if is_a(pattern, dpl.OrPattern):
        return either(_ops(pattern.left, either), _ops(pattern.right, either))
    parts = [part for name in _PARTS if (part := getattr(pattern, name, None)) is not None]
    flat = [item for part in parts for item in ([part] if isinstance(part, dpl.DFPattern) else items(part))]
    return set().union(*(_ops(part, either) for part in flat))


def refuse_escape(context: Any, outputs: Sequence[str] = (), writers: Iterable[WritersBetween] = ()) -> Reject | None:
    """Why a match cannot become one function in the place of its last call, ``None`` where it can.

    The results of ``outputs``, annotated parts besides the root, may be used outside. ``writers`` are of the functions
    that are searched: a tensor must not be overwritten before it is read there.
    """
    own = set(context.matched_bindings)
    for function in writers:
        if (writer := function.first(own)) is not None:
            return Reject(
                f"{writer.name}, which overwrites one of its arguments, stands between the calls of the match"
            )
    parts = [context.annotated_expr[name] for name in outputs if name in context.annotated_expr]
    root, *others = (context.value_to_bound_var[e] for e in [context.matched_expr, *parts])
    results = {root, *others}
    for var in context.outputs(root):
        if var not in results:
            users = [u for u in items(context.var_usages[var]) if u not in own]
            by = f"by {', '.join(u.name for u in users)}" if users else "behind the dataflow block"
            return Reject(f"the intermediate result {var.name} is used outside of the match, {by}")
    # What reads the root stands behind all calls of the match: none of them can read that.
    behind = _reachable(context, (u for var in others for u in context.var_usages[var] if u not in own))
    for var, value in context.matched_bindings.items() if behind else ():
        for needed in relax.analysis.free_vars(value):
            if needed in behind:
                return Reject(f"the input {needed.name} of {var.name} is computed from a result of the match")
    return None


def _reachable(context: Any, start: Iterable[Any]) -> set[Any]:
    """``start`` and all that is computed from it, or together with what is."""
    found: set[Any] = set()
    waiting = list(start)
    while waiting:
        var = waiting.pop()
        if var not in found:
            found.add(var)
            waiting += [*context.var_usages.get(var, ()), *context.together(var)]
    return found
