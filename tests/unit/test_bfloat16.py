"""precision="bfloat16": which edges of a region change their dtype, and how far the results are from float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tests.isa import computes_in, isa
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.whole.table import operator

RNG = np.random.default_rng(0)
computes_low = pytest.mark.skipif(not computes_in("bfloat16"), reason="this CPU has no bfloat16")


def weights(*shape: int, scale: float = 1) -> Any:
    return relax.const((scale * RNG.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype("float32"))


@pytest.fixture(scope="module")
def network() -> tvm.IRModule:
    """Two convolutions with a residual sum, pooling, layer_norm, exp, a product and a softmax."""
    x = relax.Var("x", relax.TensorType((2, 16, 10, 10), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            first = R.nn.relu(R.add(R.nn.conv2d(x, weights(32, 16, 3, 3), padding=1), weights(1, 32, 1, 1)))
            total = R.nn.relu(R.add(R.nn.conv2d(first, weights(32, 32, 1, 1)), first))
            flat = R.reshape(R.nn.max_pool2d(total, (2, 2), (2, 2)), (2, 800))
            ones, zeros = relax.const(np.ones(800, "float32")), relax.const(np.zeros(800, "float32"))
            normal = R.exp(R.nn.layer_norm(flat, ones, zeros, axes=[-1]))
            out = builder.emit_output(R.nn.softmax(R.matmul(normal, weights(800, 1000, scale=0.02))))
        builder.emit_func_output(out)
    return builder.get()


X = RNG.standard_normal((2, 16, 10, 10)).astype("float32")


def steps(report: Any) -> dict[str, str]:
    """Call → its primitive."""
    return {call.op.removeprefix("relax."): call.primitive for call in report.calls}


@computes_low
def test_products_and_their_followers_compute_in_bfloat16(network: tvm.IRModule) -> None:
    executable = byoc.compile(network, precision="bfloat16")
    runner = byoc.Runner(executable)
    assert {t.dtype for t in (*runner.inputs, *runner.outputs)} == {"float32"}
    got, want = runner(X), byoc.Runner(byoc.compile(network))(X)
    assert 0 < np.abs(got - want).max() < 0.03
    report = byoc.explain(network, precision="bfloat16")
    made = steps(report)
    for op in ("nn.conv2d", "nn.relu", "nn.max_pool2d", "matmul"):
        assert "in bfloat16" in made[op], made
    assert "in bfloat16" not in made["exp"].replace("reorder in bfloat16", "")
    reasons = [miss.reason for call in report.calls for miss in call.near_misses]
    assert "exp computes in float32" in reasons


@computes_low
def test_named_operators_stay_in_float32(network: tvm.IRModule) -> None:
    report = byoc.explain(
        network, precision="bfloat16", options={"dnnl": {"float32_ops": "relax.nn.conv2d, relax.nn.soft*"}}
    )
    made = steps(report)
    assert "in bfloat16" not in made["nn.conv2d"] + made["nn.max_pool2d"]
    assert "matmul in bfloat16" in made["matmul"]
    assert "softmax in bfloat16" not in made["nn.softmax"]
    reasons = [miss.reason for call in report.calls for miss in call.near_misses]
    assert "relax.nn.conv2d is one of float32_ops" in reasons


def layer(hidden: int, batch: int) -> tvm.IRModule:
    """An LSTM of ten steps."""
    x = relax.Var("x", relax.TensorType((10, batch, 64), "float32"))
    entry = operator("", "LSTM")
    assert entry is not None
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            inputs = [x, weights(1, 4 * hidden, 64), weights(1, 4 * hidden, hidden)]
            results = builder.emit(entry.call(inputs, {}, [True] * 3, "rnn"))
            out = builder.emit_output(R.nn.relu(relax.TupleGetItem(results, 0)))
        builder.emit_func_output(out)
    return builder.get()


@computes_low
@pytest.mark.parametrize(
    ("hidden", "batch", "reason"),
    [
        (160, 2, ""),
        (32, 2, "float32 costs less, conversions included"),  # its weights stay in the cache
        (160, 5, "float32 costs less, conversions included"),  # its weights are read for many sequences
    ],
)
def test_large_weights_of_recurrent_layers_are_bfloat16(hidden: int, batch: int, reason: str) -> None:
    network = layer(hidden, batch)
    x = RNG.standard_normal((10, batch, 64)).astype("float32")
    got, want = (byoc.Runner(byoc.compile(network, precision=p))(x) for p in ("bfloat16", "float32"))
    assert (0 < np.abs(got - want).max() < 0.01) if not reason else np.array_equal(got, want)
    calls = byoc.explain(network, precision="bfloat16").calls
    found = {miss.reason for call in calls if call.op == "onnx.LSTM" for miss in call.near_misses}
    assert found == ({reason} if reason else set())


@computes_low
def test_verify_knows_bfloat16(network: tvm.IRModule) -> None:
    report = byoc.verify(network, [X], precision="bfloat16")
    assert report.ok, report.to_text()
    assert report.from_float32 is not None
    assert 0 < report.from_float32 < 0.1


@computes_low
def test_source_computes_in_bfloat16_too(network: tvm.IRModule, tmp_path: Any) -> None:
    same = byoc.Runner(byoc.compile(network, precision="bfloat16"))(X)
    path = tmp_path / "model.so"
    byoc.compile(network, precision="bfloat16", output="source").export_library(str(path))
    np.testing.assert_array_equal(byoc.load(path)(X), same)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_a_dtype_of_16_bits_says_in_which_it_is_computed(dtype: str) -> None:
    x = relax.Var("x", relax.TensorType((4, 64), dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(R.nn.relu(R.matmul(x, R.astype(weights(64, 32), dtype))))
        builder.emit_func_output(out)
    report = byoc.explain(builder.get())
    made = steps(report)
    assert report.totals.offloaded_calls == report.totals.calls
    reasons = {miss.reason for call in report.calls for miss in call.near_misses}
    reason = f"{dtype} is computed in float32: this CPU ({isa()}) has no {dtype}"
    assert (f"in {dtype}" in made["matmul"]) == computes_in(dtype) != (reason in reasons)


def test_auto_is_float32_where_the_cpu_has_no_bfloat16(network: tvm.IRModule) -> None:
    made = steps(byoc.explain(network, precision="auto"))
    assert any("bfloat16" in label for label in made.values()) == computes_in("bfloat16")


def test_unknown_values_are_refused(network: tvm.IRModule) -> None:
    with pytest.raises(InputError, match="precision is 'half'; expected one of 'float32', 'bfloat16', 'auto'"):
        byoc.compile(network, precision="half")


@pytest.mark.parametrize("output", ["module", pytest.param("source", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("delivered", [False, True], ids=["read on", "delivered"])
@pytest.mark.parametrize(("channels", "groups", "outputs"), [(66, 33, 66), (48, 16, 80)])
def test_groups_of_few_channels_are_right_in_bfloat16(
    channels: int, groups: int, outputs: int, delivered: bool, output: str
) -> None:
    x = relax.Var("x", relax.TensorType((2, channels, 17, 19), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            bias = weights(1, outputs, 1, 1)
            y = R.nn.relu(R.nn.conv2d(x, weights(channels, channels, 1, 1)))
            y = R.add(R.nn.conv2d(y, weights(outputs, channels // groups, 3, 3), groups=groups, padding=1), bias)
            y = R.nn.relu(y)
            out = builder.emit_output(y if delivered else R.nn.conv2d(y, weights(8, outputs, 1, 1)))
        builder.emit_func_output(out)
    data = RNG.standard_normal((2, channels, 17, 19)).astype("float32")
    want = byoc.Runner(byoc.compile(builder.get()))(data)
    got = byoc.Runner(byoc.compile(builder.get(), precision="bfloat16", output=output))(data)
    assert np.abs(got - want).max() < 0.03 * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float64", "int32"])  # which oneDNN does not cast to
def test_the_host_rounds_what_it_casts(dtype: str) -> None:
    x = np.array([1.4928641, 2.9999, -0.27223182, 3.3e38, np.inf], "float32")
    x = x[:3] if dtype == "int32" else np.append(x, [-np.float32(np.nan), np.uint32(0xFFFFFFFF).view("float32")])
    builder = relax.BlockBuilder()
    source = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with builder.function("main", [source]):
        builder.emit_func_output(builder.normalize(R.astype(R.astype(source, "bfloat16"), dtype)))
    got = byoc.Runner(byoc.compile(builder.get()))(x)
    np.testing.assert_array_equal(got, x.astype(np.dtype(ml_dtypes.bfloat16)).astype(dtype))
