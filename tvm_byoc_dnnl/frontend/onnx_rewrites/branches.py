"""`If`: the nodes of its branches become nodes of the graph around it, where every rewrite and every fold sees them.

TVM's importer computes what is inside of both branches, too, and chooses afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper, numpy_helper

from ..onnx_graph import Graph
from ..onnx_nodes import captured, is_standard
from .builder import Builder, Nodes
from .instantiate import renamed
from .integers import INTEGERS

__all__ = ["separated", "written_out"]

_BRANCHES = ("else_branch", "then_branch")
#: operators whose second input has indices, which are compared with the sizes when the model runs
_INDEXED = frozenset({"Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"})


def _chosen(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The nodes of the one branch that a known condition takes."""
    condition = graph.constant(node.input[0])
    if condition is None:
        return None
    b = Builder(graph, node)
    for result, output in zip(written_out(b, b.attrs[_BRANCHES[bool(condition.all())]], ()), node.output, strict=True):
        b.add("Identity", [result], output)
    return b.nodes


def separated(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The nodes of both branches, and an ``If`` that chooses between their results.

    This is for conditions that nothing else makes known: one of the branches may be impossible with the sizes at hand.
    """
    b = Builder(graph, node)
    if not any(b.attrs[name].node or b.attrs[name].initializer for name in _BRANCHES):
        return None
    branches = {}
    taken = b.add("Reshape", [node.input[0], b.ints([])])
    for name, flag in zip(_BRANCHES, (b.add("Not", [taken]), taken), strict=True):
        outside, b.nodes = b.nodes, []
        results = [helper.make_empty_tensor_value_info(result) for result in written_out(b, b.attrs[name], ())]
        inside, b.nodes = b.nodes, outside
        constants: set[str] = set()  # that the branch makes
        for part in inside:
            if all(name in constants or b.graph.is_constant(name) for name in part.input if name):
                constants.update(part.output)
            else:
                _spare(b, part, flag, constants)
            b.nodes.append(part)
        branches[name] = helper.make_graph([], name, [], results)
    b.nodes.append(helper.make_node("If", node.input, node.output, **branches))
    return b.nodes


def _spare(b: Builder, node: onnx.NodeProto, flag: str, constants: set[str]) -> None:
    """Let a node of a branch have an index or a divisor that is no error, in calls that do not take the branch."""
    given = node.input[1] if len(node.input) > 1 else ""
    if not is_standard(node) or not given or given in constants or b.graph.is_constant(given):
        return
    if node.op_type in _INDEXED:
        harmless = b.add("Sub", [given, given])  # 0 of the same type
    elif node.op_type in ("Div", "Mod") and b.graph.elem_type(given) in INTEGERS:
        harmless = b.number(1, like=given)
    else:
        return
    node.input[1] = b.add("Where", [flag, given, harmless])


def written_out(b: Builder, body: onnx.GraphProto, values: Sequence[str]) -> list[str]:
    """Add the nodes of a subgraph whose inputs are ``values``; the names of its results."""
    prefix = b.graph.fresh(f"{b.old.output[0]}_step")
    read = {n for node in body.node for n in (*node.input, *captured(node))} | {o.name for o in body.output}
    made = dict.fromkeys(n for node in body.node for n in node.output)
    names = {n: n for n in read - made.keys()}  # of the graph around
    names.update(
        {t.name: b.graph.add_constant(f"{prefix}_{t.name}", numpy_helper.to_array(t)) for t in body.initializer}
    )
    names.update({name: b.graph.fresh(f"{prefix}_{name}") for name in made if name})
    names.update({inner.name: value for inner, value in zip(body.input, values, strict=True)})
    b.nodes += [renamed(node, names, {}, prefix) for node in body.node]
    return [names.get(o.name, f"{prefix}_{o.name}") for o in body.output]


RULES = {("", "If"): _chosen}
