"""ONNX's quantised operators, compared with ONNX Runtime or with exact integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.unit.importing import node, onnx_model, prepared, run
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import ort_run, random_inputs

MS = "com.microsoft"
IMAGE = {"x": (1, 3, 10, 11)}


def quantised_constants(per_channel: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 0.02, 4 if per_channel else 1).astype("float32")
    return {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ys": np.float32(0.05), "yz": np.uint8(100),
        "ws": scale if per_channel else scale[0], "wz": np.zeros(4, "int8") if per_channel else np.int8(0),
    }  # fmt: skip


def product(x: np.ndarray, w: np.ndarray, pad: int = 0) -> np.ndarray:
    """The convolution or the matrix product of integers, exactly: ONNX Runtime saturates on a CPU without VNNI."""
    x, w = x.astype("int64"), w.astype("int64")
    if w.ndim == 2:
        return x @ w
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def requantised(total: np.ndarray, constants: dict[str, np.ndarray]) -> np.ndarray:
    """Sums of products as the numbers of the quantised output; their channels are on axis 1."""
    scale = np.asarray(constants["ws"], "float64")
    scale = scale.reshape(-1, *[1] * (total.ndim - 2)) if scale.ndim else scale
    steps = total * scale * float(constants["xs"]) / float(constants["ys"])
    return np.clip(np.rint(steps) + int(constants["yz"]), 0, 255)


def rounding_apart(model: onnx.ModelProto, exact: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
    """Equal to ``exact``, or to ONNX Runtime, up to one step of the quantised output: halves round to either side."""
    feeds = random_inputs(model)
    feeds = {k: np.random.default_rng(3).integers(0, 255, v.shape).astype(v.dtype) for k, v in feeds.items()}
    (got,) = run(prepared(to_relax(model)), *feeds.values())
    want = ort_run(model, feeds)[0] if exact is None else exact(*feeds.values())
    assert got.shape == want.shape and got.dtype == "uint8"
    apart = np.abs(got.astype("int32") - want.astype("int32"))
    assert apart.max() <= 1
    assert (apart > 0).mean() < 0.1
    assert want.std() > 1


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_qlinear_conv(per_channel: bool, bias: bool) -> None:
    constants = quantised_constants(per_channel)
    w = constants["w"] = np.random.default_rng(1).integers(-127, 127, (4, 3, 3, 3)).astype("int8")
    b = constants["b"] = np.array([100, -2000, 0, 5], "int32")
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"] + (["b"] if bias else [])
    conv = node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])

    def exact(x: np.ndarray) -> np.ndarray:
        total = product(x.astype("int64") - 120, w, pad=1)
        return requantised(total + b.reshape(-1, 1, 1) if bias else total, constants)

    model = onnx_model([conv], IMAGE, constants, dtypes={"x": TensorProto.UINT8, "y": TensorProto.UINT8})
    rounding_apart(model, exact)


@pytest.mark.parametrize("op", ["QLinearMatMul", "QGemm"])
def test_qlinear_matmul(op: str) -> None:
    constants = quantised_constants(True)
    w = constants["w"] = np.random.default_rng(1).integers(-127, 127, (8, 4)).astype("int8")
    bias = np.array([100, -2000, 0, 5], "int32") if op == "QGemm" else 0
    if op == "QLinearMatMul":
        mul = node(op, ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["y"])
    else:
        constants["b"] = np.asarray(bias)
        mul = node(op, ["x", "xs", "xz", "w", "ws", "wz", "b", "ys", "yz"], ["y"], domain=MS)
    model = onnx_model([mul], {"x": (6, 8)}, constants, dtypes={"x": TensorProto.UINT8, "y": TensorProto.UINT8})
    rounding_apart(model, lambda x: requantised(product(x.astype("int64") - 120, w) + bias, constants))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearAveragePool", {"kernel_shape": [2, 2]}),
        (
            "QLinearAveragePool",
            {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [0, 1, 0, 1], "ceil_mode": 1, "count_include_pad": 1},
        ),
        ("QLinearGlobalAveragePool", {}),
    ],
)
def test_quantised_unary(op: str, attrs: dict[str, object]) -> None:
    constants = quantised_constants(False)
    constants["ys"] = np.float32(0.006)
    constants["yz"] = np.uint8(127)
    one = node(op, ["x", "xs", "xz", "ys", "yz"], ["y"], domain=MS, **attrs)
    rounding_apart(onnx_model([one], IMAGE, constants, dtypes={"x": TensorProto.UINT8, "y": TensorProto.UINT8}))


@pytest.mark.parametrize("rows", [1, "n"])
@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("QLinearConv", (7, 5, 3), {"pads": [1, 1, 1, 1]}),
        ("QLinearConv", (7, 5, 3), {"pads": [1, 0, 1, 2], "strides": [2, 1], "dilations": [1, 2]}),
        ("QLinearConv", (5, 3, 3), {"auto_pad": "SAME_UPPER"}),
        ("QLinearAveragePool", (7, 5, 3), {"kernel_shape": [3, 2], "count_include_pad": 1, "pads": [1, 0, 0, 1]}),
        ("QLinearAveragePool", (7, 5), {"kernel_shape": [3]}),
        ("QLinearGlobalAveragePool", (7, 5, 3), {}),
    ],
)
def test_channels_last(op: str, shape: tuple[int, ...], attrs: dict[str, object], rows: int | str) -> None:
    """The same as the operator on channels that lie first, with its axes exchanged; ONNX Runtime reads it so."""
    constants = quantised_constants(True)
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if op == "QLinearConv":
        constants["w"] = np.random.default_rng(1).integers(-60, 60, (4, shape[-1], 3, 3)).astype("int8")
    else:
        names = [name for name in names if "w" not in name]
        constants = {name: value for name, value in constants.items() if name in names}
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    last, first = (node(op, names, ["y"], domain=MS, channels_last=flag, **attrs) for flag in (1, 0))
    model = onnx_model([last], {"x": (rows, *shape)}, constants, dtypes=types)
    other = onnx_model([first], {"x": (rows, *_first(shape))}, constants, dtypes=types)
    x = np.random.default_rng(3).integers(0, 256, (2 if rows == "n" else 1, *shape), "uint8")
    (got,), (want,) = run(prepared(to_relax(model)), x), run(prepared(to_relax(other)), np.moveaxis(x, -1, 1).copy())
    np.testing.assert_array_equal(got, np.moveaxis(want, 1, -1))
    (reference,) = ort_run(model, {"x": x})
    assert got.shape == reference.shape
    if op != "QLinearConv":  # its sums saturate without VNNI
        assert np.abs(got.astype("int32") - reference).max() <= 1


def _first(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[-1], *shape[:-1])


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("of_model", [12, 17])
def test_a_quantised_softmax_of_either_opset(of_model: int, axis: int | None, opset: int) -> None:
    """Before opset 13 all axes from ``axis`` on are one, whatever the opset of the model is."""
    constants = quantised_constants(False) | {"ys": np.float32(1 / 256), "yz": np.uint8(0)}
    attrs = {} if axis is None else {"axis": axis}
    softmax = node("QLinearSoftmax", ["x", "xs", "xz", "ys", "yz"], ["y"], domain=MS, opset=opset, **attrs)
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    model = onnx_model([softmax], {"x": (2, 3, 4)}, constants, dtypes=types, opset=of_model)
    x = np.random.default_rng(3).integers(0, 256, (2, 3, 4), "uint8")
    (got,), (want,) = run(prepared(to_relax(model)), x), ort_run(model, {"x": x})
    assert np.abs(got.astype("int32") - want).max() <= 1


def test_without_a_zero_point_the_result_has_the_dtype_of_the_source() -> None:
    constants = {"xs": np.float32(0.02), "ys": np.float32(0.01)}
    one = node("QLinearLeakyRelu", ["x", "xs", "", "ys", ""], ["y"], domain=MS)
    model = onnx_model([one], {"x": (2, 300)}, constants, dtypes={"x": TensorProto.INT8, "y": TensorProto.INT8})
    x = np.random.default_rng(3).integers(-128, 128, (2, 300)).astype("int8")
    (got,), (want,) = run(prepared(to_relax(model)), x), ort_run(model, {"x": x})
    assert got.dtype == want.dtype == "int8"
    assert np.abs(got.astype("int32") - want).max() <= 1


@pytest.mark.parametrize(
    ("op", "domain", "operands"),
    [
        ("QLinearConv", MS, "x xs xz w ws wz ys yz"),
        ("QLinearConv", "", "x xs xz w ws wz ys yz"),
        ("QLinearMatMul", "", "x xs xz m ws wz ys yz"),
        ("QGemm", MS, "x xs xz m ws wz _ ys yz"),
        ("QLinearAdd", MS, "x xs xz x xs xz ys yz"),
        ("QLinearSigmoid", MS, "x xs xz ys yz"),
        ("QLinearSoftmax", MS, "x xs xz ys yz"),
        ("QLinearAveragePool", MS, "x xs xz ys yz"),
        ("QLinearGlobalAveragePool", MS, "x xs xz ys yz"),
        ("QLinearConcat", MS, "ys yz x xs xz"),
        ("MatMulInteger", "", "x m"),
        ("ConvInteger", "", "x w"),
    ],
)
def test_an_attribute_that_nobody_knows_is_refused_by_name(op: str, domain: str, operands: str) -> None:
    constants = quantised_constants(False)
    constants |= {"w": np.ones((4, 3, 3, 3), "int8"), "m": np.ones((11, 4), "int8")}
    names = ["" if name == "_" else name for name in operands.split()]
    attrs = {"kernel_shape": [2, 2]} if op == "QLinearAveragePool" else {"axis": 1} if op == "QLinearConcat" else {}
    model = onnx_model(
        [node(op, names, ["y"], domain=domain, channels_last_too=1, **attrs)],
        IMAGE,
        {name: value for name, value in constants.items() if name in names},
        dtypes={"x": TensorProto.UINT8, "y": TensorProto.UINT8},
    )
    with pytest.raises(UnsupportedError, match=rf"{op} \(node `y`\) has channels_last_too=1"):
        to_relax(model)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul", "QLinearConcat"])
def test_quantised_binary(op: str) -> None:
    constants = quantised_constants(False)
    if op == "QLinearConcat":
        names, attrs = ["ys", "yz", "x", "xs", "xz", "x2", "ys", "xz"], {"axis": 1}
    else:
        names, attrs = ["x", "xs", "xz", "x2", "ys", "xz", "ys", "yz"], {}
    types = {"x": TensorProto.UINT8, "x2": TensorProto.UINT8, "y": TensorProto.UINT8}
    rounding_apart(
        onnx_model(
            [node(op, names, ["y"], domain=MS, **attrs)], {**IMAGE, "x2": (1, 3, 10, 11)}, constants, dtypes=types
        )
    )


@pytest.mark.parametrize(("weight", "exact"), [(100, True), (120, False)])
@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_the_weights_say_whether_float32_has_all_sums(op: str, weight: int, exact: bool) -> None:
    """600 products of 255 and a weight, which is up to 252, may be more than 2²⁴: these are not, or are."""
    shape, of_weights = ((1, 600, 2, 2), (4, 600, 1, 1)) if op == "ConvInteger" else ((2, 600), (600, 4))
    nodes = [node(op, ["x", "w", "xz", "wz"], ["s"]), node("Add", ["s", "one"], ["y"])]
    constants = {"w": np.full(of_weights, 3 + weight, "uint8"), "xz": np.uint8(0), "wz": np.uint8(3)}
    constants["one"] = np.int32(1)
    mod = to_relax(onnx_model(nodes, {"x": shape}, constants, dtypes={"x": 2, "y": TensorProto.INT32}))
    assert ("dequantize" in mod.script()) == exact
    assert (run(prepared(mod), np.full(shape, 255, "uint8"))[0] == 1 + 600 * 255 * weight).all()


@pytest.mark.parametrize("op", ["ConvInteger", "MatMulInteger"])
def test_integer_operators(op: str) -> None:
    weight = (4, 3, 3, 3) if op == "ConvInteger" else (11, 4)
    constants = {"w": np.random.default_rng(1).integers(-127, 127, weight).astype("int8"), "xz": np.uint8(120)}
    model = onnx_model([node(op, ["x", "w", "xz"], ["y"])], IMAGE, constants, dtypes={"x": 2, "y": TensorProto.INT32})
    x = np.random.default_rng(2).integers(0, 255, (1, 3, 10, 11)).astype("uint8")
    (got,) = run(prepared(to_relax(model)), x)
    want = product(x.astype("int64") - 120, constants["w"])
    assert got.dtype == "int32" and got.shape == want.shape
    np.testing.assert_array_equal(got, want)


def test_a_quantised_number() -> None:
    """TVM 0.26 quantises only tensors with axes."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        node("Mul", ["r", "w"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": (), "w": (2, 3)}, {"s": np.float32(0.25), "z": np.uint8(7)})
    x, w = np.array(3.3, "float32"), np.linspace(-2, 2, 6, dtype="float32").reshape(2, 3)
    for mod in (to_relax(model), prepared(to_relax(model))):
        (got,) = run(mod, x, w)
        np.testing.assert_allclose(got, ort_run(model, {"x": x, "w": w})[0], rtol=1e-6)
