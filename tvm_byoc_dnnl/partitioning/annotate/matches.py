"""The matches of a pattern in the dataflow blocks of a function, as TVM's FuseOpsByPattern finds them.

FuseOpsByPattern rebuilds the whole module for each pattern, with or without a match, and infers types again. Here only
calls that can be the root of a match are tried, of patterns whose operators occur. `refuse_escape` says whether a match
can run as one call, although others read some of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax import dpl

from ...core.tvm_fast import ByIdentity, items
from ...core.verdict import Reject
from ...ir.order import WritersBetween
from ...ir.relax_utils import blocks_in
from ...ir.tvm_compat import is_a
from .composites import Group

__all__ = ["Context", "Searched", "ops_in_pattern", "ops_of_pattern", "refuse_escape", "root_ops"]


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
    """A function in which patterns are searched."""

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

    @cached_property
    def _value_of(self) -> Any:
        return tvm_ffi.Map(dict(self._values))

    @cached_property
    def _place(self) -> ByIdentity[int]:
        """Value → place of its binding."""
        return ByIdentity.of((value, place) for place, (_, value) in enumerate(self._values))

    @cached_property
    def _var_of(self) -> ByIdentity[Any]:
        return ByIdentity.of((value, var) for var, value in self._values)

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
        """The bindings of a match, in the order of the program."""
        matched = [expr for part, expr in parts.items() if is_a(part, (dpl.CallPattern, dpl.TupleGetItemPattern))]
        return [self._values[place] for place in sorted({self._place[expr] for expr in matched})]


class _Block:
    def __init__(self, block: Any) -> None:
        self._block = block

    @cached_property
    def readers(self) -> ByIdentity[Any]:
        """Variable → the variables of the block whose values read it."""
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
    """The reason why a match cannot become one function, ``None`` where it can.

    Parameters
    ----------
    context : Context
        The match.
    outputs : sequence of str
        Annotated parts, besides the root, whose results may be used outside.
    writers : iterable of WritersBetween
        Of the functions that are searched. The match will be in the place of its last call, and must not read there a
        tensor that is overwritten before.
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
