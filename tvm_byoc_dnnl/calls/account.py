"""The account of a module's calls, as plain data: who runs each, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from .._version import version_of
from ..core.ledger import FORM, MATCH, Fact
from ..core.tvm_fast import ByIdentity
from ..ir.relax_utils import codegen_of
from ..ir.signature import inputs_of, outputs_of
from ..ir.tvm_compat import dtype_of, is_a, shape_dims
from ..regions.cost import call_bytes, call_flops, type_bytes, usual_sizes
from ..vendors.namespace import Namespace
from ..vendors.namespaces import find_namespace
from ..vendors.target_options import compilation_of
from .flow import Flow, Leaf, Node, OnnxNodes, nodes_of, read_flow
from .model import CallReport, NearMiss, RegionReport, ReportData, Totals, Value
from .primitives import Primitive, RegionPrimitives, primitives_of
from .reasons import BuildLog, verdicts

__all__ = ["account_of"]

_PACKAGES = ("tvm-byoc-dnnl", "apache-tvm", "apache-tvm-ffi")


def account_of(mod: tvm.IRModule, asked: Sequence[str], *, with_primitives: bool = True) -> ReportData:
    """Find who runs each call of a partitioned module.

    Parameters
    ----------
    mod : IRModule
        The module; its regions are those that will be built.
    asked : sequence of str
        The namespaces that were asked, in order of priority.
    with_primitives : bool
        Lower each region once more and ask its library how it runs the result.
    """
    usual = usual_sizes(mod)
    flow = read_flow(mod)
    owners = [n.compiler for n in flow.nodes if n.compiler]
    # a region's codegen may be TVM's own
    by_name = {n: find_namespace(n) or Namespace(n) for n in dict.fromkeys([*asked, *owners])}
    compilation = compilation_of(mod, by_name)
    options = {n: compilation.options.get(n, {}) for n in by_name}
    lowered = {
        name: primitives_of(by_name[codegen_of(func)], func, name, options[codegen_of(func)])
        if with_primitives
        else RegionPrimitives()
        for name, func in flow.regions.items()
    }
    made = _made(flow, lowered)
    log = BuildLog(mod)
    matches, forms = _matches(flow, log.of(MATCH)), log.of(FORM)
    onnx_nodes = OnnxNodes(mod)
    calls = []
    kinds: ByIdentity[dict[str, Any]] = ByIdentity()  # a composite that is called several times has each call once
    for node in flow.nodes:
        if node.call not in kinds:
            kinds[node.call] = _kind(node.call, usual)
        call = _call(node, by_name, made.get(node, []), kinds[node.call])
        call.onnx_node = onnx_nodes.of(call.function, call.name)
        call.candidates, call.reasons = verdicts(node, list(by_name.values()), log, compilation)
        call.near_misses = [*_refused(node, matches), *_forms(node, forms), *_apart(node, made.get(node, []))]
        call.near_misses += _float32(node, made.get(node, []))
        calls.append(call)
    inside: dict[str | None, list[CallReport]] = {}
    for call in calls:
        inside.setdefault(call.region, []).append(call)
    regions = [_region(name, flow, inside.get(name, []), lowered[name].reorders, usual) for name in flow.regions]
    inputs, outputs = _values(mod, flow)
    silent = {r.compiler for r in regions if r.reorders is None and by_name[r.compiler].describe is not None}
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
    """The inputs and outputs of ``main``, with the calls that read and make them."""
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
    """The primitives of each call, by its position in its use of a region."""
    uses: dict[tuple[str, int], list[Node]] = {}
    for node in flow.nodes:
        if node.region:
            uses.setdefault((node.region, node.use), []).append(node)
    return {node: lowered[name].of(i) for (name, _), nodes in uses.items() for i, node in enumerate(nodes)}


def _kind(call: Any, usual: Mapping[str, int]) -> dict[str, Any]:
    """What the report says of a call by itself, wherever it stands."""
    return {
        "flops": call_flops(call, usual),
        "bytes": call_bytes(call, usual),
        "output": _type_text(call.ty),
        "attrs": _attrs_text(call.attrs),
    }


def _call(
    node: Node, namespaces: Mapping[str, Namespace], made: Sequence[Primitive], kind: Mapping[str, Any]
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
        **kind,
    )


def _refused(node: Node, matches: Mapping[str, list[tuple[Fact, list[int]]]]) -> list[NearMiss]:
    """Patterns that matched the call with others, and were refused."""
    found = matches.get(node.name, ())
    return [NearMiss(m.op, len(m.calls), len(m.calls), m.reason, ids) for m, ids in found if node.id in ids]


def _matches(flow: Flow, refused: Sequence[Fact]) -> dict[str, list[tuple[Fact, list[int]]]]:
    """Variable → the refused matches around it, with the ids of their calls."""
    ids: dict[str, list[int]] = {}
    for node in flow.nodes:
        ids.setdefault(node.name, []).append(node.id)
    found: dict[str, list[tuple[Fact, list[int]]]] = {}
    for match in refused:
        calls = sorted(i for name in match.calls for i in ids.get(name, ()))
        for name in match.calls:
            found.setdefault(name, []).append((match, calls))
    return found


def _forms(node: Node, misses: Sequence[Fact]) -> list[NearMiss]:
    """Operators that an importer may have taken apart, and that the preparing rules did not put together again."""
    mine = (m for m in misses if (m.function, m.name) == (node.function, node.name))
    return [NearMiss(m.op, 1, 2, m.reason, [node.id]) for m in mine]


def _apart(node: Node, made: Sequence[Primitive]) -> list[NearMiss]:
    """Why the call is a primitive of its own: fusion into the one before it is a pattern of two."""
    reasons = dict.fromkeys(p.apart for p in made if p.apart)
    return [NearMiss(f"{node.compiler}.post_op", 1, 2, reason, [node.id]) for reason in reasons]


def _float32(node: Node, made: Sequence[Primitive]) -> list[NearMiss]:
    """Why the call computes in float32, where a lower precision was asked for."""
    reasons = dict.fromkeys(p.precision for p in made if p.precision and not p.is_view)
    return [NearMiss(f"{node.compiler}.precision", 1, 2, reason, [node.id]) for reason in reasons]


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


def _type_text(ty: Any) -> str:
    """``float32[1, 64, 56, 56]``; a tuple in parentheses."""
    if is_a(ty, relax.TupleType):
        return f"({', '.join(_type_text(f) for f in ty.fields)})"
    if not is_a(ty, relax.TensorType):
        return str(ty)
    dims = shape_dims(ty)
    return f"{dtype_of(ty) or '?'}[{'…' if dims is None else ', '.join(map(str, dims))}]"


def _attrs_text(attrs: Any) -> str:
    """Attributes as ``strides=[2, 2], groups=1``, without TVM's type name around them."""
    if attrs is None:
        return ""
    text = str(attrs)
    return text.partition("(")[2].removesuffix(")").replace('"', "") if "(" in text else text
