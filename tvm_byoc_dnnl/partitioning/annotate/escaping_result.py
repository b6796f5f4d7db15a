"""Results of a match that are used outside: which results others read, and whether the match can run as one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import relax

from ...core.tvm_fast import items
from ...core.verdict import Reject
from ...ir.order import WritersBetween

__all__ = ["refuse_escape"]


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
