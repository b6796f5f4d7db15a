"""Calls that overwrite an argument: calls that read the old values have to stay before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import relax

from .relax_utils import bindings_in, is_op_call

#: operators that overwrite arguments, those behind the first
IN_PLACE = frozenset({"relax.call_tir_inplace", "relax.call_inplace_packed"})
#: operators whose result may be the memory of their argument
_VIEWS = {*IN_PLACE, "relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset"}


def _overwritten(value: Any) -> list[Any]:
    """The arguments that a call overwrites."""
    if not is_op_call(value) or value.op.name not in IN_PLACE:
        return []
    args = list(value.args[1:])
    if args and isinstance(args[0], relax.Tuple):
        args = [*args[0].fields, *args[1:]]
    return [args[int(i)] for i in value.attrs.inplace_indices if int(i) >= 0]


class WritersBetween:
    """Finds calls of a function that overwrite an argument between two other bindings."""

    def __init__(self, func: relax.Function) -> None:
        bindings = list(bindings_in(func))
        self._places = {b.var: place for place, b in enumerate(bindings)}
        self._writers = {place: b.var for place, b in enumerate(bindings) if _overwritten(b.value)}

    def first(self, variables: Iterable[Any]) -> Any:
        """The first result of such a call that is bound between the first and the last of ``variables``, or None."""
        places = [self._places[v] for v in variables if v in self._places]
        return next((var for at, var in self._writers.items() if places and min(places) < at < max(places)), None)


def _may_alias(value: Any, is_composite: bool) -> bool:
    """Whether the result may be the memory of an operand: all but new tensors of operators and of composites."""
    if is_op_call(value):
        return value.op.name in _VIEWS
    return not is_composite


def order_constraints(bindings: Sequence[Any], composites: Iterable[Any]) -> dict[Any, list[Any]]:
    """Variable → earlier variables that have to be computed before it although it does not read them.

    Parameters
    ----------
    bindings : sequence of Binding
        A dataflow block, in order.
    composites : iterable of Var
        Results of composite functions, which are new tensors.

    Returns
    -------
    dict
        A call that overwrites a tensor comes behind all that read it earlier, under any name, and in front of all that
        read it later. Empty where nothing is overwritten.
    """
    if not any(_overwritten(b.value) for b in bindings):
        return {}
    fresh = set(composites)
    memories = _Memories()
    constraints: dict[Any, list[Any]] = {}
    for binding in bindings:
        var, value = binding.var, binding.value
        reads = relax.analysis.free_vars(value)
        before = [w for m in map(memories.of, reads) for w in m.writers]
        for target in _overwritten(value):
            for memory in map(memories.of, relax.analysis.free_vars(target)):
                before += memory.readers
                memory.readers, memory.writers = [], [var]
        if before := [v for v in dict.fromkeys(before) if not v.same_as(var)]:
            constraints[var] = before
        for read in reads:
            memories.of(read).readers.append(var)
            if _may_alias(value, var in fresh):
                memories.join(var, read)
    return constraints


class _Memory:
    """The memory that variables share."""

    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.readers: list[Any] = []  # since it was overwritten last
        self.writers: list[Any] = []  # which overwrote it last


class _Memories:
    """The memory of each variable."""

    def __init__(self) -> None:
        self._of: dict[Any, _Memory] = {}

    def of(self, var: Any) -> _Memory:
        if var not in self._of:
            self._of[var] = _Memory()
            self._of[var].variables.append(var)
        return self._of[var]

    def join(self, a: Any, b: Any) -> None:
        """From now on the two variables may share their memory."""
        kept, gone = self.of(a), self.of(b)
        if kept is gone:
            return
        if len(kept.variables) < len(gone.variables):
            kept, gone = gone, kept
        kept.variables += gone.variables
        kept.readers += gone.readers
        kept.writers += gone.writers
        self._of.update(dict.fromkeys(gone.variables, kept))
