"""Products of one row that become one, and those that must not."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, const, data
from tvm_byoc_dnnl.graph.builder import GraphBuilder
from tvm_byoc_dnnl.ir.relax_utils import make_constant
from tvm_byoc_dnnl.patterns.dnnl.post_ops import fuse_post_ops
from tvm_byoc_dnnl.patterns.dnnl.products import why_apart

op, nn = relax.op, relax.op.nn


def _qkv(x, *parameters):
    """One token's attention: three projections with a bias, heads of 4, all of them mixed."""
    q, k, v = (
        op.permute_dims(op.reshape(op.add(op.matmul(x, w), b), (1, 1, 2, 4)), [0, 2, 1, 3])
        for w, b in zip(parameters[::2], parameters[1::2], strict=True)
    )
    scores = nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), -1)
    return op.reshape(op.add(op.matmul(scores, v), q), (1, 8))


def _qkv_reference(x, *p):
    q, _, v = (x @ w + b for w, b in zip(p[::2], p[1::2], strict=True))
    return (q + v).reshape(1, 8)  # a softmax over one key is 1


@pytest.mark.native
@pytest.mark.parametrize("shape", [(1, 8), (1, 1, 8)])
def test_query_key_and_value_of_one_token(shape):
    parameters = (const(8, 8), const(8)) * 3
    case = Case(_qkv, (data(*shape), *parameters), lambda x, *p: _qkv_reference(x.reshape(1, 8), *p))
    case.offloads().matches()
    widths = [g.tensors[n.outputs[0]].shape for g in case.graphs() for n in g.nodes if n.kind == "matmul"]
    assert widths == [(1, 24)]
    assert [n for n in case.nodes() if n[0] == "attention"]


@pytest.mark.native
def test_heads_of_different_widths_with_activations():
    def function(x, w1, b1, w2, b2, u1, u2):
        first, second = (nn.relu(op.add(op.matmul(x, w), b)) for w, b in ((w1, b1), (w2, b2)))
        return nn.softmax(op.add(op.matmul(first, u1), op.matmul(second, u2)), -1)

    operands = (data(1, 6), const(6, 5), const(5), const(6, 11), const(1, 11), const(5, 7), const(11, 7))

    def reference(x, w1, b1, w2, b2, u1, u2):
        y = np.exp(np.maximum(x @ w1 + b1, 0) @ u1 + np.maximum(x @ w2 + b2, 0) @ u2)
        return y / y.sum(-1, keepdims=True)

    case = Case(function, operands, reference).offloads().matches()
    assert [n for n in case.nodes() if n[0] == "matmul"] == [("matmul", ["relu"]), ("matmul", []), ("matmul", ["add"])]


class _Graph:
    """Two products of one input with a tanh of each behind them, and what makes them different."""

    def __init__(self, rows=1):
        self.g = GraphBuilder("g")
        self.rows = rows
        self.x = self.input("x", (rows, 8))

    def input(self, name, shape, dtype="float32"):
        return self.g.value(relax.Var(name, relax.TensorType(shape, dtype)))

    def const(self, *shape):
        return self.g.value(make_constant(np.ones(shape, "float32")))

    def product(self, x=None, weights=None, post=None):
        y = self.g.emit("matmul", [x or self.x, weights or self.const(8, 4)], (self.rows, 4))
        return self.g.eltwise(y, post) if post else y

    def products(self, *values):
        """The number of matmuls that are left, each with a consumer behind it."""
        results = tuple(self.g.emit("softmax", [v], v.shape, alg="accurate", axis=1) for v in values)
        graph = fuse_post_ops(self.g.finish(results))
        return sum(n.kind == "matmul" for n in graph.nodes)


def test_two_alike_are_one():
    n = _Graph()
    assert n.products(n.product(), n.product()) == 1


def test_weights_that_are_views_of_constants_come_first():
    n = _Graph()
    turned = n.g.permute(n.const(4, 8), [1, 0])
    assert n.products(n.product(), n.product(weights=turned)) == 1


def _other_input(n):
    return n.product(), n.product(n.input("y", (1, 8)))


def _rows(n):
    n.rows, n.x = 2, n.input("rows", (2, 8))
    return n.product(), n.product()


def _weights_at_run_time(n):
    return n.product(), n.product(weights=n.input("w", (8, 4)))


def _other_activation(n):
    return n.product(post="relu"), n.product(post="tanh")


def _operand(n):
    return tuple(n.g.binary("mul", n.product(), n.input(f"z{i}", (1, 4)), (1, 4)) for i in range(2))


def _one_with_a_bias(n):
    return n.product(), n.g.binary("add", n.product(), n.const(4), (1, 4))


@pytest.mark.parametrize(
    "make", [_other_input, _rows, _weights_at_run_time, _other_activation, _operand, _one_with_a_bias]
)
def test_two_that_differ_stay(make):
    n = _Graph()
    assert n.products(*make(n)) == 2


def test_results_of_the_region_stay():
    n = _Graph()
    a, b = n.product(), n.product()
    graph = fuse_post_ops(n.g.finish((n.g.reshape(a, (4,)), b)))
    assert sum(m.kind == "matmul" for m in graph.nodes) == 2


@pytest.mark.parametrize(
    ("make", "delivered", "reason"),
    [
        (_rows, False, "a product of shape [2, 4]: only the columns of one row lie together"),
        (_weights_at_run_time, False, "known at run time only"),
        (_operand, False, "a post-op with an operand of its own"),
        (_other_input, True, "a result of the region"),
        (_other_input, False, None),
    ],
)
def test_the_reason_is_named(make, delivered, reason):
    n = _Graph()
    graph = fuse_post_ops(n.g.finish(tuple(make(n))))
    node = [m for m in graph.nodes if m.kind == "matmul"][-1]
    why = why_apart(graph, node, graph.constant_tensors(), set(graph.outputs) if delivered else set())
    assert why is None if reason is None else reason in why
