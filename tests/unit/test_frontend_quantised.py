"""ONNX's quantised operators, compared with ONNX Runtime or with exact integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.unit.importing import node, onnx_model, prepared, run
from tvm_byoc_dnnl.frontend import to_relax
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
        ("QLinearGlobalAveragePool", {}),
    ],
)
def test_quantised_unary(op: str, attrs: dict[str, object]) -> None:
    constants = quantised_constants(False)
    constants["ys"] = np.float32(0.006)
    constants["yz"] = np.uint8(127)
    one = node(op, ["x", "xs", "xz", "ys", "yz"], ["y"], domain=MS, **attrs)
    rounding_apart(onnx_model([one], IMAGE, constants, dtypes={"x": TensorProto.UINT8, "y": TensorProto.UINT8}))


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
