"""Fused operators: a subgraph that becomes one PrimFunc, with a compute and a schedule of the user's own.

pattern                          compute, schedule               program
softmax(matmul(q, k))      ──>   attention(q, k, v)       ──>    call_tir(attention, q, k, v)
  matmul v                       in one kernel
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm.relax import dpl

from ..namespace import FusedOp
from ..namespaces import claim_namespace
from ..registry import register_pattern
from .route import HookRoute

_OUTPUT = "output_{}"  # how the pattern's annotations call the further outputs


def register_fused_op(
    compiler: str,
    name: str,
    pattern: Any,
    compute: Callable[..., Any] | None = None,
    schedule: Callable[[Any], Any] | None = None,
    *,
    annotations: Mapping[str, Any] | None = None,
    outputs: Sequence[Any] = (),
    check: Callable[[Mapping[str, Any]], Any] | None = None,
    example: Callable[[], tvm.IRModule] | None = None,
    override: bool = False,
    extend: bool = False,
) -> FusedOp:
    """Replace each match of a pattern by one operator with its own compute and schedule.

    TVM lowers the resulting PrimFunc, or the ``tir_to_runtime`` hook of the namespace where it has one. A match is
    refused if one of its intermediate results is used outside, or if one of its inputs is computed from one of its
    results, so that it could not run as one call.

    Parameters
    ----------
    compiler, name : str
        Namespace, which needs nothing else, and a name unique in it.
    pattern : tvm.relax.dpl.DFPattern
        What to find. Its root is a call; every operand of every call is written out.
    compute : callable, optional
        ``compute(*inputs, **parts)`` returns the result as a ``te.Tensor``; several in the order of root and
        ``outputs``. There is one input for each leaf of the pattern (``wildcard()``, ``is_const()``), in the
        order of the pattern from left to right; a shape is passed as a list of dims. ``parts`` are the matched calls,
        for their attributes: those of ``annotations`` for which ``compute`` has a parameter of that name. By default
        the computes of the matched operators (`translate_to_te`).
    schedule : callable, optional
        ``schedule(sch)`` changes a ``tvm.s_tir.Schedule`` in place, or returns another, or a PrimFunc. A block has the
        name of its compute stage. By default nothing is scheduled.
    annotations : mapping of str to DFPattern, optional
        Parts of ``pattern`` that ``compute`` and ``check`` want to see.
    outputs : sequence of DFPattern, optional
        Parts of ``pattern``, besides its root, whose results may be used outside.
    check : callable, optional
        ``check(match) -> True | False | Reject``, as in `register_pattern`.
    example : callable, optional
        A module that the pattern matches, for the conformance kit, as in `register_pattern`.
    override : bool
        Replace an earlier registration, also another package's, instead of raising ``ValueError``.
    extend : bool
        Add to a namespace that another package has registered, instead of raising ``ValueError``.

    Raises
    ------
    TypeError, ValueError
        If the pattern cannot become one operator, or something is no function; the message says why.
    """
    who = f"fused op {compiler}.{name}"
    root = _unwrapped(pattern)
    if not isinstance(root, dpl.CallPattern):
        raise ValueError(
            f"{who}: the root of the pattern is a {type(root).__name__}; expected a call. For several results make the "
            "call that depends on the others the root, and name the others in outputs="
        )
    for what, function in (("compute", compute), ("schedule", schedule)):
        if function is not None and not callable(function):
            raise TypeError(f"{who}: {what} is {function!r}; expected a function")
    named = dict(annotations or {})
    parts = list(dict.fromkeys(_subpatterns(pattern, who)))
    for label, part in [*((f"annotation {n!r}", p) for n, p in named.items()), *(("output", p) for p in outputs)]:
        if part not in parts:
            raise ValueError(f"{who}: {label} is {part!r}, which is not a part of the pattern")
    inputs = tuple(p for p in parts if not list(_children(p, who)))
    op = FusedOp(name, inputs, (pattern, *outputs), named, compute, schedule)
    extra = {_OUTPUT.format(i): p for i, p in enumerate(outputs, 1)}
    register_pattern(
        compiler,
        name,
        pattern,
        annotations={**named, **extra},
        check=check,
        outputs=tuple(extra),
        example=example,
        override=override,
        extend=extend,
    )
    ns = claim_namespace(compiler, extend or override)
    ns.fused_ops[name], ns.kernels = op, HookRoute(ns)
    return op


# ---------------------------------------------------------------- the pattern
_WRAPPERS = (dpl.AttrPattern, dpl.DataTypePattern, dpl.ShapePattern, dpl.TypePattern)


def _unwrapped(pattern: Any) -> Any:
    while isinstance(pattern, _WRAPPERS):
        pattern = pattern.pattern
    return pattern


def _children(pattern: Any, who: str) -> Iterator[Any]:
    """The leaves of a pattern, from left to right."""
    if isinstance(pattern, _WRAPPERS):
        yield pattern.pattern
    elif isinstance(pattern, dpl.CallPattern):
        if not len(pattern.args):
            raise ValueError(f"{who}: a call in the pattern leaves its operands open; write one wildcard() for each")
        yield from pattern.args
    elif isinstance(pattern, (dpl.TuplePattern, dpl.UnorderedTuplePattern)):
        yield from pattern.fields
    elif isinstance(pattern, dpl.TupleGetItemPattern):
        yield pattern.tuple
    elif isinstance(pattern, (dpl.AndPattern, dpl.OrPattern, dpl.NotPattern)):
        raise ValueError(
            f"{who}: the pattern contains a {type(pattern).__name__}, so that its inputs depend on what it matches; "
            "register one fused op for each alternative"
        )


def _subpatterns(pattern: Any, who: str) -> Iterator[Any]:
    yield pattern
    for child in _children(pattern, who):
        yield from _subpatterns(child, who)
