"""The portable graph as data: validation, pruning, symbols, JSON."""

import json

import pytest

from tvm_byoc_dnnl.errors import GraphError
from tvm_byoc_dnnl.lower.graph import Constant, Input, Node, PortableGraph, PostOp, Tensor


def _relu_graph() -> PortableGraph:
    return PortableGraph(
        "g",
        [Tensor("float32", (2, 3), "x"), Tensor("float32", (2, 3)), Tensor("float32", (3,), "unused")],
        [Input(tensor=0)],
        [Constant(2, "c")],
        [Node("eltwise", [0], [1], {"alg": "relu", "alpha": 0.0, "beta": float("inf")})],
        [1],
    )


def test_json_is_the_documented_document():
    document = json.loads(_relu_graph().to_json())
    assert document["format"] == "tvm_byoc_dnnl.graph"
    assert document["version"] == 1
    assert document["nodes"][0]["attrs"]["beta"] == "inf"
    assert document["inputs"] == [{"tensor": 0}]


def test_prune_drops_what_no_output_needs_and_keeps_inputs():
    graph = _relu_graph()
    graph.tensors.append(Tensor("float32", (9,), "x2"))
    graph.inputs.append(Input(tensor=3))
    graph.nodes.append(Node("eltwise", [1], [graph.new_tensor("float32", (2, 3))], {"alg": "exp"}))
    graph.prune().validate()
    assert [n.attrs["alg"] for n in graph.nodes] == ["relu"]
    assert graph.constants == []
    assert len(graph.inputs) == 2  # the call passes it all the same


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda g: g.outputs.append(7), "reads tensor 7 before it is defined"),
        (lambda g: g.nodes.append(Node("eltwise", [0], [1])), "tensor 1 is defined twice"),
        (lambda g: g.constants.append(Constant(99, "c")), "tensor 99, but there are 3"),
        (lambda g: g.nodes[0].post_ops.append(PostOp("binary", "add", input=5)), "binary post-op without its operand"),
    ],
)
def test_validate_names_the_fault(break_it, message):
    graph = _relu_graph()
    break_it(graph)
    with pytest.raises(GraphError, match=message):
        graph.validate()


def test_symbols_and_specialize():
    graph = _relu_graph()
    graph.tensors[0].shape = ("n", ("*", "n", 4))
    graph.inputs.append(Input(shape=(("//", "m", 2),)))
    assert graph.symbols == {"n", "m"}
    static = graph.specialize({"n": 3, "m": 7})
    assert static.tensors[0].shape == (3, 12)
    assert static.inputs[1].shape == (3,)
    assert graph.symbols == {"n", "m"}  # a copy
