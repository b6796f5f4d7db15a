"""The account of a module's calls, as plain data: who runs each, and why the others do not.

The primitives of a region: each node of its graph, which the build has tried, knows the calls that it is made from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm

from ..core.compilation import ALONE, FOR_REPORTS, FORM, MATCH, Compilation, Fact, read_facts
from ..core.machine import version_of
from ..core.tvm_fast import ByIdentity
from ..core.verdict import describe
from ..graph import VIEWS, PortableGraph
from ..graph.cost import call_bytes, call_flops, type_bytes, usual_sizes
from ..graph.node_list import Node as GraphNode
from ..ir.relax_utils import codegen_of, inputs_of, outputs_of, type_text
from ..vendors import Description, Namespace, told
from ..vendors.codegen import Times
from ..vendors.namespaces import compilation_of, find_namespace
from ..vendors.portable import PortableCodegen, lower_region
from ..whole.table import is_whole
from .flow import Flow, Leaf, Node, OnnxNodes, nodes_of, read_flow
from .report_data import CallReport, Candidate, NearMiss, RegionReport, ReportData, Totals, Value
from .trial import ask

_logger = logging.getLogger("tvm_byoc_dnnl")

_TAKE_BIAS = frozenset({"convolution", "deconvolution", "matmul"})
_VANISHED = "nothing: fused away"


@dataclass(frozen=True)
class Primitive:
    #: position among the region's primitives: calls with the same one are fused
    step: int | None
    #: kind and post-ops: ``"convolution + relu + add"``
    label: str
    #: the library's name for the implementation, ``""`` where it does not tell
    implementation: str = ""
    is_view: bool = False
    #: why it is not fused into the primitive before it, where that was tried
    apart: str = ""
    #: why it computes in float32, where the model or the user asked for a lower precision
    precision: str = ""


@dataclass
class RegionPrimitives:
    """The primitives of a region, by the position of the call (in one use of the region) that they come from."""

    of_call: dict[int, list[Primitive]] = field(default_factory=dict)
    reorders: int | None = None
    #: of calls that no primitive comes from
    others: list[Primitive] = field(default_factory=list)

    def of(self, position: int) -> list[Primitive]:
        return self.of_call.get(position, self.others)


def primitives_of(
    ns: Namespace, func: Any, name: str, options: Mapping[str, Any], times: Times | None
) -> RegionPrimitives:
    """How a namespace runs the graph of a region, which was lowered when it was tried; empty without lowerings."""
    try:
        graph = lower_region(ns, func, name, options=options)
    except Exception:  # no lowering, or a vendor's bug: the rest of the report is still useful
        return RegionPrimitives()
    if isinstance(ns.codegen, PortableCodegen):
        graph = ns.codegen.with_times(graph, times)
    description: Description | None = _said(ns, "describe", graph)
    found = RegionPrimitives(
        reorders=description.reorders if description else None, others=[Primitive(None, _VANISHED, is_view=True)]
    )
    for index, graph_node in enumerate(graph.nodes):
        primitive = _primitive(graph, graph_node, description, index)
        for position in dict.fromkeys(graph_node.calls):
            found.of_call.setdefault(position, []).append(primitive)
    return found


def notes_of(ns: Namespace, func: Any, options: Mapping[str, Any]) -> str:
    return " ".join((_said(ns, "notes", func, dict(options), around=[func]) or "").split())


def _said(ns: Namespace, function: str, *arguments: Any, around: Sequence[Any] | None = None) -> Any:
    """What a function of a namespace says, ``None`` without one; a failure leaves the rest of the report useful."""
    try:
        return told(ns, function, *arguments, around=around)
    except Exception as error:
        _logger.warning("%s", describe(error))
        return None


def _primitive(graph: PortableGraph, node: GraphNode, description: Description | None, index: int) -> Primitive:
    implementation = ""
    if description is not None and index < len(description.implementations):
        implementation = description.implementations[index]
    operands = len(node.inputs) - sum(op.kind == "binary" for op in node.post_ops)
    bias = ["bias"] if node.kind in _TAKE_BIAS and operands == 3 else []
    label = " + ".join([node.function, *bias, *(op.alg for op in node.post_ops)])
    dtype = graph.tensors[node.inputs[0]].dtype
    if dtype in ("bfloat16", "float16") and not node.precision:
        label += f" in {dtype}"
    return Primitive(index, label, implementation, node.kind in VIEWS, node.apart, node.precision)


#: stages of the build's notes whose reasons a compiler gives again when it is asked
_OF_ANNOTATION = ("annotate", "pattern")


class BuildLog:
    def __init__(self, mod: tvm.IRModule) -> None:
        try:
            self._facts = read_facts(mod)
        except (TypeError, ValueError):
            self._facts = []  # another version's notes: the compilers are asked again in any case
        self.onnx_nodes = OnnxNodes(mod)
        self._failures: dict[tuple[str, str, str], list[Fact]] = {}
        self._alone: dict[tuple[str, str, str, str], str] = {}
        #: of an operator that was whole then: its node, and why the compiler refused it
        self._whole: dict[tuple[str, str, str | None], str] = {}
        for fact in self._facts:
            compiler, function = fact.compiler, fact.function
            if fact.stage == ALONE:
                self._alone[compiler, function, fact.op, fact.name] = fact.reason
                if is_whole(fact.op):
                    self._whole[compiler, function, self.onnx_nodes.of(function, fact.name)] = fact.reason
            elif fact.stage not in FOR_REPORTS:
                self._failures.setdefault((compiler, function, fact.op), []).append(fact)

    def of(self, stage: str) -> list[Fact]:
        return [fact for fact in self._facts if fact.stage == stage]

    def failures(self, node: Node, compiler: str) -> list[Fact]:
        """Why ``compiler`` did not get calls of this operator that it was offered."""
        return self._failures.get((compiler, node.function, node.op), [])

    def refusal(self, node: Node, compiler: str) -> str | None:
        """Why ``compiler`` refuses the call by itself, "" where it would take it; ``None`` where it was not asked."""
        return self._alone.get((compiler, node.function, node.op, node.name))

    def refusal_of_whole(self, node: Node, compiler: str) -> str:
        """Why ``compiler`` refused the operator by whose definition a kernel is called, "" where there is none."""
        of = self.onnx_nodes.of(node.function, node.name) if node.kernel else None
        return self._whole.get((compiler, node.function, of), "") if of else ""


def verdicts(
    node: Node,
    namespaces: Sequence[Namespace],
    log: BuildLog,
    compilation: Compilation,
    refused: Sequence[NearMiss] = (),
) -> tuple[list[Candidate], list[str]]:
    """Every compiler in order with why it does not take the call, and the reasons of those before its own."""
    why = {ns.name: _reasons(ns, node, log, compilation, refused) for ns in namespaces}
    names = list(why)
    first = names[: names.index(node.compiler)] if node.compiler in why else names
    return [Candidate(n, "; ".join(why[n])) for n in names], [f"{n}: {reason}" for n in first for reason in why[n]]


def _reasons(
    ns: Namespace, node: Node, log: BuildLog, compilation: Compilation, refused: Sequence[NearMiss]
) -> list[str]:
    if ns.name == node.compiler:
        return []
    offered = log.failures(node, ns.name)
    own = [fact for fact in offered if fact.name == node.name]
    if noted := [fact for fact in own if fact.stage not in _OF_ANNOTATION]:  # of a pattern's call, too
        return _texts(noted)
    if node.op not in ns.ops():  # it takes the call in patterns only
        names = [(miss.pattern.split(".", 1), miss.reason) for miss in refused]
        if found := [f"pattern {name}: {reason}" for (owner, name), reason in names if owner == ns.name]:
            return list(dict.fromkeys(found))
    refusal = _refusal(ns, node, log, compilation)
    if refusal:
        return [refusal]
    if not offered and not node.compiler:
        return ["would take this call, but the module leaves it with TVM and does not say why"]
    return _texts(own or offered)


def _texts(facts: Iterable[Fact]) -> list[str]:
    return list(dict.fromkeys(f"{fact.stage}: {fact.reason}" for fact in facts))


def _refusal(ns: Namespace, node: Node, log: BuildLog, compilation: Compilation) -> str:
    """Why a compiler refuses a call, as it told the build; where that had no reason to ask, it is asked now."""
    if not isinstance(node.call.op, tvm.ir.Op):
        return f"{node.op} is no Relax operator"
    if whole := log.refusal_of_whole(node, ns.name):
        return whole
    reason = log.refusal(node, ns.name)
    if reason is None:
        refusal = ask(ns, node.call, compilation)
        reason = "" if refusal is None else refusal.reason
        if reason and node.op in ns.ops():
            reason += " (asked by the report)"
    return f"{reason} (it calls {node.kernel})" if reason and node.kernel else reason


_PACKAGES = ("tvm-byoc-dnnl", "apache-tvm", "apache-tvm-ffi")


def account_of(
    mod: tvm.IRModule, asked: Sequence[str], *, times: Times | None = None, with_primitives: bool = True
) -> ReportData:
    """Find who runs each call of a partitioned module, whose regions are those that will be built.

    ``asked`` are the namespaces, in order of priority. ``with_primitives`` asks each library how it runs the graphs of
    its regions, by these ``times``.
    """
    usual = usual_sizes(mod)
    flow = read_flow(mod)
    owners = [n.compiler for n in flow.nodes if n.compiler]
    # a region's codegen may be TVM's own
    by_name = {n: find_namespace(n) or Namespace(n) for n in dict.fromkeys([*asked, *owners])}
    compilation = compilation_of(mod, by_name)
    options = {n: compilation.options.get(n, {}) for n in by_name}
    lowered = {
        name: primitives_of(by_name[codegen_of(func)], func, name, options[codegen_of(func)], times)
        if with_primitives
        else RegionPrimitives()
        for name, func in flow.regions.items()
    }
    made = _made(flow, lowered)
    log = BuildLog(mod)
    matches, forms = _matches(flow, log.of(MATCH)), log.of(FORM)
    calls = []
    for node in flow.nodes:
        call = _call(node, by_name, made.get(node, []), usual)
        call.onnx_node = log.onnx_nodes.of(call.function, call.name)
        refused = _refused(node, matches)
        call.candidates, call.reasons = verdicts(node, list(by_name.values()), log, compilation, refused)
        call.near_misses = [*refused, *_forms(node, forms), *_of_primitives(node, made.get(node, []))]
        calls.append(call)
    inside: dict[str | None, list[CallReport]] = {}
    for call in calls:
        inside.setdefault(call.region, []).append(call)
    regions = [_region(name, flow, inside.get(name, []), lowered[name].reorders, usual) for name in flow.regions]
    inputs, outputs = _values(mod, flow)
    silent = {r.compiler for r in regions if r.reorders is None and by_name[r.compiler].functions.describe is not None}
    packages = [*_PACKAGES, *(package for ns in by_name.values() for package in ns.doctor.packages)]
    return ReportData(
        list(by_name),
        calls,
        regions,
        _totals(calls, regions),
        symbols=[name for name in flow.symbols() if name not in usual],
        unasked=sorted(silent) if with_primitives else [],
        options={name: dict(of) for name, of in options.items() if of},
        versions={package: version for package in packages if (version := version_of(package))},
        inputs=inputs,
        outputs=outputs,
    )


def _values(mod: tvm.IRModule, flow: Flow) -> tuple[list[Value], list[Value]]:
    if "main" not in mod:
        return [], []
    func = mod["main"]
    readers: ByIdentity[list[int]] = ByIdentity.of((param, []) for param in func.params)
    for node in flow.nodes:
        for arg in node.args:
            if isinstance(arg, Leaf) and arg.expr in readers:
                readers[arg.expr].append(node.id)
    results = flow.result if isinstance(flow.result, tuple) else (flow.result,)
    makers = [[node.id for node in nodes_of(result)] for result in results]
    inputs = [Value(i.name, i.type_text, readers[p]) for i, p in zip(inputs_of(func), func.params)]
    return inputs, [Value(o.name, o.type_text, m) for o, m in zip(outputs_of(func), makers)]


def _made(flow: Flow, lowered: Mapping[str, RegionPrimitives]) -> dict[Node, list[Primitive]]:
    uses: dict[tuple[str, int], list[Node]] = {}
    for node in flow.nodes:
        if node.region:
            uses.setdefault((node.region, node.use), []).append(node)
    return {node: lowered[name].of(i) for (name, _), nodes in uses.items() for i, node in enumerate(nodes)}


def _call(
    node: Node, namespaces: Mapping[str, Namespace], made: Sequence[Primitive], usual: Mapping[str, int]
) -> CallReport:
    pattern = node.composite.partition(".")[2]
    is_fused = bool(pattern) and pattern in namespaces[node.compiler].patterns
    work = [p for p in made if not p.is_view] or made
    return CallReport(
        id=node.id,
        op=node.op,
        kernel=node.kernel,
        name=node.name,
        function=node.function,
        compiler=node.compiler or None,
        region=node.region or None,
        use=node.use,
        pattern=node.composite if is_fused else None,
        primitive=", ".join(dict.fromkeys(p.label for p in work)) or None,
        implementation=", ".join(dict.fromkeys(p.implementation for p in work if p.implementation)) or None,
        step=work[0].step if work else None,
        inputs=[n.id for n in node.inputs],
        flops=call_flops(node.call, usual),
        bytes=call_bytes(node.call, usual),
        output=type_text(node.call.ty),
        attrs=_attrs_text(node.call.attrs),
    )


#: function and variable → the refused matches around it, with the ids of their calls
_Matches = Mapping[tuple[str, str], list[tuple[Fact, list[int]]]]


def _refused(node: Node, matches: _Matches) -> list[NearMiss]:
    found = matches.get((node.function, node.name), ())
    return [NearMiss(m.op, len(m.calls), len(m.calls), m.reason, ids) for m, ids in found if node.id in ids]


def _matches(flow: Flow, refused: Sequence[Fact]) -> _Matches:
    ids: dict[tuple[str, str], list[int]] = {}
    for node in flow.nodes:
        ids.setdefault((node.function, node.name), []).append(node.id)
    found: dict[tuple[str, str], list[tuple[Fact, list[int]]]] = {}
    for match in refused:
        places = [(match.function, name) for name in match.calls]
        calls = sorted(i for place in places for i in ids.get(place, ()))
        for place in places:
            found.setdefault(place, []).append((match, calls))
    return found


def _forms(node: Node, misses: Sequence[Fact]) -> list[NearMiss]:
    """Operators that an importer may have taken apart, and that the preparing rules did not put together again."""
    mine = (m for m in misses if (m.function, m.name) == (node.function, node.name))
    return [NearMiss(m.op, 1, 2, m.reason, [node.id]) for m in mine]


def _of_primitives(node: Node, made: Sequence[Primitive]) -> list[NearMiss]:
    """Why it is a primitive of its own (fusion into the one before it is a pattern of two), and why in float32."""
    apart = dict.fromkeys(p.apart for p in made if p.apart)
    precision = dict.fromkeys(p.precision for p in made if p.precision and not p.is_view)
    notes = [*(("fusion", reason) for reason in apart), *(("precision", reason) for reason in precision)]
    return [NearMiss(f"{node.compiler}.{what}", 1, 2, reason, [node.id]) for what, reason in notes]


def _region(
    name: str, flow: Flow, inside: Sequence[CallReport], reorders: int | None, usual: Mapping[str, int]
) -> RegionReport:
    func, uses = flow.regions[name], flow.uses[name]
    border = [*(p.ty for p in func.params), func.ret_ty, *(c.ty for c in flow.constants.get(name, ()))]
    return RegionReport(
        name=name,
        compiler=codegen_of(func),
        ops=len(inside),
        flops=sum(c.flops for c in inside),
        bytes=sum(type_bytes(ty, usual) for ty in border) * uses,
        reorders=None if reorders is None else reorders * uses,
        uses=uses,
    )


def _totals(calls: Sequence[CallReport], regions: Sequence[RegionReport]) -> Totals:
    taken = [c for c in calls if c.compiler]
    reorders = [r.reorders for r in regions]
    return Totals(
        calls=len(calls),
        offloaded_calls=len(taken),
        flops=sum(c.flops for c in calls),
        offloaded_flops=sum(c.flops for c in taken),
        regions=len(regions),
        reorders=None if None in reorders else sum(r for r in reorders if r is not None),
    )


def _attrs_text(attrs: Any) -> str:
    """Attributes as ``strides=[2, 2], groups=1``, without TVM's type name around them."""
    if attrs is None:
        return ""
    text = str(attrs)
    return text.partition("(")[2].removesuffix(")").replace('"', "") if "(" in text else text
