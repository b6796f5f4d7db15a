"""Which nodes of made networks compute in bfloat16, by descriptions of machines that are made as well."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tvm_byoc_dnnl.graph import Constant
from tvm_byoc_dnnl.patterns.dnnl.bfloat16 import LOW, WIDE, Cut, Edges
from tvm_byoc_dnnl.vendor import Input, Node, PortableGraph, Reject, Tensor

#: products per second in each dtype, and bytes per second
MACHINES = {
    "no products of bfloat16": {"float32": 1e11, "bfloat16": 1e11, "bytes": 1e10},
    "twice as fast": {"float32": 1e11, "bfloat16": 2e11, "bytes": 1e10},
    "with tiles": {"float32": 1e11, "bfloat16": 16e11, "bytes": 1e10},
    "slow memory": {"float32": 1e11, "bfloat16": 2e11, "bytes": 1e8},
}
SMALL, LARGE = 4, 512  # outputs of a product


def network(layers: Sequence[int | str], dtype: str = "float32") -> PortableGraph:
    """A chain of products with so many outputs and of activations, which reads 64 rows of 512 numbers."""
    graph = PortableGraph("made", [Tensor(dtype, (64, LARGE))], [Input(tensor=0)])
    last = 0
    for layer in layers:
        width = graph.tensors[last].shape[1]
        if isinstance(layer, int):
            weights = graph.new_tensor(dtype, (width, layer))
            graph.constants.append(Constant(weights, f"w{weights}"))
            result = graph.new_tensor(dtype, (64, layer))
            graph.nodes.append(Node("matmul", (last, weights), (result,), {"alg": "auto"}))
        else:
            result = graph.new_tensor(dtype, (64, width))
            graph.nodes.append(Node("eltwise", (last,), (result,), {"alg": layer, "alpha": 0.0, "beta": 0.0}))
        last = result
    graph.outputs = [last]
    return graph.validate()


def seconds_on(machine: dict[str, float]) -> Any:
    def seconds(graph: PortableGraph) -> float | Reject:
        (node,) = graph.nodes
        tensors = [graph.tensors[t] for t in (*node.inputs, *node.outputs)]
        if node.kind == "matmul":
            (rows, inner), columns = tensors[0].shape, tensors[1].shape[1]
            return rows * inner * columns / machine[tensors[0].dtype]
        return sum(math.prod(t.shape) * (2 if t.dtype == "bfloat16" else 4) for t in tensors) / machine["bytes"]

    return lambda graphs: [seconds(graph) for graph in graphs]


def decided(graph: PortableGraph, machine: str, is_wanted: bool = True) -> str:
    """A letter for each node in order: r for a conversion, b and f for a product or an activation in a dtype."""
    Edges(graph, is_wanted, seconds_on(MACHINES[machine])).run()
    assert len({graph.tensors[t].dtype for t in (graph.inputs[0].tensor, graph.outputs[0])}) == 1

    def letter(node: Node) -> str:
        return "r" if node.kind == "reorder" else "f" if graph.tensors[node.inputs[0]].dtype == "float32" else "b"

    constants = graph.constant_tensors()
    return "".join(letter(node) for node in graph.nodes if not constants.issuperset(node.outputs))


@pytest.mark.parametrize(
    ("layers", "machine", "expected"),
    [
        ([LARGE], "no products of bfloat16", "f"),
        ([LARGE], "twice as fast", "rb"),
        ([SMALL], "twice as fast", "f"),
        ([SMALL], "with tiles", "f"),
        ([LARGE, "relu", LARGE], "slow memory", "fff"),
        # a cheap product between expensive ones, and activations, follow their neighbours
        ([LARGE, "relu", SMALL, "relu", LARGE * 64], "with tiles", "rbbbbb"),
        ([LARGE] * 4, "twice as fast", "rbbbb"),
        # exp is not computed in bfloat16; the product before it writes float32 itself
        ([LARGE, "exp", LARGE], "twice as fast", "rbfrb"),
        ([LARGE, "exp", SMALL], "twice as fast", "rbff"),
        ([SMALL, "exp", LARGE * 64], "with tiles", "ffrb"),
        (["relu", SMALL], "twice as fast", "ff"),
    ],
)
def test_what_costs_least_is_chosen(layers: list[int | str], machine: str, expected: str) -> None:
    assert decided(network(layers), machine) == expected


def test_a_model_in_bfloat16_leaves_it_where_float32_is_faster() -> None:
    machine = MACHINES["no products of bfloat16"] | {"bfloat16": 1e9}
    graph = network([LARGE, SMALL], "bfloat16")
    Edges(graph, False, seconds_on(machine)).run()
    assert graph.tensors[graph.outputs[0]].dtype == "bfloat16"
    constants = graph.constant_tensors()
    kinds = [node.kind for node in graph.nodes if not constants.issuperset(node.outputs)]
    assert kinds == ["reorder", "matmul", "matmul", "reorder"]
    assert decided(network([LARGE, SMALL], "bfloat16"), "twice as fast", is_wanted=False) == "bb"


def test_without_costs_all_that_may_be_bfloat16_is() -> None:
    """On a CPU without bfloat16 the graph is made for CPUs that have it."""
    graph = network([SMALL, "relu", SMALL])
    edges = Edges(graph, True, None)
    edges._asked = lambda graphs: [0.0] * len(graphs)  # type: ignore[method-assign]
    edges.run()
    assert [graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.kind == "eltwise"] == ["bfloat16"]


@pytest.mark.parametrize("seed", range(8))
def test_a_cut_is_the_best_of_all(seed: int) -> None:
    source = random.Random(seed)
    cut = Cut()
    things = [cut.add() for _ in range(7)]
    paid = []
    for _ in range(20):
        low, wide = source.sample([LOW, WIDE, *things], 2)
        paid.append((low, wide, source.choice([math.inf, *(1e-6 * n for n in range(9))])))
    paid = [row for row in paid if not (math.isinf(row[2]) and {LOW, WIDE} & {*row[:2]})]
    for row in paid:
        cut.pay(*row)

    def cost(low: set[int]) -> float:
        return sum(seconds for a, b, seconds in paid if a in low and b not in low)

    every = itertools.chain.from_iterable(itertools.combinations(things, n) for n in range(len(things) + 1))
    found = cut.low()
    assert LOW in found
    assert WIDE not in found
    assert cost(found) == pytest.approx(min(cost({LOW, *chosen}) for chosen in every), abs=1e-12)
