"""Weights of 8 and 4 bits: how they are rounded, found, stored and multiplied."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.prepare.compression import compressed, why_not_compressed
from tvm_byoc_dnnl.whole.table import operator

K, N = 256, 300
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal((K, N)).astype("float32")
BIAS = RNG.standard_normal(N).astype("float32")


def layer(rows: Any = 3, weights: np.ndarray = WEIGHTS) -> tvm.IRModule:
    """relu(x @ weights + bias) + residual"""
    k, n = weights.shape
    x = relax.Var("x", relax.TensorType((rows, k), "float32"))
    residual = relax.Var("residual", relax.TensorType((rows, n), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, residual]):
        with builder.dataflow():
            product = relax.op.add(relax.op.matmul(x, relax.const(weights)), relax.const(BIAS[:n]))
            out = builder.emit_output(relax.op.add(relax.op.nn.relu(product), residual))
        builder.emit_func_output(out)
    return builder.get()


def run(executable: Any, *arrays: np.ndarray) -> np.ndarray:
    return byoc.Runner(executable)(*arrays)


def expected(x: np.ndarray, residual: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype("float64") @ weights + BIAS, 0) + residual


@functools.cache
def inputs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rows, K)).astype("float32"), rng.standard_normal((rows, N)).astype("float32")


@pytest.mark.parametrize(("bits", "largest"), [(8, 0.5 / 127), (4, 1 / 8)])
def test_weights_are_rounded_to_the_nearest_number(bits: int, largest: float) -> None:
    weights = compressed(WEIGHTS, bits)
    grouped = WEIGHTS.T.reshape(N, -1, weights.group)
    errors = np.abs(weights.values.reshape(grouped.shape) - grouped)
    assert (errors <= largest * np.abs(grouped).max(-1, keepdims=True) * 1.0001).all()
    assert np.abs(weights.numbers).max() == (127 if bits == 8 else 8)


def test_a_group_of_zeros_stays_zero() -> None:
    for bits in (8, 4):
        assert not compressed(np.zeros((64, 8), "float32"), bits).values.any()


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_the_result_is_that_of_the_rounded_weights(weights: str) -> None:
    executable = byoc.compile(layer(relax_rows()), weights=weights)
    rounded = compressed(WEIGHTS, {"int8": 8, "int4": 4}[weights]).values.T
    for rows in (1, 3, 7, 40):
        x, residual = inputs(rows)
        want = expected(x, residual, rounded)
        assert_right(run(executable, x, residual), want.astype("float32"))
    assert any("compressed" in impl for impl in primitives(layer(), weights))


def relax_rows() -> Any:
    return tvm.tirx.Var("rows", "int64")


def primitives(mod: tvm.IRModule, weights: str | None) -> list[str]:
    """The implementations of a model's primitives."""
    report = byoc.profile(byoc.compile(mod, weights=weights), repeat=1)
    return [row.implementation for row in report.steps]


def test_post_ops_are_part_of_the_product() -> None:
    assert len(primitives(layer(), "int8")) == 1


def test_a_library_holds_the_small_weights(tmp_path: Any) -> None:
    sizes = {}
    for weights in (None, "int8", "int4"):
        path = tmp_path / f"{weights}.so"
        byoc.compile(layer(), weights=weights).export_library(str(path))
        sizes[weights] = path.stat().st_size
        x, residual = inputs(3)
        assert np.isfinite(run(byoc.load(path).module, x, residual)).all()
    saved = sizes[None] - sizes["int8"], sizes["int8"] - sizes["int4"]
    assert saved[0] > WEIGHTS.size * 2.8
    assert saved[1] > WEIGHTS.size * 0.3


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (np.zeros((32, 32), "float32"), "fewer than 65536"),
        (np.zeros((250, 300), "float32"), "no multiple of 32"),
        (np.full((256, 256), np.inf, "float32"), "not all finite"),
        (np.zeros((2, 256, 256), "float32"), "two axes"),
        (np.zeros((256, 256), "float16"), "float16"),
    ],
)
def test_what_stays_as_it_is(weights: np.ndarray, reason: str) -> None:
    assert reason in why_not_compressed(weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": "int3"}, "weights is 'int3'; expected one of None, 'int8', 'int4'"),
        ({"weights": "int8", "prepare": False}, "prepare is False"),
        ({"weights": "int8", "compiler": "ccompiler"}, "ccompiler has no such option"),
        ({"options": {"dnnl": {"weights": "int3"}}}, "option 'weights' of 'dnnl' is 'int3'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        byoc.compile(layer(), **arguments)


def test_verify_states_the_error_against_float32() -> None:
    report = byoc.verify(layer(), weights="int4")
    assert report.ok
    assert report.from_float32 is not None
    assert 1e-3 < report.from_float32 < 0.2
    assert "from those in float32 by" in report.to_text()


# ---------------------------------------------------------------- models that store such weights
def model(nodes: list[Any], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    value = functools.partial(helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    graph = helper.make_graph(nodes, "g", [value("x", shape=[3, K])], [value("y", shape=[3, N])], initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "stored", "float"])
def test_matmul_nbits(bits: int, zeros: str) -> None:
    block, rng = 32, np.random.default_rng(bits)
    count = 1 << bits
    numbers = rng.integers(0, count, (N, K // block, block)).astype("uint8")
    scales = (rng.random((N, K // block)) + 0.1).astype("float32")
    centre = np.full((N, K // block), count // 2)
    constants = {"q": numbers, "s": scales.reshape(-1)}
    if bits == 4:
        constants["q"] = numbers[..., ::2] | numbers[..., 1::2] << 4
    if zeros != "none":
        centre = rng.integers(0, count, centre.shape)
        packed = centre.astype("uint8")
        constants["z"] = packed[:, ::2] | packed[:, 1::2] << 4 if bits == 4 else packed
    if zeros == "float":
        centre = centre + 0.25
        constants["z"] = centre.astype("float32")
    attrs = {"K": K, "N": N, "bits": bits, "block_size": block}
    nodes = [helper.make_node("MatMulNBits", ["x", *constants], ["y"], domain="com.microsoft", **attrs)]
    executable = byoc.compile(model(nodes, constants))
    x = inputs(3)[0]
    want = x.astype("float64") @ ((numbers - centre[..., None]) * scales[..., None].astype("float64")).reshape(N, K).T
    assert_right(run(executable, x), want.astype("float32"))
    impls = [row.implementation for row in byoc.profile(executable, repeat=1).steps]
    assert any("compressed" in impl for impl in impls) == (zeros != "float"), impls


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
def test_dequantize_linear_in_blocks(axis: int, dtype: str) -> None:
    block, rng = 64, np.random.default_rng(axis)
    bits, signed = int(dtype[-1]), dtype.startswith("int")
    numbers = rng.integers(0, 1 << bits, (K, N)) - (1 << (bits - 1) if signed else 0)
    numbers = numbers if axis == 0 else numbers.T
    shape = tuple(d // block if i == axis else d for i, d in enumerate(numbers.shape))
    scales = (rng.random(shape) + 0.1).astype("float32")
    zeros = rng.integers(-3, 4, shape) if signed else rng.integers(0, 1 << bits, shape)
    plain = "int8" if signed else "uint8"
    stored = {"q": numbers.astype(plain), "s": scales, "z": zeros.astype(plain)}
    types = {}
    if bits == 4:
        kind = onnx.TensorProto.INT4 if signed else onnx.TensorProto.UINT4
        types = {"q": kind, "z": kind}
        tensors = [helper.make_tensor(n, kind, stored[n].shape, stored[n].reshape(-1).tolist()) for n in types]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=axis, block_size=block),
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=axis),
    ]
    proto = model(nodes, {name: value for name, value in stored.items() if name not in types})
    if types:
        proto.graph.initializer.extend(tensors)
    executable = byoc.compile(proto)
    spread = [np.repeat(a.astype("float64"), block, axis) for a in (zeros, scales)]
    real = (numbers - spread[0]) * spread[1]
    x = inputs(3)[0]
    want = x.astype("float64") @ (real if axis == 0 else real.T)
    assert_right(run(executable, x), want.astype("float32"))
    impls = [row.implementation for row in byoc.profile(executable, repeat=1).steps]
    assert any("compressed" in impl for impl in impls), impls


# ---------------------------------------------------------------- recurrent layers
def recurrent(op: str, batch: int = 2, hidden: int = 136, directions: int = 2) -> tvm.IRModule:
    """All states of seven steps of a recurrent layer."""
    steps, gates = 7, {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * hidden
    x = relax.Var("x", relax.TensorType((steps, batch, 40), "float32"))
    rng, entry = np.random.default_rng(1), operator("", op)
    assert entry is not None
    shapes = [(directions, gates, 40), (directions, gates, hidden)]
    inputs = [x, *(relax.const((rng.standard_normal(s) / np.sqrt(s[-1])).astype("float32")) for s in shapes)]
    attrs = {"direction": "bidirectional" if directions == 2 else "forward"}
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(entry.call(inputs, attrs, [True] + [False] * (op == "LSTM") + [False], "rnn"))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.native
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("batch", "directions"), [(2, 2), (9, 1)])
def test_recurrent_layers_read_bytes(op: str, batch: int, directions: int) -> None:
    network = recurrent(op, batch, 136 if op != "RNN" else 264, directions)
    x = np.random.default_rng(2).standard_normal((7, batch, 40)).astype("float32")
    got, want = (run(byoc.compile(network, weights=w), x) for w in ("int8", None))
    assert 0 < np.abs(got - want).max() < 0.05
    verified = byoc.verify(network, [x], weights="int8")
    assert verified.ok, verified.to_text()
    report = byoc.explain(network, weights="int8")
    assert {call.primitive for call in report.calls if call.op == "relax.dequantize"} == {"nothing: fused away"}


@pytest.mark.parametrize(
    ("weights", "hidden", "reason"),
    [("int4", 136, "weights of recurrent layers have at least 8 bits"), ("int8", 24, "fewer than 65536")],
)
def test_recurrent_layers_that_are_left(weights: str, hidden: int, reason: str) -> None:
    network = recurrent("LSTM", hidden=hidden)
    report = byoc.explain(network, weights=weights)
    assert any(reason in miss.reason for call in report.calls for miss in call.near_misses), report.to_text()
