"""Networks as ``quantize_static`` makes them, to the last integer of ONNX Runtime without its optimiser.

All scales are rounded to powers of two behind the quantiser. Then every sum is exact in float32 and in integers, halves
are halves in both, and a right result is an equal one: how far an error may spread through a network is no question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, shape_inference
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.models import ort_run


class _Network:
    """Nodes of a float32 network with seeded weights."""

    def __init__(self, channels: int, size: int) -> None:
        self.rng = np.random.default_rng(channels + size)
        self.shape = (1, channels, size, size)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attrs))
        return name

    def constant(self, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def noise(self, *shape: int) -> str:
        size = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.2
        return self.constant((self.rng.standard_normal(shape) * size).astype("float32"))

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, act: str = "Relu", **attrs: Any) -> str:
        group = attrs.get("group", 1)
        weights = self.noise(outputs, inputs // group, kernel, kernel)
        y = self.add("Conv", x, weights, self.noise(outputs), pads=[kernel // 2] * 4, **attrs)
        return self.add(act, y) if act else y

    def model(self, result: str) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "network", [info("x", 1, self.shape)], [info(result, 1, None)], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def u_net() -> onnx.ModelProto:
    """Down and up again; each level reads a concat of what came up and what went by."""
    n = _Network(3, 16)
    first = n.conv(n.conv("x", 3, 8), 8, 8)
    second = n.conv(n.add("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 8, 16)
    bottom = n.conv(n.add("MaxPool", second, kernel_shape=[2, 2], strides=[2, 2]), 16, 32)
    up = n.add("ConvTranspose", bottom, n.noise(32, 16, 2, 2), n.noise(16), strides=[2, 2])
    joined = n.conv(n.add("Concat", up, second, axis=1), 32, 16)
    scales = n.constant(np.array([1, 1, 2, 2], "float32"))
    up = n.add("Resize", joined, "", scales, mode="nearest")
    return n.model(n.conv(n.conv(n.add("Concat", up, first, axis=1), 24, 8), 8, 2, 1, act=""))


def residual() -> onnx.ModelProto:
    """Blocks with sums, whose relu a zero point of 0 can be, and a classifier."""
    n = _Network(3, 16)
    x = n.conv("x", 3, 16)
    for _ in range(2):
        y = n.conv(n.conv(x, 16, 16), 16, 16, act="")
        x = n.add("Relu", n.add("Add", y, x))
    y = n.conv(n.conv(x, 16, 32, strides=[2, 2]), 32, 32, act="")
    x = n.add("Relu", n.add("Add", y, n.conv(x, 16, 32, 1, act="", strides=[2, 2])))
    flat = n.add("Flatten", n.add("GlobalAveragePool", x))
    return n.model(n.add("Gemm", flat, n.noise(10, 32), n.noise(10), transB=1))


def aggregated() -> onnx.ModelProto:
    """As VoVNet and DLA: a concat of all layers before, one product of it, and a sum."""
    n = _Network(3, 12)
    x = n.conv("x", 3, 16)
    layers = [x]
    for _ in range(3):
        layers.append(n.conv(layers[-1], 16, 16))
    joined = n.conv(n.add("Concat", *layers, axis=1), 64, 16, 1)
    tree = n.add("Add", joined, x)
    pooled = [n.add(op, tree, kernel_shape=[2, 2], strides=[2, 2]) for op in ("AveragePool", "MaxPool")]
    return n.model(n.conv(n.add("Concat", *pooled, axis=1), 32, 8))


def tree() -> onnx.ModelProto:
    """As DLA and attention gates: sums, products and means that a concat in a wider scale alone reads."""
    n = _Network(3, 12)
    x = n.conv("x", 3, 16)
    wide = n.add("Mul", n.conv(x, 16, 8, 1), n.constant(np.float32(5)))
    first = n.add("Relu", n.add("Add", n.conv(n.conv(x, 16, 16), 16, 16, act=""), x))
    second = n.add("Relu", n.add("Add", n.conv(n.conv(first, 16, 16), 16, 16, act=""), x))
    joined = n.conv(n.add("Concat", second, wide, axis=1), 24, 16, 1)
    gate = n.add("Relu", n.add("Add", n.add("Sigmoid", n.conv(joined, 16, 16, 1, act="")), x))
    mean = n.add("ReduceMean", n.add("Relu", n.add("Sub", joined, x)), axes=[2, 3], keepdims=1)
    up = n.add("Resize", mean, "", n.constant(np.array([1, 1, 12, 12], "float32")), mode="nearest")
    return n.model(n.conv(n.add("Concat", gate, up, n.add("Relu", n.add("Sub", joined, x)), wide, axis=1), 56, 8))


def inverted() -> onnx.ModelProto:
    """As MobileNet: depthwise convolutions, bounds of both signs, a sum without a relu."""
    n = _Network(3, 16)
    x = n.conv("x", 3, 16, act="")
    six = n.constant(np.float32(6))
    for _ in range(2):
        y = n.add("Clip", n.conv(x, 16, 32, 1, act=""), n.constant(np.float32(0)), six)
        y = n.add("Clip", n.conv(y, 32, 32, group=32, act=""), n.constant(np.float32(0)), six)
        x = n.add("Add", n.conv(y, 32, 16, 1, act=""), x)
    return n.model(n.add("GlobalAveragePool", x))


class _Calibration(CalibrationDataReader):
    """A few inputs."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(5)
        self._left = iter([{"x": rng.standard_normal(shape).astype("float32")} for _ in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def in_powers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every scale as the power of two below; biases in the scale that then follows from the operands'."""
    scales = {node.input[1] for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            whole = 2.0 ** np.floor(np.log2(numpy_helper.to_array(tensor)))
            tensor.CopyFrom(numpy_helper.from_array(whole.astype("float32"), tensor.name))
    return model


_MAKERS: tuple[Callable[[], onnx.ModelProto], ...] = (u_net, residual, aggregated, tree, inverted)
NETWORKS = {make.__name__: make for make in _MAKERS}
FORMS = {
    "uint8 and int8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8},
    "int8": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8},
    "uint8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
    "symmetric": {
        "activation_type": QuantType.QInt8,
        "weight_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": True},
    },
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_quantised_network_gives_the_same_integers(name: str, form: str, per_channel: bool, tmp_path: Any) -> None:
    plain, whole = tmp_path / "plain.onnx", tmp_path / "whole.onnx"
    network = NETWORKS[name]()
    onnx.save(shape_inference.infer_shapes(network), plain)
    shape = tuple(d.dim_value for d in network.graph.input[0].type.tensor_type.shape.dim)
    quantize_static(
        plain, whole, _Calibration(shape), quant_format=QuantFormat.QDQ, per_channel=per_channel, **FORMS[form]
    )
    model = in_powers(onnx.load(whole))
    run = byoc.Runner(byoc.compile(model))
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal(shape).astype("float32") * 2
        (want,) = ort_run(model, {"x": x})
        np.testing.assert_array_equal(np.asarray(run(x)), want)
