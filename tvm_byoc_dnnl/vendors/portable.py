"""``relax.ext.<namespace>``: the function that TVM's RunCodegen calls for the regions of a namespace; each region
becomes a `PortableGraph`, by the namespace's lowerings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..core import _native
from ..core.errors import NativeLibraryError, UnsupportedError
from ..core.tvm_fast import ByIdentity, is_a, items
from ..core.verdict import BrokenRegions, Failure, Reject, calling, describe
from ..graph import PortableGraph
from ..graph.builder import GraphBuilder
from ..ir.relax_utils import bindings_of, codegen_of, composite_of, constants_in, op_calls
from ..ir.tvm_compat import constant_tensor
from . import Namespace, Pattern, told
from .codegen import NO_TERMS, OUTPUTS, Codegen, SourceBuild, Terms, Times, attempt, once
from .namespaces import checked_options, get_target_options, namespace, registered


@dataclass(frozen=True)
class _Lowered:
    graph: PortableGraph
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
    """A region as a graph; ``constant_names`` has the names at run time, and without it constants are numbered."""
    lowered = once(("graph", ns.name), func, options, lambda: _lower(ns, func, dict(options or {})))
    return lowered.named(symbol, constant_names)


def _lower(ns: Namespace, func: relax.Function, options: dict[str, Any]) -> _Lowered:
    g = GraphBuilder("region")
    g.graph.options = options
    for param in func.params:
        g.add_input(param)
    arguments = len(g.graph.inputs)
    _lower_body(ns, g, func)
    graph = g.finish(g.values(func.body.body))
    graph = told(ns, "optimize", graph) or graph
    constants = {g.constants.get(constant.name) for constant in graph.constants}
    if len(graph.inputs) != arguments or not constants <= set(constants_in(func)):
        raise Reject(f"the graph of {ns.name!r} reads a value that the region has not; nodes' attributes hold numbers")
    return _Lowered(graph, g.constants)


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


_OURS: dict[str, Any] = {}


@dataclass(frozen=True)
class PortableCodegen(Codegen):
    """A codegen that consumes portable graphs: it lowers each region, and ``create_module`` does the rest.

    Parameters
    ----------
    compiler : str
        The namespace, whose lowerings write the graphs.
    create_module : callable
        ``create_module(graph) -> tvm.runtime.Module`` with the functions that TVM's constant loader asks for
        (``get_symbol``, ``get_const_vars``, ``__init_<symbol>``) and ``<symbol>`` itself.
    create_source : callable, optional
        The same as a source module (kind ``"c"``), for ``output="source"``; raises `UnsupportedError` for what cannot
        be said in source.
    source_build : callable, optional
        ``source_build() -> SourceBuild``: the headers and libraries that such a source needs.
    options : mapping, optional
        Options that lowerings read from ``g.graph.options``, declared as for `register_codegen`.
    measure_candidates : callable, optional
        ``measure_candidates(graph, rounds)`` times what the library can choose from for each operation of a static
        graph, in so many turns, and names it without any: a document as in docs/portable_graph.md. `tune` calls it, and
        ``create_module`` finds what is known in ``graph.times``.
    measure_machine : callable, optional
        ``measure_machine(threads, tell)`` measures this machine with each of some numbers of threads, tells lines about
        its progress, and returns a description as the engine reads it, and lines about what it found.
        ``tvm-byoc tune --machine`` calls it, and writes the file that ``machine`` of the engine's facts names.
    """

    compiler: str
    create_module: Callable[[PortableGraph], tvm.runtime.Module]
    create_source: Callable[[PortableGraph], tvm.runtime.Module] | None = None
    source_build: Callable[[], SourceBuild] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    measure_candidates: Callable[[PortableGraph, int], Mapping[str, Any]] | None = None
    measure_machine: Callable[[Sequence[int], Callable[[str], None]], tuple[Mapping[str, Any], str]] | None = None
    compiles = False

    def __post_init__(self) -> None:
        output = {"output": OUTPUTS} if self.create_source is not None else {}
        object.__setattr__(self, "options", {**output, **(self.options or {})})

    @property
    def makes_source(self) -> bool:  # type: ignore[override]
        return self.create_source is not None

    def __call__(
        self,
        functions: Sequence[relax.Function],
        options: Mapping[str, Any] | None,
        constant_names: Mapping[Any, str],
        terms: Terms = NO_TERMS,
    ) -> list[tvm.runtime.Module]:
        """See `Codegen`."""
        ns = namespace(self.compiler)
        given = {str(name): value for name, value in (options or {}).items()}
        output = checked_options(self.compiler, given).get("output", OUTPUTS[0])
        if output == "source" and self.source_build is not None:
            self.source_build().check()
        names = {constant: str(name) for constant, name in constant_names.items()}
        lowered = (lower_region(ns, f, str(f.attrs["global_symbol"]), names, given) for f in functions)
        graphs = [self.with_times(graph, terms.times) for graph in lowered]
        if output != "source":
            return [self.create_module(g) for g in graphs]
        return [self._source(with_checksums(g, names), terms) for g in graphs]

    def with_times(self, graph: PortableGraph, times: Times | None) -> PortableGraph:
        """The graph with the known times of its candidates."""
        return graph if times is None else replace(graph, times=times(self, graph))

    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        """See `Route.attempt`; the cheap attempt lowers a region and lets the library plan it."""
        ns, stage = namespace(self.compiler), "lower"
        try:
            with calling(f"a lowering of {ns.name!r}"):
                graph = lower_region(ns, region, "trial", options=options)
            stage = "plan"
            refusal = told(ns, "probe", graph)
        except NativeLibraryError:
            raise
        except Exception as error:
            return Failure(stage, describe(error))
        if refusal is not None:
            return Failure(stage, refusal.reason)
        if not fully:
            return None
        return super().attempt(region, options)

    def build(self, mod: tvm.IRModule, options: Mapping[str, Any], terms: Terms) -> tvm.IRModule:
        """See `Route.build`; a module is made without asking the library, so regions that were not tried are now."""
        regions = {gv: f for gv, f in mod.functions.items() if codegen_of(f) == self.compiler}
        attempts = {gv: attempt(self, f, options) for gv, f in regions.items()}
        failures = {gv: failure for gv, failure in attempts.items() if failure is not None}
        if failures:
            raise BrokenRegions(failures)
        return super().build(mod, options, terms)

    def source(self, region: relax.Function, symbol: str, options: Mapping[str, Any]) -> tvm.runtime.Module:
        """See `Route.source`."""
        if self.create_source is None:
            return super().source(region, symbol, options)
        return self.create_source(lower_region(namespace(self.compiler), region, symbol, options=options))

    def _source(self, graph: PortableGraph, terms: Terms) -> tvm.runtime.Module:
        """``graph`` as source; a module where it cannot be written as source, if such cases are noted."""
        assert self.create_source is not None
        try:
            return self.create_source(graph)
        except UnsupportedError as error:
            if terms.not_source is None:
                raise
            terms.not_source[graph.name] = " ".join(str(error).split())
            return self.create_module(graph)


#: how vendors call it
portable_codegen = PortableCodegen


def source_namespaces(mod: tvm.IRModule) -> list[Namespace]:
    """The namespaces whose regions of this module are to be source, by its options."""
    return [
        ns
        for ns in registered()
        if ns.route.makes_source and get_target_options(mod, ns.name).get("output") == "source"
    ]


def source_builds(spaces: Iterable[Namespace]) -> list[SourceBuild]:
    """The headers and libraries that the source modules of these namespaces need."""
    return [build() for ns in spaces if (build := ns.route.source_build) is not None]


def install_codegen(ns: Namespace) -> None:
    """Make a namespace's codegen known to TVM."""
    if ns.codegen is None:
        return
    name = f"relax.ext.{ns.name}"
    present = tvm.get_global_func(name, allow_missing=True)
    if present is not None and ns.name not in _OURS:
        raise NativeLibraryError(
            f"{name} is registered already by another library (is this a TVM built with USE_{ns.name.upper()}=ON?); "
            "expected it to be free. Use the stock apache-tvm wheel, or a TVM built with that option OFF"
        )
    if present is None or _OURS.get(ns.name) is not ns.codegen:
        tvm_ffi.register_global_func(name, ns.codegen, override=True)
        _OURS[ns.name] = ns.codegen
