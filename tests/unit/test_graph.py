"""The portable graph as data: validation, pruning, changes, symbols, JSON."""

import json
import random
import sys
from collections import Counter
from itertools import pairwise

import pytest
from tvm import relax, tirx

from tvm_byoc_dnnl.core.errors import GraphError
from tvm_byoc_dnnl.graph import Constant, Input, PortableGraph, Tensor
from tvm_byoc_dnnl.graph.builder import GraphBuilder
from tvm_byoc_dnnl.graph.node_list import Node, NodeList, PostOp, Scaling
from tvm_byoc_dnnl.patterns.dnnl.post_ops import fuse_post_ops


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
    assert document["version"] == 2
    assert document["nodes"][0]["attrs"]["beta"] == "inf"
    assert document["inputs"] == [{"tensor": 0}]


@pytest.mark.parametrize(
    "change",
    [
        lambda g: setattr(g.tensors[0], "dtype", "float16"),
        lambda g: setattr(g.tensors[0], "shape", (3, 2)),
        lambda g: g.nodes[0].attrs.update(alpha=1.0),
        lambda g: g.nodes[0].post_ops.append(PostOp("eltwise", "exp")),
        lambda g: setattr(g.nodes[0], "result_scaling", Scaling(axis=0)),
        lambda g: setattr(g.inputs[0], "alias", 0),
        lambda g: setattr(g, "constants", []),
        lambda g: setattr(g, "outputs", [0]),
    ],
)
def test_graphs_that_compute_the_same_have_one_form(change):
    named = _relu_graph()
    named.name, named.tensors[0].name, named.constants[0].name, named.nodes[0].source = "h", "y", "d", ["relax.nn.relu"]
    assert named.to_json(anonymous=True) == _relu_graph().to_json(anonymous=True)
    change(named)
    assert named.to_json(anonymous=True) != _relu_graph().to_json(anonymous=True)


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


def _same_as_recounted(nodes: NodeList) -> None:
    """Producers, readers and order are what a walk over the nodes gives."""
    order, reads = list(nodes), Counter(t for n in nodes for t in n.inputs)
    assert list(reversed(nodes)) == order[::-1]
    assert len(nodes) == len(order)
    assert all(nodes.precedes(a, b) and not nodes.precedes(b, a) for a, b in pairwise(order))
    for tensor in {t for n in order for t in (*n.inputs, *n.outputs)}:
        assert nodes.producer(tensor) is next((n for n in order if tensor in n.outputs), None)
        assert sorted(map(id, nodes.readers(tensor))) == sorted(id(n) for n in order if tensor in n.inputs)
        assert nodes.read_count(tensor) == reads[tensor]


@pytest.mark.parametrize("seed", range(8))
def test_node_list_keeps_order_producers_and_readers(seed):
    draw = random.Random(seed)
    nodes, model, tensors = NodeList(), [], 1
    for _ in range(300):
        action = draw.choice(["insert", "insert", "move", "rewire", "remove"]) if model else "insert"
        place = draw.choice([*model, None])
        if action == "insert":
            node = Node("eltwise", draw.choices(range(tensors), k=draw.randint(1, 3)), [tensors])
            tensors += 1
            nodes.insert(node, place)
            model.insert(len(model) if place is None else model.index(place), node)
        else:
            node = draw.choice(model)
            if action == "move" and node is not place:
                model.remove(node)
                if place is not None and draw.random() < 0.5:
                    nodes.move(node, after=place)
                    model.insert(model.index(place) + 1, node)
                else:
                    nodes.move(node, before=place)
                    model.insert(len(model) if place is None else model.index(place), node)
            elif action == "rewire":
                nodes.rewire(node, draw.choices(range(tensors), k=2))
            elif action == "remove":
                nodes.remove(node)
                model.remove(node)
                assert node not in nodes
        assert list(nodes) == model
    _same_as_recounted(nodes)
    nodes.sort(key=lambda n: len(n.inputs))
    assert list(nodes) == sorted(model, key=lambda n: len(n.inputs))
    _same_as_recounted(nodes)
    assert nodes.in_order(model[::-1]) == list(nodes)
    assert [nodes[0], nodes[-1], nodes[2]] == [list(nodes)[i] for i in (0, -1, 2)]
    with pytest.raises(IndexError):
        nodes[len(nodes)]


def test_many_insertions_at_one_place_keep_the_order():
    last = Node("eltwise", [0], [1])
    nodes = NodeList([last])
    added = [Node("eltwise", [0], [k]) for k in range(2, 300)]
    for node in added:
        nodes.insert(node, before=last)
    assert list(nodes) == [*added, last]
    _same_as_recounted(nodes)


def test_replace_rewires_readers_and_outputs():
    graph = PortableGraph(
        "g",
        [Tensor("float32", (2,)) for _ in range(4)],
        [Input(tensor=0), Input(tensor=1)],
        nodes=[Node("binary", [0, 0], [2], {"alg": "add"}), Node("binary", [2, 0], [3], {"alg": "mul"})],
        outputs=[3, 0],
    )
    graph.replace({0: 1})
    assert [n.inputs for n in graph.nodes] == [(1, 1), (2, 1)]
    assert graph.outputs == [3, 1]
    assert graph.nodes.readers(0) == []
    assert graph.nodes.read_count(1) == 3


def test_symbols_are_identifiers_whatever_relax_calls_them():
    g = GraphBuilder("g")
    dims = [tirx.Var(name, "int64") for name in ("?", "?", "a.b", "0", "n", "größe", "")]
    graph = g.finish(g.eltwise(g.value(relax.Var("x", relax.TensorType(dims, "float32"))), "exp"))
    assert graph.tensors[0].shape == ("_", "__1", "a_b", "_0", "n", "gr__e", "n_1")


def test_passes_make_calls_in_proportion_to_the_nodes():
    """Calls are counted, since times depend on what else the machine does."""

    def calls(count: int) -> int:
        g = GraphBuilder("g")
        value = x = g.value(relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 8, 4, 4), "float32")))
        other = g.value(relax.Var("c", relax.TensorType((1, 8, 1, 1), "float32")))
        for _ in range(count):
            value = g.permute(g.eltwise(g.permute(value, [0, 2, 3, 1]), "exp"), [0, 3, 1, 2])
            value = g.binary("max", other, value, x.shape)
        graph, total = g.finish(value), 0

        def count_call(*_: object) -> None:
            nonlocal total
            total += 1

        sys.setprofile(count_call)
        try:
            fuse_post_ops(graph)
        finally:
            sys.setprofile(None)
        return total

    assert calls(800) < 2.5 * calls(400)


def _scaled_product(result: Scaling | None = None) -> PortableGraph:
    """relu(x · w), x and w with scales."""
    tensors = [Tensor("int8", (4, 8)), Tensor("int8", (8, 8)), Tensor("float32", (1,)), Tensor("float32", (8,))]
    tensors += [Tensor("float32" if result is None else "int8", (4, 8)) for _ in range(2)]
    product = Node("matmul", (0, 1), (4,), scalings={0: Scaling(2), 1: Scaling(3, axis=1)}, result_scaling=result)
    relu = Node("eltwise", (4,), (5,), {"alg": "relu", "alpha": 0.0, "beta": 0.0})
    constants = [Constant(i, f"c{i}") for i in (1, 2, 3)]
    return PortableGraph("g", tensors, [Input(tensor=0)], constants, NodeList([product, relu]), [5])


def test_scales_are_operands():
    graph = _scaled_product().prune().validate()
    assert graph.nodes[0].reads == (0, 1, 2, 3)
    assert graph.nodes.readers(2) == [graph.nodes[0]]
    inputs = json.loads(graph.to_json())["nodes"][0]["inputs"]
    assert inputs == [{"tensor": 0, "scale": 2}, {"tensor": 1, "scale": 3, "axis": 1}]
    graph.replace({2: 3})
    assert graph.nodes[0].scalings[0] == Scaling(3)
    graph.nodes.remove(graph.nodes[1])
    graph.outputs = [4]
    graph.prune()
    assert [c.name for c in graph.constants] == ["c1", "c3"]
    assert graph.nodes[0].scalings == {0: Scaling(2), 1: Scaling(2, axis=1)}
    alone = graph.isolate(graph.nodes[0], graph.constant_tensors()).validate()
    assert alone.nodes[0].is_scaled


def test_a_scale_must_be_defined_before():
    graph = _scaled_product()
    graph.nodes[0].scalings[0] = Scaling(5)
    with pytest.raises(GraphError, match=r"node 0 \(matmul\) reads tensor 5 before it is defined"):
        graph.validate()


def test_post_ops_keep_scales_of_operands_and_stay_behind_that_of_a_result():
    fused = fuse_post_ops(_scaled_product())
    assert [(n.kind, len(n.post_ops), sorted(n.scalings)) for n in fused.nodes] == [("matmul", 1, [0, 1])]
    apart = fuse_post_ops(_scaled_product(Scaling(2)))
    assert [(n.kind, len(n.post_ops)) for n in apart.nodes] == [("matmul", 0), ("eltwise", 0)]
    assert "scale or a zero point" in apart.nodes[1].apart


def _state(*extra: Node, alias: int = 0, shape: tuple = (2, 3)) -> PortableGraph:
    """y = tanh(x), written over x."""
    tensors = [Tensor("float32", (2, 3)), Tensor("float32", shape), *(Tensor("float32", (2, 3)) for _ in extra)]
    tanh = Node("eltwise", (0,), (1,), {"alg": "tanh", "alpha": 0.0, "beta": 0.0})
    outputs = [1, *(n.outputs[0] for n in extra)]
    return PortableGraph("g", tensors, [Input(tensor=0, alias=alias)], [], NodeList([tanh, *extra]), outputs)


def test_an_alias_is_written():
    assert json.loads(_state().validate().to_json())["inputs"] == [{"tensor": 0, "alias": 0}]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_state(alias=3), "there are 1 outputs"),
        (_state(shape=(3, 2)), r"output 0, which is float32\[3, 2\], expected float32\[2, 3\]"),
        (_state(Node("softmax", (0,), (2,))), "read by softmax after output 0 has been written"),
        (_state(Node("reshape", (0,), (2,))), "read by reshape after output 0 has been written"),
    ],
)
def test_what_contradicts_an_alias(graph, message):
    with pytest.raises(GraphError, match=message):
        graph.validate()


def test_the_writer_of_an_alias_stays_where_it_is():
    """Fused into the product, it would write before the other node has read the old values."""
    tensors = [Tensor("float32", (4, 4)) for _ in range(5)]
    nodes = [
        Node("matmul", (1, 1), (2,)),
        Node("eltwise", (0,), (3,), {"alg": "abs", "alpha": 0.0, "beta": 0.0}),
        Node("eltwise", (2,), (4,), {"alg": "tanh", "alpha": 0.0, "beta": 0.0}),
    ]
    inputs = [Input(tensor=0, alias=0), Input(tensor=1)]
    graph = fuse_post_ops(PortableGraph("g", tensors, inputs, [], NodeList(nodes), [4, 3]))
    assert [n.attrs.get("alg", n.kind) for n in graph.nodes] == ["matmul", "abs", "tanh"]
