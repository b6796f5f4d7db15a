"""Functions in the form in which they are searched for patterns: fields in the place of tuples, variables whose names
differ, and of the conversions of quantised tensors a copy for each reader.

    q ─ dequantize ┬ conv2d ─ quantize           q ┬ dequantize ─ conv2d ─ quantize
                   └ add ─────── …         ──>     └ dequantize ─ add ─────── …

A group from its dequantizes to its quantize has no result then that others read, so that a pattern can take it. The
copies that no pattern took are one again afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from ..core.tvm_fast import ByIdentity, is_a, items
from ..ir.relax_utils import NESTED, bindings_in, bindings_of, free_name, is_op_call
from ..ir.tvm_compat import dtype_of, make_var, with_args
from ..ir.walker import Substitute, rewrite_blocks, rewrite_calls
from ..vendors.quantised_groups import CONVERSIONS, QUANTIZE


class OwnCopies:
    def __init__(self) -> None:
        self._original: ByIdentity[Any] = ByIdentity()  # of a copy

    def made(self, func: relax.Function) -> relax.Function:
        taken = {str(var.name) for var in (*items(func.params), *(b.var for b in bindings_in(func)))}
        return rewrite_blocks(func, lambda block: self._split(block, taken))

    def joined(self, func: relax.Function) -> relax.Function:
        return rewrite_blocks(func, self._join) if self._original else func

    def _split(self, block: Any, taken: set[str]) -> Any:
        bindings = items(block.bindings)
        reads = [items(relax.analysis.free_vars(binding.value)) for binding in bindings]
        readers = Counter(hash(var) for of_binding in reads for var in of_binding)
        bound = ByIdentity.of((b.var, None) for b in bindings)
        shared: ByIdentity[Any] = ByIdentity()  # variable → the conversion that is copied for all readers but one
        for binding in bindings:
            value = binding.value
            if is_op_call(value) and value.op.name in CONVERSIONS:
                is_only_for_it = value.args[0] in bound and readers[hash(value.args[0])] == 1
                if not is_only_for_it or not _ends_a_group(value):
                    shared[binding.var] = value
        made: list[Any] = []
        given: set[int] = set()  # originals that have a reader

        def own(var: Any) -> Any:
            if is_a(var, relax.DataflowVar) and hash(var) not in given:  # nothing behind the block reads it
                given.add(hash(var))
                return var
            args = [own(arg) if arg in shared else arg for arg in items(shared[var].args)]
            copy = make_var(free_name(str(var.name), taken, 1), var.ty, is_dataflow=True)
            self._original[copy] = var
            made.append(relax.VarBinding(copy, with_args(shared[var], args, var.ty)))
            return copy

        for binding, variables in zip(bindings, reads, strict=True):
            copies = {var: own(var) for var in variables if var in shared}
            made += Substitute(copies).bindings(binding) if copies else [binding]
        return block if len(made) == len(bindings) else relax.DataflowBlock(made)

    def _join(self, block: Any) -> Any:
        first: ByIdentity[list[tuple[Any, Any]]] = ByIdentity()  # original → different calls of it and its copies
        known = Substitute({})
        made: list[Any] = []
        for given in items(block.bindings):
            (binding,) = known.bindings(given)
            original = self._original.get(binding.var, binding.var)
            equal = first.setdefault(original, []) if is_a(binding.value, relax.Call) else []
            same = next((var for var, call in equal if _equal(call, binding.value)), None)
            if same is not None and binding.var in self._original:
                known.put(given.var, same)
                continue
            equal.append((binding.var, binding.value))
            made.append(binding)
        return block if len(made) == len(block.bindings) else relax.DataflowBlock(made)


def _ends_a_group(conversion: Any) -> bool:
    """Whether what it converts is a group's result: the stored tensor that a dequantize reads is none, unless it is a
    sum of 32 bits.
    """
    return conversion.op.name == QUANTIZE or dtype_of(conversion.args[0].ty) == "int32"


def _equal(a: Any, b: Any) -> bool:
    return a.op.same_as(b.op) and all(map(structural_equal, items(a.args), items(b.args)))


def spread_tuples(func: relax.Function, ops: Collection[str]) -> relax.Function:
    """``func`` with ``concat(t)`` written as ``concat((a, b))``, which can be merged with what makes ``a``."""
    if not any(is_a(value, NESTED) or _reads_tuple(value, ops) for _, value in bindings_of(func)):
        return func  # a visit of every expression takes long
    changed = rewrite_calls(func, partial(_spread, ops))
    return func if changed is func else relax.analysis.remove_all_unused(changed)


def _is_held(expr: Any) -> bool:
    return is_a(expr, relax.Var) and is_a(expr.ty, relax.TupleType)


def _reads_tuple(value: Any, ops: Collection[str]) -> bool:
    return is_op_call(value) and value.op.name in ops and any(map(_is_held, items(value.args)))


def _spread(ops: Collection[str], bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
    if not _reads_tuple(call, ops):
        return None
    return with_args(call, [_fields(bb, arg) if _is_held(arg) else arg for arg in items(call.args)])


def _fields(bb: relax.BlockBuilder, var: Any) -> Any:
    known = bb.lookup_binding(var)
    if isinstance(known, relax.Tuple):
        return known
    fields = [bb.emit(relax.TupleGetItem(var, i), f"{var.name}_{i}") for i in range(len(var.ty.fields))]
    return relax.Tuple(fields)


def with_unique_names(func: relax.Function) -> relax.Function:
    bound = [*items(func.params)]
    for binding in bindings_in(func):
        value = binding.value
        bound += [*items(value.params), binding.var] if isinstance(value, relax.Function) else [binding.var]
    taken: dict[str, int] = {}
    renamed: dict[Any, Any] = {}
    for var in bound:
        name = given = str(var.name)
        while name in taken:
            taken[given] += 1
            name = f"{given}_{taken[given]}"
        taken[name] = 0
        if name != given:
            renamed[var] = type(var)(name, var.ty)
    return Substitute(renamed).function(func) if renamed else func
