"""Which elementwise nodes become post-ops, and which must not."""

from collections import Counter

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, assert_right, const, data
from tvm_byoc_dnnl.graph.builder import GraphBuilder
from tvm_byoc_dnnl.graph.node_list import PostOp
from tvm_byoc_dnnl.ir.relax_utils import make_constant
from tvm_byoc_dnnl.patterns.dnnl.library import describe, fused
from tvm_byoc_dnnl.patterns.dnnl.post_ops import fuse_post_ops
from tvm_byoc_dnnl.patterns.dnnl.views import _Sinker


class Net:
    """A small graph with one convolution in front, built through the public builder."""

    def __init__(self, channels: int = 8):
        self.g = GraphBuilder("g")
        self.c = channels
        self.shape = (2, channels, 5, 5)
        self.x = self.input("x", self.shape)

    def input(self, name, shape):
        return self.g.value(relax.Var(name, relax.TensorType(shape, "float32")))

    def const(self, *shape):
        return self.g.value(make_constant(np.ones(shape, "float32")))

    def conv(self, x=None):
        attrs = {"strides": [1, 1], "dilations": [1, 1], "pad_begin": [1, 1], "pad_end": [1, 1]}
        return self.g.emit("convolution", [x or self.x, self.const(self.c, self.c, 3, 3)], self.shape, **attrs)

    def binary(self, alg, a, b):
        return self.g.binary(alg, a, b, self.shape)

    def fused(self, *outputs):
        """Kind and post-ops of each node after fusion."""
        graph = fuse_post_ops(self.g.finish(tuple(outputs)))
        return [(n.kind, len(n.inputs), [o.alg for o in n.post_ops]) for n in graph.nodes if n.kind != "reshape"]


def test_bias_then_a_chain_of_any_length():
    n = Net()
    y = n.binary("add", n.conv(), n.const(1, n.c, 1, 1))
    for _ in range(4):
        y = n.g.eltwise(y, "tanh")
        y = n.binary("mul", y, n.const(1, n.c, 1, 1))
    assert n.fused(y) == [("convolution", 3 + 4, ["tanh", "mul"] * 4)]


def test_a_second_per_channel_add_is_no_second_bias():
    n = Net()
    y = n.binary("add", n.binary("add", n.conv(), n.const(1, n.c, 1, 1)), n.const(1, n.c, 1, 1))
    assert n.fused(y) == [("convolution", 4, ["add"])]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 8, 5, 5)])
def test_an_add_that_is_not_per_channel_is_never_a_bias(shape):
    n = Net()
    assert n.fused(n.binary("add", n.conv(), n.const(*shape))) == [("convolution", 3, ["add"])]


@pytest.mark.native
@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (2, 8, 1, 1)])
def test_what_the_convolution_does_not_take_starts_a_chain_of_its_own(shape):
    n = Net()
    y = n.g.eltwise(n.binary("add", n.g.eltwise(n.conv(), "relu"), n.const(*shape)), "tanh")
    assert n.fused(y) == [("convolution", 2, ["relu"]), ("binary", 2, ["tanh"])]


@pytest.mark.native
@pytest.mark.parametrize("shape", [(2, 1, 1, 1), (1, 1, 5, 1), (1, 8, 5, 1)])
def test_a_refused_post_op_leaves_those_before_it_fused(shape):
    n = Net()
    y = n.binary("add", n.g.eltwise(n.conv(), "relu"), n.const(*shape))
    assert n.fused(y) == [("convolution", 2, ["relu"]), ("binary", 2, [])]


@pytest.mark.native
def test_a_refused_post_op_is_named():
    n = Net()
    graph = n.g.finish((n.binary("add", n.conv(), n.const(1, 1, 5, 1)),))
    conv, add = graph.nodes
    graph.nodes.rewire(conv, (*conv.inputs, add.inputs[1]))
    conv.post_ops.append(PostOp("binary", "add", input=2))
    alone = graph.isolate(conv, graph.constant_tensors())
    assert fused(alone) == (0, "no implementation of convolution here fuses add of [1, 1, 5, 1]")
    graph.nodes.rewire(conv, (*conv.inputs[:2], graph.new_tensor("float32", (1, 8, 1, 1))))
    assert fused(graph.isolate(conv, {conv.inputs[2]})) == (1, "")


def test_a_bias_behind_an_activation_is_a_post_op():
    n = Net()
    y = n.binary("add", n.g.eltwise(n.conv(), "relu"), n.const(1, n.c, 1, 1))
    assert n.fused(y) == [("convolution", 3, ["relu", "add"])]


def test_residual_goes_into_the_later_convolution():
    n = Net()
    first = n.conv()
    second = n.conv(first)
    y = n.g.eltwise(n.binary("add", first, second), "relu")
    assert n.fused(y) == [("convolution", 2, []), ("convolution", 3, ["add", "relu"])]


@pytest.mark.native
def test_a_value_that_is_read_twice_stays():
    n = Net()
    y = n.conv()
    relu = n.g.eltwise(y, "relu")
    assert n.fused(n.binary("mul", y, relu)) == [("convolution", 2, []), ("eltwise", 2, ["mul"])]


def test_a_value_that_leaves_the_region_stays():
    n = Net()
    y = n.conv()
    assert n.fused(n.g.eltwise(y, "relu"), y) == [("convolution", 2, []), ("eltwise", 1, [])]


def _read_twice(n):
    y = n.conv()
    return n.g.eltwise(y, "relu"), n.g.eltwise(y, "tanh")


def _leaves(n):
    y = n.conv()
    return n.g.eltwise(y, "relu"), y


def _later(n):
    y = n.conv()
    return (n.binary("mul", y, n.g.emit("softmax", [n.g.eltwise(y, "relu")], n.shape, alg="accurate", axis=1)),)


WHY_APART = {
    "read_twice": (_read_twice, "the result of convolution is read 2 times"),
    "leaves": (_leaves, "the result of convolution leaves the region"),
    "second": (lambda n: (n.binary("div", n.input("z", n.shape), n.conv()),), "is the second operand of div"),
    "comparison": (lambda n: (n.binary("lt", n.conv(), n.input("z", n.shape)),), "oneDNN fuses no lt"),
    "later": (_later, "the result of convolution is read 2 times"),
    "up": (
        lambda n: (n.binary("mul", n.g.emit("reduction", [n.x], (2, 8, 1, 1), alg="mean", p=0.0, epsilon=0.0), n.x),),
        "mul broadcasts [2, 8, 1, 1] to [2, 8, 5, 5]",
    ),
    "dtype": (
        lambda n: (n.g.binary("gt", n.conv(), n.const(1, 1, 1, 1), n.shape, "bool"),),
        "the dtype changes from float32 to bool",
    ),
}


@pytest.mark.parametrize("name", WHY_APART)
def test_the_reason_why_a_node_stays_is_kept(name):
    make, reason = WHY_APART[name]
    n = Net()
    graph = fuse_post_ops(n.g.finish(make(n)))
    assert any(reason in m.apart for m in graph.nodes), [m.apart for m in graph.nodes]
    assert "apart" not in graph.to_json()


@pytest.mark.native
def test_the_reason_shows_in_explain():
    case = Case(
        lambda x, w, z: relax.op.add(relax.op.nn.conv2d(x, w), z),
        (data(1, 3, 7, 7), const(4, 3, 3, 3), const(1, 1, 5, 1)),
    )
    calls = {c.op: c for c in byoc.explain(case.module).calls}
    (miss,) = calls["relax.add"].near_misses
    assert miss.pattern == "dnnl.fusion"
    assert miss.reason == "no implementation of convolution here fuses add of [1, 1, 5, 1]"
    assert not calls["relax.nn.conv2d"].near_misses


def test_a_value_combined_with_itself_stays():
    n = Net()
    y = n.conv()
    assert n.fused(n.binary("add", y, y)) == [("convolution", 2, []), ("binary", 2, [])]


def test_operand_order_of_sub_and_div():
    n = Net()
    z = n.input("z", n.shape)
    assert n.fused(n.binary("sub", n.conv(), z)) == [("convolution", 3, ["sub"])]
    n = Net()
    z = n.input("z", n.shape)
    assert n.fused(n.binary("sub", z, n.conv())) == [("convolution", 3, ["linear", "add"])]
    n = Net()
    z = n.input("z", n.shape)
    assert [k for k, _, _ in n.fused(n.binary("div", z, n.conv()))] == ["convolution", "binary"]


def test_a_result_that_broadcasts_up_is_not_fused():
    n = Net()
    pooled = n.g.emit("reduction", [n.x], (2, 8, 1, 1), alg="mean", p=0.0, epsilon=0.0)
    assert n.fused(n.binary("mul", pooled, n.x)) == [("reduction", 1, []), ("binary", 2, [])]


def test_comparisons_change_the_dtype_and_stay():
    n = Net()
    y = n.g.binary("gt", n.conv(), n.const(1, 1, 1, 1), n.shape, "bool")
    assert [k for k, _, _ in n.fused(y)] == ["convolution", "binary"]


def _dense(g, x, n):
    flat = g.reshape(x, (6, 4))
    w = g.value(make_constant(np.ones((4, n), "float32")))
    return g.reshape(g.emit("matmul", [flat, w], (6, n)), (2, 3, n))


def test_bias_and_activation_move_through_the_reshape_of_a_dense_layer():
    n = Net()
    x = n.input("tokens", (2, 3, 4))
    y = n.g.binary("add", _dense(n.g, x, 5), n.const(5), (2, 3, 5))
    y = n.g.eltwise(y, "gelu_erf")
    z = n.input("z", (2, 3, 5))
    y = n.g.binary("add", y, z, (2, 3, 5))
    assert n.fused(y) == [("matmul", 4, ["gelu_erf", "add"])]


def test_an_operand_that_a_reshape_would_mix_up_stays_outside():
    n = Net()
    x = n.input("tokens", (2, 3, 4))
    y = n.g.binary("add", _dense(n.g, x, 5), n.const(1, 3, 1), (2, 3, 5))  # one number per row of a batch
    assert [k for k, _, _ in n.fused(y)] == ["matmul", "binary"]


def test_channels_last_residual_block_has_no_permutation_inside():
    g = GraphBuilder("g")
    x = g.value(relax.Var("x", relax.TensorType((2, 5, 5, 8), "float32")))
    w = g.value(make_constant(np.ones((8, 8, 3, 3), "float32")))
    attrs = {"strides": [1, 1], "dilations": [1, 1], "pad_begin": [1, 1], "pad_end": [1, 1]}

    def conv(v):
        y = g.emit("convolution", [g.permute(v, [0, 3, 1, 2]), w], (2, 8, 5, 5), **attrs)
        return g.permute(y, [0, 2, 3, 1])

    bias = g.value(make_constant(np.ones(8, "float32")))
    a = g.eltwise(g.binary("add", conv(x), bias, (2, 5, 5, 8)), "relu")
    b = g.eltwise(g.binary("add", conv(a), a, (2, 5, 5, 8)), "relu")
    graph = fuse_post_ops(g.finish(b))
    kinds = [n.kind for n in graph.nodes if n.kind != "reshape"]
    assert kinds.count("permute") - _constant_permutes(graph) == 2  # into the block and out of it
    assert [[o.alg for o in n.post_ops] for n in graph.nodes if n.kind == "convolution"] == [["relu"], ["add", "relu"]]


def _constant_permutes(graph):
    constants = graph.constant_tensors()
    return sum(n.kind == "permute" and constants.issuperset(n.outputs) for n in graph.nodes)


def test_a_view_that_composition_has_bypassed_is_no_reader():
    n = Net()
    turned = n.g.permute(n.conv(), [0, 2, 3, 1])
    back = n.g.permute(turned, [0, 3, 1, 2])
    assert n.fused(n.g.eltwise(back, "relu")) == [("convolution", 2, ["relu"])]


def test_a_view_that_two_read_stays_below():
    n = Net()
    turned = n.g.permute(n.conv(), [0, 2, 3, 1])
    a, b = n.g.eltwise(turned, "relu"), n.g.eltwise(turned, "tanh")
    assert [k for k, _, ops in n.fused(a, b) if not ops] == ["convolution", "permute", "eltwise", "eltwise"]


def test_readers_are_counted_once_and_kept():
    """Every count that the moves keep up to date is what counting again gives."""
    g = GraphBuilder("g")
    x = value = g.value(relax.Var("x", relax.TensorType((2, 3, 4, 5), "float32")))
    for k in range(40):
        z = g.permute(x, [0, 2, 3, 1]) if k % 3 == 0 else g.permute(g.permute(x, [0, 3, 1, 2]), [0, 3, 1, 2])
        value = g.permute(g.eltwise(g.permute(value, [0, 2, 3, 1]), "tanh"), [0, 3, 1, 2])
        value = g.permute(g.binary("add", g.permute(value, [0, 2, 3, 1]), z, (2, 4, 5, 3)), [0, 3, 1, 2])
    graph = g.finish(value)
    sinker = _Sinker(graph)
    for node in list(graph.nodes):
        if node.kind in ("eltwise", "binary"):
            while sinker.sink(node):
                pass
        elif node in graph.nodes:
            sinker.compose(node)
    live, reads = set(graph.outputs), Counter()
    for node in reversed(graph.nodes):
        if live.intersection(node.outputs):
            live.update(node.inputs)
            reads.update(node.inputs)
    assert {t: graph.nodes.read_count(t) for t in reads} == dict(reads)


def _odd_maximum(x, w, z, m):
    y = relax.op.nn.conv2d(x, w, padding=1, groups=6)
    return relax.op.maximum(relax.op.divide(y, z), m)


_ODD = (const(6, 1, 3, 3), data(2, 6, 7, 5, low=0.5, high=2), const(1, 1, 7, 1))


@pytest.mark.native
def test_a_depthwise_convolution_divided_and_bounded_by_rows():
    Case(_odd_maximum, (data(2, 6, 7, 5), *_ODD), within=1e-4).offloads().matches()


@pytest.mark.native
def test_the_same_with_a_batch_that_is_known_at_run_time():
    weights, _, rows = _ODD
    operands = (data("n", 6, 7, 5), weights, data("n", 6, 7, 5, low=0.5, high=2), rows)
    Case(_odd_maximum, operands, symbols={"n": 2}, within=1e-4).offloads().matches()


@pytest.mark.native
def test_the_same_as_source():
    case = Case(_odd_maximum, (data(2, 6, 7, 5), *_ODD))
    run = byoc.Runner(byoc.compile(case.module, output="source"))
    got = run(*[a for o, a in zip(case.operands, case.arrays, strict=True) if not o.constant])
    assert_right(got, case.run(partitioned=False)[0])


@pytest.mark.native
@pytest.mark.parametrize("batch", [1, 2])
def test_attention_copies_none_of_its_operands(batch):
    """Reshapes and permutations of Q, K and V are strides of the products that read them."""
    length, heads, width = 7, 3, 8
    rows = heads * width

    def split(x, w, b, axes):
        y = relax.op.add(relax.op.matmul(x, w), b)
        return relax.op.permute_dims(relax.op.reshape(y, (batch, length, heads, width)), axes)

    def function(x, wq, bq, wk, bk, wv, bv):
        q, v = split(x, wq, bq, [0, 2, 1, 3]), split(x, wv, bv, [0, 2, 1, 3])
        scores = relax.op.multiply(relax.op.matmul(q, split(x, wk, bk, [0, 2, 3, 1])), make_constant(np.float32(0.3)))
        mixed = relax.op.matmul(relax.op.nn.softmax(scores, -1), v)
        return relax.op.reshape(relax.op.permute_dims(mixed, [0, 2, 1, 3]), (batch, length, rows))

    parameters = (const(rows, rows, low=-0.5, high=0.5), const(rows)) * 3
    case = Case(function, (data(batch, length, rows), *parameters), within=1e-4).offloads().matches()
    (graph,) = case.graphs()
    found = describe(graph)
    assert found is not None
    assert found.reorders == 0  # not of the result either: the last product writes it as the caller wants it
    assert [n.kind for n in graph.nodes if n.kind in ("matmul", "attention")] == [*["matmul"] * 3, "attention"]
