"""The questions of the retired test_dnnl.py of TVM, to this backend.

Anchors and activations are crossed as there. Each pair has to become one primitive; the numbers of fused chains have
tests of their own beside `post_ops`, here they are compared for one anchor of each kind.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, Operand, assert_right, const, data, number
from tvm_byoc_dnnl.graph.cost import RegionPolicy
from tvm_byoc_dnnl.ir.relax_utils import codegen_of

pytestmark = pytest.mark.native

nn = relax.op.nn


def mish(x: relax.Expr) -> relax.Expr:
    return relax.op.multiply(x, relax.op.tanh(relax.op.log(relax.op.add(number(1.0), relax.op.exp(x)))))


# activation -> (how Relax says it, what oneDNN calls it)
ACTIVATIONS: dict[str, Any] = {
    "none": (lambda x: x, []),
    "relu": (nn.relu, ["relu"]),
    "tanh": (relax.op.tanh, ["tanh"]),
    "sigmoid": (relax.op.sigmoid, ["logistic"]),
    "clip": (lambda x: relax.op.clip(x, 0, 6), ["clip"]),
    "gelu": (nn.gelu, ["gelu_erf"]),
    "swish": (nn.silu, ["swish"]),
    "mish": (mish, ["mish"]),
    "leaky_relu": (lambda x: nn.leakyrelu(x, 0.1), ["relu"]),
}


def spatial(rank: int, transposed: bool = False) -> Any:
    """A convolution of this many spatial axes, with its data and its weights."""
    op = getattr(nn, f"conv{rank}d{'_transpose' if transposed else ''}")
    weight = (6, 4, *[3] * rank) if transposed else (4, 6, *[3] * rank)
    return lambda x, w: op(x, w, padding=1), data(2, 6, *[5] * rank), const(*weight), (4, *[1] * rank)


# anchor -> (call, data, weights, shape of the bias), kind of the primitive
ANCHORS: dict[str, Any] = {
    "conv1d": (spatial(1), "convolution"),
    "conv2d": (spatial(2), "convolution"),
    "conv3d": (spatial(3), "convolution"),
    "conv1d_transpose": (spatial(1, transposed=True), "deconvolution"),
    "conv2d_transpose": (spatial(2, transposed=True), "deconvolution"),
    "conv3d_transpose": (spatial(3, transposed=True), "deconvolution"),
    "dense": ((relax.op.matmul, data(3, 6), const(6, 4), (4,)), "matmul"),
}
ANCHORS = {name: a for name, a in ANCHORS.items() if name == "dense" or hasattr(nn, name)}


def fused(anchor: str, activation: str, bias: bool) -> Case:
    (call, x, w, bias_shape), _ = ANCHORS[anchor]
    act = ACTIVATIONS[activation][0]
    if not bias:
        return Case(lambda x, w: act(call(x, w)), (x, w))
    return Case(lambda x, w, b: act(relax.op.add(call(x, w), b)), (x, w, const(*bias_shape)))


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("anchor", ANCHORS)
def test_patterns(anchor: str, activation: str, bias: bool) -> None:
    fused(anchor, activation, bias).offloads().becomes((ANCHORS[anchor][1], ACTIVATIONS[activation][1]))


@pytest.mark.parametrize("anchor", ["conv1d", "conv2d", "conv3d", "conv2d_transpose", "dense"])
def test_numbers(anchor: str) -> None:
    fused(anchor, "gelu", bias=True).offloads().matches()


# ---- convolutions: every shape of window ---------------------------------------------------------------

CONVOLUTIONS = {
    "strides": {"strides": 2},
    "padding": {"padding": (0, 1, 2, 1)},
    "dilation": {"dilation": 2, "padding": 2},
    "groups": {"groups": 2},
    "depthwise": {"groups": 6},
    "nhwc": {"data_layout": "NHWC", "kernel_layout": "HWIO"},
}


@pytest.mark.parametrize("attrs", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("weights", [const, data], ids=["constant weights", "weights as an input"])
def test_conv2d(attrs: dict[str, Any], weights: Any) -> None:
    channels_last, groups = "data_layout" in attrs, attrs.get("groups", 1)
    x = data(1, 7, 8, 6) if channels_last else data(1, 6, 7, 8)
    w = weights(3, 3, 6, 6) if channels_last else weights(6, 6 // groups, 3, 3)
    Case(lambda x, w: nn.conv2d(x, w, **attrs), (x, w)).offloads().becomes("convolution").matches()


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_conv2d_bias_sum(activation: str) -> None:
    act, algs = ACTIVATIONS[activation]

    def residual(x: Any, w: Any, b: Any, z: Any) -> Any:
        return act(relax.op.add(relax.op.add(nn.conv2d(x, w, padding=1), b), z))

    case = Case(residual, (data(1, 6, 5, 5), const(4, 6, 3, 3), const(4, 1, 1), data(1, 4, 5, 5)))
    case.offloads().becomes(("convolution", ["add", *algs])).matches()


def test_dense_bias_sum() -> None:
    case = Case(
        lambda x, w, b, z: relax.op.add(relax.op.add(relax.op.matmul(x, w), b), z),
        (data(3, 6), const(6, 4), const(4), data(3, 4)),
    )
    case.offloads().becomes(("matmul", ["add"])).matches()


@pytest.mark.parametrize(("a", "b"), [((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5))], ids=str)
def test_bmm(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    Case(relax.op.matmul, (data(*a), data(*b))).offloads().becomes("matmul").matches()


# ---- pooling -------------------------------------------------------------------------------------------

POOLS = {
    "max_pool2d": (nn.max_pool2d, (2, 3, 7, 8)),
    "avg_pool2d": (nn.avg_pool2d, (2, 3, 7, 8)),
    "max_pool3d": (nn.max_pool3d, (1, 3, 5, 6, 7)),
    "avg_pool3d": (nn.avg_pool3d, (1, 3, 5, 6, 7)),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"strides": 2}], ids=str)
def test_pool(pool: str, options: dict[str, Any]) -> None:
    op, shape = POOLS[pool]
    nodes = ["eltwise", ("pooling", ["linear"])] if "max" in pool else ["pooling"]  # the maximum of halves, doubled
    Case(lambda x: op(x, 3, **options), (data(*shape),)).offloads().becomes(*nodes).matches()


def test_global_avg_pooling2d() -> None:
    Case(lambda x: nn.adaptive_avg_pool2d(x, (1, 1)), (data(2, 3, 5, 7),)).offloads().matches()


@pytest.mark.parametrize("include", [True, False])
def test_pad_and_avg_pool(include: bool) -> None:
    """Zeros become the pool's padding where it counts them; where it does not, they stay zeros that are counted."""
    case = Case(
        lambda x: nn.avg_pool2d(nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1)), 3, count_include_pad=include), (data(1, 2, 6, 6),)
    )
    case.offloads().matches()


# ---- regions -------------------------------------------------------------------------------------------


def test_what_is_not_compatible_stays() -> None:
    Case(relax.op.add, (data(2, 3, dtype="int64"), data(2, 3, dtype="int64"))).is_refused("int64")


def test_multiple_outputs() -> None:
    def outputs(x: Any, y: Any) -> Any:
        total = relax.op.add(x, y)
        return nn.relu(total), relax.op.sqrt(relax.op.abs(total)), total

    case = Case(outputs, (data(1, 3), data(1, 3)))
    assert len(case.offloads().regions) == 1
    case.matches()


def test_prune() -> None:
    """A region without heavy work is left to TVM where the policy says so; the others stay."""

    def mixed(x: Any, w: Any, z: Any) -> Any:
        return nn.relu(nn.conv2d(x, w)), relax.op.multiply(z, z)

    module = Case(mixed, (data(1, 6, 5, 5), const(4, 6, 3, 3), data(3))).module
    kept = byoc.partition(module, policy=RegionPolicy(min_flops=1000))
    (region,) = [f for f in kept.functions.values() if codegen_of(f)]
    assert "nn.conv2d" in region.script() and "multiply" not in region.script()


def test_dense_bias_gelu_in_front_of_a_reshape() -> None:
    """The bias and the activation behind the reshape of a dense layer are post-ops of it all the same."""
    case = Case(
        lambda x, w, b: nn.gelu(relax.op.add(relax.op.reshape(relax.op.matmul(x, w), (2, 3, 4)), b)),
        (data(6, 5), const(5, 4), const(4)),
    )
    case.offloads().becomes(("matmul", ["gelu_erf"])).matches()


def test_layer_norm_by_its_parts() -> None:
    def parts(x: Any, g: Any, b: Any) -> Any:
        centred = relax.op.subtract(x, relax.op.mean(x, -1, keepdims=True))
        variance = relax.op.mean(relax.op.multiply(centred, centred), -1, keepdims=True)
        normal = relax.op.divide(centred, relax.op.sqrt(relax.op.add(variance, number(1e-3))))
        return relax.op.add(relax.op.multiply(normal, g), b)

    Case(parts, (data(3, 8), const(8), const(8))).offloads().becomes("layer_normalization").matches()


@pytest.mark.parametrize("weight", [const(4, 1, 3, 3), data(4, 1, 3, 3)], ids=["constant", "input"])
def test_a_shared_weight(weight: Operand) -> None:
    """Two convolutions of one weight, as test_extern_dnnl has them, and their sum."""

    def twice(x: Any, w: Any) -> Any:
        first = nn.conv2d(x, w, padding=1, groups=4)
        return relax.op.add(first, nn.conv2d(first, w, padding=1, groups=4))

    case = Case(twice, (data(1, 4, 6, 6), weight))
    assert len(case.offloads().regions) == 1
    case.offloads().becomes("convolution", ("convolution", ["add"])).matches()


def test_batch_norm_of_inputs() -> None:
    """Statistics that are inputs, of a rank that is no image."""

    def norm(x: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
        return nn.batch_norm(x, g, b, m, v, axis=1, training=False)[0]

    case = Case(norm, (data(3, 8), data(8), data(8), data(8), data(8, low=0.5, high=2)))
    case.offloads().matches()


def test_partial_constants() -> None:
    one, two = const(10, 10), const(10, 10, low=0)
    case = Case(
        lambda a, x, c, y: relax.op.add(relax.op.add(relax.op.add(relax.op.add(a, x), c), c), y),
        (one, data(10, 10), two, data(10, 10)),
    )
    case.offloads().matches()


def test_other_constants_than_gelus() -> None:
    """The old patterns took any divisor for the root of two."""

    def nearly(x: Any, root: float) -> Any:
        inner = relax.op.add(relax.op.erf(relax.op.divide(x, number(root))), number(1.0))
        return relax.op.multiply(relax.op.multiply(x, inner), number(0.5))

    operands = data(3, 6), const(6, 5)
    right = Case(lambda x, w: nearly(relax.op.matmul(x, w), math.sqrt(2)), operands)
    wrong = Case(lambda x, w: nearly(relax.op.matmul(x, w), 1.5), operands)
    right.offloads().becomes(("matmul", ["gelu_erf"])).matches()
    assert "gelu" in str(right.prepared) and "gelu" not in str(wrong.prepared)
    assert "matmul" in [kind for kind, _ in wrong.nodes()]
    wrong.matches()


def test_a_bias_has_to_be_per_channel() -> None:
    """The old patterns took any second operand of an add for a bias."""
    shapes: list[tuple[int, ...]] = [(1, 1, 5, 5), (4, 5, 5), (1, 4, 1, 5)]
    for shape in shapes:
        case = Case(
            lambda x, w, b: relax.op.add(nn.conv2d(x, w, padding=1), b),
            (data(1, 6, 5, 5), const(4, 6, 3, 3), const(*shape)),
        )
        (graph,) = case.graphs()
        convolution = next(n for n in graph.nodes if n.kind == "convolution")
        assert [op.alg for op in convolution.post_ops] != [] or len(convolution.inputs) == 2
        case.offloads().matches()


def test_two_convolutions_of_one_module() -> None:
    """Of TVM's test_codegen_dnnl.py: two fused convolutions in one module, numbers as without us."""

    def network(x: Any, first: Any, second: Any) -> Any:
        return nn.relu(nn.conv2d(nn.relu(nn.conv2d(x, first, padding=1)), second))

    case = Case(network, (data(1, 8, 9, 9), data(8, 8, 3, 3), data(8, 8, 3, 3)))
    case.offloads().becomes(("convolution", ["relu"]), ("convolution", ["relu"]))
    assert_right(case.run()[0], case.run(partitioned=False)[0])
    assert tvm.get_global_func("relax.ext.dnnl", allow_missing=True) is not None
