"""The one walk: graphs, branches, local functions and the standard's definitions are read node by node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from tvm import relax, tirx

from ...core.errors import UnsupportedError
from ...core.limits import MOST_NESTED
from ...core.tensor_info import STORED
from ...core.tvm_fast import is_a
from ...ir.relax_utils import NODES_ATTR, bindings_of, shape_dims
from ...vendors.namespaces import compilers
from ...whole.table import operator as whole_operator
from .emit import NEWEST_USED, Emit
from .operands import check_operands
from .ops import branches, loops, sequences
from .scope import Again, Boundary, PlainBlocks, Plan, Scope, opsets_of
from .standard import definition_of, folded, has_definition, take_inputs
from .structure import DEFAULT_DOMAINS, decoded, dense
from .table import NEWEST, entries, entry_of, outputs
from .value import Node, Value, Ways
from .whole import declare_whole, emit_whole

#: operators with graphs inside
_STRUCTURES = {"If": branches.chosen, "Loop": loops.loop, "Scan": loops.scan, "SequenceMap": loops.mapped}


#: operators that move strings, or leave them as they are
_MOVING = frozenset({"Cast", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"})


class Missing(UnsupportedError):
    """Nothing imports an operator."""


class Shared:
    """What all walks of one model share."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.taken: dict[tuple[Any, ...], bool] = {}  # the only possible branch of an `If` that a call decides
        self.path: list[tuple[str, bool]] = []  # the branches that are being read; see `branches.each_way`
        self.rests = 0  # how many parts of the model were read for one branch
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
        self.root: relax.BlockBuilder = relax.BlockBuilder()
        self.weights: list[tuple[Any, np.ndarray]] = []  # large constants, and the arrays that they were made of
        self.labels: dict[str, list[str]] | None = None  # results that are numbers of strings, if these are asked for


def built(
    shared: Shared, name: str, params: Sequence[relax.Var] | None, read: Callable[[Walk], Any], *, private: bool = False
) -> Any:
    """A new function of Relax, by its variable; without ``params`` its body finds them.

    ``read(walk)`` emits the body, and returns parameters and result. It raises `PlainBlocks` if that cannot be one
    dataflow block, and `Again` to be asked once more.
    """
    bb, is_dataflow = shared.root, True
    while True:
        try:
            with bb.function(name, params, private=private):
                with bb.dataflow() if is_dataflow else contextlib.nullcontext():
                    walk = Walk(shared, bb, is_dataflow=is_dataflow)
                    walk.emit.given = {d for p in params or () for d in shape_dims(p.ty) or () if is_a(d, tirx.Var)}
                    own, result = read(walk)
                    result = bb.emit_output(result) if is_dataflow else result
                made = bb.emit_func_output(result, None if params is not None else own)
        except BaseException as error:
            bb._end_block()
            bb.end_scope()
            if not isinstance(error, (Again, PlainBlocks)):
                raise
            is_dataflow = isinstance(error, Again)
        else:
            func = bb.get()[made]
            bb.update_func(made, func.with_attr(NODES_ATTR, _nodes_by_variable(func, walk.node_of)))
            return made


def _nodes_by_variable(func: relax.Function, node_of: Mapping[str, str]) -> dict[str, str]:
    """Variable to node, for every variable of the imported function that comes from a node with a name."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for var, value in bindings_of(func):
        name = var.name
        if is_a(value, relax.Var) and value.name in found:
            found[name] = found[value.name]
            continue
        waiting.append(name)
        if name in node_of:
            found.update(dict.fromkeys(waiting, node_of[name]))
            waiting = []
    return {variable: node for variable, node in found.items() if node}


class Walk:
    """Reads nodes into one function of Relax."""

    def __init__(self, shared: Shared, bb: relax.BlockBuilder, *, is_dataflow: bool = True) -> None:
        self.shared, self.bb, self.is_dataflow = shared, bb, is_dataflow
        self.emit = Emit(bb, self._of_entry)
        self.emit.weights = shared.weights
        self._depth = 0
        self.boundary: Boundary | None = None  # of the function, if it takes values from outside
        self.node_of: dict[str, str] = {}  # the last variable of a node → its name

    def graph(self, scope: Scope, plan: Plan, results: Sequence[str]) -> list[Value | None]:
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise UnsupportedError(f"the model's operators are defined by others {self._depth} deep")
        scope.plan = plan
        for i, proto in enumerate(plan.nodes):
            is_done = False
            while not is_done and (ways := _ways(scope, plan.reads(proto))) is not None:
                is_done = branches.each_way(self, ways, scope, Plan(plan.nodes[i:], results))
            if is_done:
                break
            self._node(proto, scope)
        self._depth -= 1
        return [scope.find(name) for name in results]

    def subgraph(self, graph: onnx.GraphProto, outer: Scope, inputs: Sequence[Value | None] = ()) -> list[Value]:
        """The results of a subgraph, written into the function around it."""
        scope = Scope(outer.opsets, outer, outer.label)
        return self.inside(graph, scope, inputs)

    def inside(self, graph: onnx.GraphProto, scope: Scope, inputs: Sequence[Value | None] = ()) -> list[Value]:
        """The results of a subgraph in a scope that was made for it."""
        scope.attributes = scope.parent.attributes if scope.parent is not None else {}
        scope.names.update({given.name: value for given, value in zip(graph.input, inputs, strict=False)})
        for tensor in graph.initializer:
            scope.names.setdefault(tensor.name, Value(known=numpy_helper.to_array(tensor)))
        for sparse in graph.sparse_initializer:
            scope.names.setdefault(sparse.values.name, Value(known=dense(sparse)))
        results = [o.name for o in graph.output]
        return [v for v in self.graph(scope, Plan(graph.node, results), results) if v is not None]

    def part(self, name: str, read: Callable[[Walk, Boundary], list[Value]]) -> branches.Part:
        item_types: list[Any] = []
        types: list[list[Any]] = []
        boundary = Boundary()

        def emitted(walk: Walk) -> Any:
            boundary.__init__()  # type: ignore[misc]
            walk.boundary = boundary
            results = [sequences.of_call(walk.emit, v) if v.is_sequence else v for v in read(walk, boundary)]
            item_types[:] = [v.item for v in results]
            types[:] = [branches.ranks(value) for value in results]
            tensors = [walk.emit.tensor(value) for value in results]
            return boundary.closed()[0], tensors[0] if len(tensors) == 1 else relax.Tuple(tensors)

        return branches.Part(self.function(name, emitted), boundary.closed()[1], item_types, types)

    def function(self, name: str, read: Callable[[Walk], Any]) -> Any:
        return built(self.shared, name, None, read, private=True)

    def body(self, node: Node, function: onnx.FunctionProto) -> list[Value | None]:
        opsets = opsets_of(function.opset_import) or {"": node.opset}
        opsets.setdefault("", NEWEST_USED)  # the standard's definitions in other domains do not say it
        given = {a.name: a for a in (*function.attribute_proto, *(node.proto.attribute if node.proto else ()))}
        if node.proto is None:
            given |= {name: helper.make_attribute(name, value) for name, value in node.attrs.items()}
        scope = Scope(opsets, None, node.name, given)
        inputs = [*node.inputs, *[None] * len(function.input)]
        scope.names.update(zip(function.input, inputs, strict=False))
        names = [name for name, wanted in zip(function.output, node.wanted, strict=False) if wanted]
        found = dict(zip(names, self.graph(scope, Plan(function.node, names), names), strict=True))
        return [found.get(name) for name in function.output]

    def _node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        assert scope.plan is not None
        proto = _resolved(proto, scope)
        domain = _domain(proto.domain)
        name = scope.label or proto.name or next((o for o in proto.output if o), proto.op_type)
        node = Node(
            proto.op_type,
            domain,
            scope.opsets.get(domain, 1),
            name,
            [scope.find(i) if i else None for i in proto.input],
            {a.name: decoded(a) for a in proto.attribute},
            [bool(o) and o in scope.plan.read for o in proto.output],
            proto,
        )
        node.read_by = scope.read_by
        while node.inputs and node.inputs[-1] is None:
            node.inputs.pop()
        newest = NEWEST.get(domain)
        if newest is not None and node.opset > newest:
            raise UnsupportedError(
                f"the model has opset {node.opset} of {domain or 'ai.onnx'}; the newest that is known here is {newest}"
            )
        for output, value in zip(proto.output, self.apply(node, scope), strict=False):
            if output and value is not None:
                scope.names[output] = value

    def _of_entry(self, node: Node) -> list[Any]:
        node.proto = helper.make_node(
            node.op,
            [f"x{i}" if v is not None else "" for i, v in enumerate(node.inputs)],
            [f"y{i}" for i in range(len(node.wanted))],
            node.name,
            domain=node.domain,
            **{k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in node.attrs.items()},
        )
        return self.apply(node, Scope({"": NEWEST_USED, node.domain: node.opset}, None, node.name))

    def apply(self, node: Node, scope: Scope) -> list[Value | None]:
        with self.emit.converting(node):
            results = [v and self.emit.named(v) for v in self._results(node, scope)]
        for value in results:
            if value is not None and is_a(value.expr, relax.Var):
                self.node_of.setdefault(value.expr.name, node.name)
        return results

    def _results(self, node: Node, scope: Scope) -> list[Value | None]:
        assert node.proto is not None
        take_inputs(node)
        if any(v is not None and v.words is not None for v in node.inputs):
            return self._of_words(node, scope)
        structure = _STRUCTURES.get(node.op) if node.domain == "" else None
        if structure is not None:
            check_operands(node)
            return list(structure(self, node, scope))
        function = self.shared.functions.get((node.domain, node.op, node.proto.overload if node.proto else ""))
        if node.domain not in NEWEST:
            compilers()  # which register operators of their own
        own = whole_operator(node.domain, node.op) if node.domain not in NEWEST else None
        if own is not None and (own.build is not None or function is None):
            return emit_whole(self.emit, node, own)
        if function is not None:
            return self.body(node, function)
        entry, whole = entry_of(node.domain, node.op, node.opset), whole_operator(node.domain, node.op)
        is_known = entry is not None or whole is not None or has_definition(node)
        if is_known:
            check_operands(node)
        known = folded(node)
        if known is not None:
            return [None if array is None else Value(known=array) for array in known]
        # An operator that stays whole would take numbers of 4 bits, stored one in a byte, for bytes with two in each.
        is_split = any(v is not None and v.dtype in ("uint2", "uint4") for v in node.inputs)
        if entry is not None and entry.convert is not None and (is_split or not entry.whole):
            made = outputs(entry.convert(self.emit, node))
            self._refuse_unread(node)
            return _kept_short(node, [v if v is None or isinstance(v, Value) else self.emit.value(v) for v in made])
        if whole is not None:
            return emit_whole(self.emit, node, whole)
        body = definition_of(node)
        if body is not None:
            return self.body(node, body)
        if is_known:
            raise node.refused("has no definition for these inputs; fix their open dims")
        raise Missing(f"{node.domain or 'ai.onnx'}.{node.op} (node `{node.name}`)")

    def _of_words(self, node: Node, scope: Scope) -> list[Value | None]:
        """The results of a node that reads strings by their numbers, and moves them only."""
        value = node.needed(0)
        if value.words is None or node.op not in _MOVING:
            raise next(v.words for v in node.inputs if v is not None and v.words is not None).refused()
        if node.op in ("Cast", "Identity"):
            return [value]
        node.inputs[0] = Value(value.expr)
        return [v and Value(self.emit.tensor(v), words=value.words) for v in self._results(node, scope)]

    def missing(self, nodes: Iterable[onnx.NodeProto], scope: Scope) -> list[str]:
        """The nodes of a graph that nothing imports, the first of each operator."""
        found: dict[str, str] = {}
        for proto in nodes:
            domain = _domain(proto.domain)
            node = Node(proto.op_type, domain, scope.opsets.get(domain, 1), proto.name or proto.output[0], [], {})
            node.proto = proto
            kind = f"{domain or 'ai.onnx'}.{node.op}"
            known = (
                kind in found
                or (domain, node.op, proto.overload) in self.shared.functions
                or (domain == "" and node.op in _STRUCTURES)
                or entry_of(domain, node.op, node.opset) is not None
                or whole_operator(domain, node.op) is not None
                or has_definition(node)
            )
            if not known:
                found[kind] = f"{kind} (node `{node.name}`)"
        return list(found.values())

    def _refuse_unread(self, node: Node) -> None:
        left = {n: v for n, v in node.attrs.items() if n not in node.read and not _is_default(node, n)}
        if left:
            raise node.refused("has " + " and ".join(f"{name}={value}" for name, value in left.items()))


def _domain(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain


def _ways(scope: Scope, names: Iterable[str]) -> Ways | None:
    """What the rank of one of these values depends on."""
    given = (scope.names.get(name) for name in names)
    return next((v.ways for v in given if v is not None and v.ways is not None), None)


def _resolved(proto: onnx.NodeProto, scope: Scope) -> onnx.NodeProto:
    """A node whose attributes have the values that the function around it was given."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    del copy.attribute[:]
    for attribute in proto.attribute:
        found = scope.attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if found is not None:  # else optional, and left out
            copy.attribute.add().CopyFrom(found)
            copy.attribute[-1].name = attribute.name
    return copy


def _kept_short(node: Node, results: list[Value | None]) -> list[Value | None]:
    """Results of numbers of fewer than 8 bits, where they have the dtype of an input that is of such."""
    short = next((v.dtype for v in node.inputs if v is not None and v.dtype in STORED), "")
    if not short or not defs.has(node.op, node.domain):
        return results
    schema = defs.get_schema(node.op, node.opset, node.domain)
    kinds = {p.type_str for p, v in zip(schema.inputs, node.inputs, strict=False) if v is not None and v.dtype == short}
    return [
        v if v is None or v.dtype != STORED[short] or kind.type_str not in kinds else Value(v.expr, dtype=short)
        for v, kind in zip(results, schema.outputs, strict=False)
    ]


def _is_default(node: Node, name: str) -> bool:
    try:
        attribute = defs.get_schema(node.op, node.opset, node.domain).attributes.get(name)
    except defs.SchemaError:
        return False
    if attribute is None:
        return False
    return not attribute.default_value.type or bool(decoded(attribute.default_value) == node.attrs[name])


def walk_into(bb: relax.BlockBuilder) -> Walk:
    """A walk that emits into a builder outside of the import of a model."""
    return Walk(Shared(onnx.ModelProto()), bb)


for _entry in entries():
    if _entry.whole:
        declare_whole(_entry, lambda bb: walk_into(bb).emit)
