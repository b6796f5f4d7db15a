"""Bugs of other integrations of oneDNN that nobody was told of: wrong numbers, or a crash after the build.

    B1  gelu and mish taken with any constants
    B2  layer_norm taken with its axis and eps ignored
    B3  an add taken for a bias, whatever its shape
    B4  pad + avg_pool taken with the pad's widths and value ignored
    B5  post-ops read out of a composite's name
    B6  logsumexp taken for a log-sigmoid
    B7  what the library cannot do, found out at load time
    B8  dtypes that the library has not, passed on to it

Each is here with inputs on which the wrong answer differs visibly.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, assert_right, const, data, number
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import lower_region

pytestmark = pytest.mark.native

op, nn = relax.op, relax.op.nn
_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _algorithms(case: Case) -> list[str]:
    return [n.attrs.get("alg", "") for g in case.graphs() for n in g.nodes]


# ---------------------------------------------------------------- B1
def _gelu(x, divisor, addend, factor):
    return op.multiply(op.multiply(x, op.add(op.erf(op.divide(x, number(divisor))), number(addend))), number(factor))


@pytest.mark.parametrize(
    ("divisor", "addend", "factor"), [(1.5, 1.0, 0.5), (math.sqrt(2), 0.9, 0.5), (math.sqrt(2), 1.0, 0.6)]
)
def test_b1_gelu_with_other_constants_is_no_gelu(divisor, addend, factor):
    case = Case(
        lambda x, w: _gelu(op.matmul(x, w), divisor, addend, factor),
        (data(3, 17), const(17, 5, low=-0.5, high=0.5)),
        lambda x, w: (x @ w) * (_ERF(x @ w / divisor) + addend) * factor,
    )
    assert not {"gelu_erf", "gelu_tanh"} & set(_algorithms(case))
    assert "matmul" in [kind for kind, _ in case.nodes()]
    case.matches()


def test_b1_gelu_with_its_constants_is_one():
    case = Case(lambda x: _gelu(x, math.sqrt(2), 1.0, 0.5), (data(3, 17),))
    assert _algorithms(case) == ["gelu_erf"]


@pytest.mark.parametrize(("cubic", "inner"), [(0.05, math.sqrt(2 / math.pi)), (0.044715, 0.85)])
def test_b1_fast_gelu_with_other_constants_is_no_gelu(cubic, inner):
    def function(x):
        cube = op.multiply(op.multiply(x, x), x)
        gate = op.tanh(op.multiply(op.add(x, op.multiply(cube, number(cubic))), number(inner)))
        return op.multiply(op.multiply(x, number(0.5)), op.add(gate, number(1.0)))

    case = Case(
        function,
        (data(3, 17, low=-4, high=4),),
        lambda x: 0.5 * x * (1 + np.tanh(inner * (x + cubic * x**3))),
    )
    assert "gelu_tanh" not in _algorithms(case)
    case.offloads().matches()


@pytest.mark.parametrize("addend", [2.0, 0.5])
def test_b1_mish_with_another_addend_is_no_mish(addend):
    case = Case(
        lambda x: op.multiply(x, op.tanh(op.log(op.add(op.exp(x), number(addend))))),
        (data(3, 17),),
        lambda x: x * np.tanh(np.log(np.exp(x) + addend)),
    )
    assert "mish" not in _algorithms(case)
    case.offloads().matches()


# ---------------------------------------------------------------- B2
@pytest.mark.parametrize("eps", [1e-5, 1e-6, 0.1])
@pytest.mark.parametrize("axes", [[-1], [1], [1, 2]])
def test_b2_layer_norm_keeps_its_axes_and_eps(axes, eps):
    def function(x):
        mean = op.mean(x, axes, keepdims=True)
        centred = op.subtract(x, mean)
        variance = op.mean(op.multiply(centred, centred), axes, keepdims=True)
        return op.divide(centred, op.sqrt(op.add(variance, number(eps))))

    def reference(x):
        at = tuple(axes)
        return (x - x.mean(at, keepdims=True)) / np.sqrt(x.var(at, keepdims=True) + eps)

    # values so small that eps matters, and axes of different sizes
    case = Case(function, (data(3, 5, 7, low=-2e-3, high=3e-3),), reference).offloads().matches()
    found = [n.attrs["epsilon"] for g in case.graphs() for n in g.nodes if n.kind == "layer_normalization"]
    assert found == pytest.approx([eps] * len(found))


# ---------------------------------------------------------------- B3
_CONVS = {
    "conv1d": (nn.conv1d, (2, 6, 9), (6, 6, 3)),
    "conv2d": (nn.conv2d, (2, 6, 9, 9), (6, 6, 3, 3)),
    "conv3d": (nn.conv3d, (2, 6, 5, 5, 5), (6, 6, 3, 3, 3)),
    "conv1d_transpose": (nn.conv1d_transpose, (2, 6, 9), (6, 6, 3)),
    "conv2d_transpose": (nn.conv2d_transpose, (2, 6, 5, 5), (6, 6, 3, 3)),
    "conv3d_transpose": (nn.conv3d_transpose, (2, 6, 4, 4, 4), (6, 6, 3, 3, 3)),
}
_ACTIVATIONS = {"none": lambda x: x, "tanh": op.tanh}


@pytest.mark.parametrize("name", _CONVS)
@pytest.mark.parametrize(("axis", "activation"), [(1, "none"), (1, "tanh"), (0, "tanh"), (2, "tanh")])
def test_b3_only_an_add_per_channel_is_a_bias(name, activation, axis):
    make, shape, weights = _CONVS[name]
    out = [d + (2 if "transpose" in name else -2) for d in shape]
    out[:2] = 2, 6
    own = [d if i == axis else 1 for i, d in enumerate(out)]
    case = Case(
        lambda x, w, b: _ACTIVATIONS[activation](op.add(make(x, w), b)),
        (data(*shape), const(*weights), const(*own)),
        within=1e-4,
    )
    biased = [len(n.inputs) - sum(o.kind == "binary" for o in n.post_ops) == 3 for n in _anchors(case)]
    assert biased == [axis == 1]
    case.offloads().matches()


def _anchors(case: Case):
    return [n for g in case.graphs() for n in g.nodes if n.kind in ("convolution", "deconvolution", "matmul")]


@pytest.mark.parametrize(("own", "is_bias"), [((7,), True), ((1, 7), True), ((5, 1), False), ((5, 7), False)])
def test_b3_a_dense_layers_bias_is_one_per_column(own, is_bias):
    case = Case(
        lambda x, w, b: op.tanh(op.add(op.matmul(x, w), b)),
        (data(5, 3), const(3, 7), const(*own)),
        lambda x, w, b: np.tanh(x @ w + b),
    )
    (matmul,) = _anchors(case)
    assert (len(matmul.inputs) - sum(o.kind == "binary" for o in matmul.post_ops) == 3) == is_bias
    case.offloads().matches()


# ---------------------------------------------------------------- B4
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    ("widths", "value"),
    [((0, 0, 0, 0, 1, 1, 1, 1), 0.0), ((0, 0, 0, 0, 2, 0, 0, 1), 0.0), ((0, 0, 0, 0, 1, 1, 1, 1), 1.0)],
)
def test_b4_padding_before_an_average_counts_as_it_is(widths, value, counts):
    def function(x):
        padded = nn.pad(x, widths, pad_value=value)
        return nn.avg_pool2d(padded, (3, 3), (1, 1), (0, 0), count_include_pad=counts)

    def reference(x):
        x = np.pad(x, list(zip(widths[::2], widths[1::2], strict=True)), constant_values=value)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
        return windows.mean((-1, -2))

    Case(function, (data(1, 3, 6, 7, low=1, high=2),), reference).offloads().matches()


# ---------------------------------------------------------------- B5
def test_b5_names_say_nothing():
    """The same function under names that claim something else is the same graph."""
    case = Case(lambda x, w: nn.relu(op.tanh(nn.conv2d(x, w))), (data(1, 3, 7, 7), const(4, 3, 3, 3)), within=1e-4)
    case.offloads().becomes(("convolution", ["tanh", "relu"])).matches()
    (region,) = case.regions
    renamed = region.with_attr("global_symbol", "conv2d_bias_sum_relu_sigmoid_gelu")
    documents = []
    for function in (region, renamed):
        document = lower_region(namespace("dnnl"), function, str(function.attrs["global_symbol"])).to_dict()
        assert document.pop("name") == str(function.attrs["global_symbol"])
        documents.append(document)
        for constant in document["constants"]:
            constant.pop("name")
    assert documents[0] == documents[1]


@pytest.mark.parametrize("order", [["tanh", "relu", "add"], ["add", "tanh", "relu"], ["relu", "add", "tanh", "relu"]])
def test_b5_post_ops_run_in_the_order_of_the_model(order):
    steps = {"tanh": op.tanh, "relu": nn.relu, "add": lambda x: op.add(x, x0)}
    x0 = None

    def function(x, w, z):
        nonlocal x0
        x0 = z
        y = nn.conv2d(x, w)
        for name in order:
            y = steps[name](y)
        return y

    case = Case(function, (data(1, 3, 7, 7), const(4, 3, 3, 3), data(1, 4, 5, 5)), within=1e-4)
    case.offloads().becomes(("convolution", order)).matches()


# ---------------------------------------------------------------- B6
def test_b6_logsumexp_is_no_log_sigmoid():
    case = Case(
        lambda x: op.log(op.sum(op.exp(x), [-1], keepdims=True)),
        (data(3, 17),),
        lambda x: np.log(np.exp(x).sum(-1, keepdims=True)),
    )
    assert not {"soft_relu", "logsigmoid"} & set(_algorithms(case))
    case.offloads().matches()


# ---------------------------------------------------------------- B7
@pytest.mark.parametrize(
    ("function", "operands", "offloaded"),
    [
        pytest.param(lambda x: nn.softmax(x, 0), (data(3, 5, 7),), True, id="softmax_axis_0"),
        pytest.param(lambda x: op.cumsum(x, 1), (data(3, 5),), False, id="no_primitive"),
        pytest.param(
            lambda x, g, b: nn.layer_norm(x, g, b, axes=[1]),
            (data(2, 5, 7), const(5), const(5)),
            True,
            id="norm_axis_1",
        ),
        pytest.param(
            lambda x, *p: relax.TupleGetItem(nn.batch_norm(x, *p, axis=2, training=False), 0),
            (data(2, 3, 5), *(const(5, low=0.5, high=2) for _ in range(4))),
            True,
            id="batch_norm_axis_2",
        ),
        pytest.param(
            lambda x: nn.max_pool2d(x, (2, 2), (2, 2), (0, 0), ceil_mode=True),
            (data(1, 3, 7, 7),),
            True,
            id="ceil_mode",
        ),
    ],
)
def test_b7_what_builds_loads_and_runs(function, operands, offloaded, tmp_path):
    """A limit of the library shows when the module is built; a saved module is loaded and run again."""
    case = Case(function, operands)
    (case.offloads() if offloaded else case.is_refused("")).matches()
    executable = tvm.compile(case.partitioned, "llvm", relax_pipeline="byoc")
    executable.export_library(str(tmp_path / "model.so"))
    run = byoc.load(str(tmp_path / "model.so"))
    got = run(*[a for o, a in zip(case.operands, case.arrays, strict=True) if not o.constant])
    assert_right(got, case.run(partitioned=False)[0])


def test_b7_what_is_left_is_named_when_it_is_built():
    Case(lambda x: op.cumsum(x, 1), (data(3, 5),)).is_refused("cumsum")


# ---------------------------------------------------------------- B8
@pytest.mark.parametrize("dtype", ["float64", "int16", "int64", "uint32"])
def test_b8_dtypes_that_the_library_has_not_stay(dtype):
    operands = (data(3, 5, dtype=dtype, low=0, high=9), data(3, 5, dtype=dtype, low=0, high=9))
    Case(op.add, operands, within=1e-12).is_refused(f"dtype {dtype}").matches()


def test_b8_a_convolution_of_doubles_stays():
    case = Case(nn.conv2d, (data(1, 3, 5, 5, dtype="float64"), const(4, 3, 3, 3, dtype="float64")), within=1e-6)
    case.is_refused("dtype float64")
