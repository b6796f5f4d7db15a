"""One partitioned Relax function → `PortableGraph`, by the namespace's lowerings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from ...core import _native
from ...core.compilation import current
from ...core.tvm_fast import ByIdentity, items
from ...core.verdict import Reject
from ...graph.builder import GraphBuilder
from ...graph.graph import PortableGraph
from ...ir.relax_utils import bindings_of, composite_of, op_calls
from ...ir.tvm_compat import constant_tensor, is_a
from ..namespace import Namespace, Pattern, told


@dataclass(frozen=True)
class _Lowered:
    """A region as a graph, the options that it was lowered with, and the Relax constant behind each name in it."""

    graph: PortableGraph
    options: Mapping[str, Any]
    constants: Mapping[str, Any]

    def named(self, symbol: str, constant_names: Mapping[Any, str] | None) -> PortableGraph:
        """The graph with a name of its own, and its constants with the names at run time, if these are given."""
        graph = replace(self.graph, name=symbol, tensors=list(self.graph.tensors), constants=list(self.graph.constants))
        for place, constant in enumerate(graph.constants if constant_names is not None else ()):
            name = constant_names[self.constants[constant.name]]  # type: ignore[index]
            graph.constants[place] = replace(constant, name=name)
            graph.tensors[constant.tensor] = replace(graph.tensors[constant.tensor], name=name)
        return graph


def lower_region(
    ns: Namespace,
    func: relax.Function,
    symbol: str,
    constant_names: Mapping[Any, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> PortableGraph:
    """Lower a region: calls of composite functions, or plain operator calls.

    Parameters
    ----------
    ns : Namespace
        Whose lowerings to use.
    func : relax.Function
        The region; its parameters become the graph's inputs in order.
    symbol : str
        Name of the graph.
    constant_names : mapping, optional
        Relax constant → name at run time, as ``RunCodegen`` hands it over; without it constants are numbered.
    options : mapping, optional
        Of the namespace, for its lowerings and for ``optimize``: ``g.graph.options``.

    Raises
    ------
    Reject
        If something in the region has no lowering, or its lowering refuses; the reason names the op.
    """
    remembered = current().lowered
    key = (ns.name, func.body)
    lowered = remembered.get(key) if remembered is not None else None
    if lowered is None or lowered.options != dict(options or {}):
        lowered = _lower(ns, func, dict(options or {}))
        if remembered is not None:
            remembered[key] = lowered
    return lowered.named(symbol, constant_names)


def _lower(ns: Namespace, func: relax.Function, options: dict[str, Any]) -> _Lowered:
    g = GraphBuilder("region")
    g.graph.options = options
    for param in func.params:
        g.add_input(param)
    arguments = len(g.graph.inputs)
    _lower_body(ns, g, func)
    graph = g.finish(g.values(func.body.body))
    if len(graph.inputs) != arguments:
        raise Reject(f"a lowering of {ns.name!r} reads what is neither an argument nor a result of the region")
    return _Lowered(graph if ns.optimize is None else told(ns, "optimize", graph), options, g.constants)


def with_checksums(graph: PortableGraph, constant_names: Mapping[Any, str]) -> PortableGraph:
    """``graph`` with the checksums of its constants' values; names as for `lower_region`."""
    values = {name: constant for constant, name in constant_names.items()}
    graph.constants = [replace(c, checksum=_native.checksum(constant_tensor(values[c.name]))) for c in graph.constants]
    return graph


def _lower_body(ns: Namespace, g: GraphBuilder, func: relax.Function) -> None:
    local: ByIdentity[relax.Function] = ByIdentity()
    for var, value in bindings_of(func):
        if is_a(value, relax.Function):
            local[var] = value
        elif is_a(value, relax.Call) and value.op in local:
            g.bind(var, _lower_composite(ns, g, local[value.op], value))
        elif isinstance(value, relax.Call):
            g.bind(var, _lower_call(ns, g, value))
        else:  # alias, tuple, tuple item, constant
            g.bind(var, g.values(value))
            if is_a(value, relax.Var):  # of another type where it was a match_cast
                g.equate(var)


def _lower_call(ns: Namespace, g: GraphBuilder, call: Any) -> Any:
    if not is_a(call.op, tvm.ir.Op):
        raise Reject(f"a call of {call.op} has no meaning inside a region")
    op = call.op.name
    if op not in ns.lowerings:
        raise Reject(f"{ns.name!r} has no lowering for {op}")
    g.begin([op])
    result = ns.lowerings[op](g, call)
    if isinstance(result, Reject):
        raise result
    return result


def _lower_composite(ns: Namespace, g: GraphBuilder, func: relax.Function, call: Any) -> Any:
    """Inline a composite: by its pattern's own lowering, else op by op."""
    g.bind_call(items(func.params), items(call.args))
    pattern = ns.patterns.get(composite_of(func).partition(".")[2])
    if pattern is not None and pattern.lower is not None:
        return _lower_pattern(g, pattern, func)
    _lower_body(ns, g, func)
    return g.values(func.body.body)


def _lower_pattern(g: GraphBuilder, pattern: Pattern, func: relax.Function) -> Any:
    match = match_annotations(pattern, func)
    if match is None:
        raise Reject(f"the composite {composite_of(func)} no longer looks like its pattern")
    g.begin(call.op.name for _, call in op_calls(func))
    assert pattern.lower is not None
    result = pattern.lower(g, match)
    if isinstance(result, Reject):
        raise result
    return result


def match_annotations(pattern: Pattern, func: relax.Function) -> dict[str, Any] | None:
    """Match ``pattern`` against a composite's body: annotation name (and ``"root"``) → expression, or ``None``."""
    var_to_value = dict(bindings_of(func))
    root = func.body.body
    found = pattern.pattern.extract_matched_expr(root, var_to_value)
    if found is None:
        return None
    match = {name: found[part] for name, part in pattern.annotations.items() if part in found}
    return {**match, "root": var_to_value.get(root, root)}
