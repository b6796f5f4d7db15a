"""Products with compressed weights whose sources are rounded to 8 bits: who asks for them, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tvm_byoc_dnnl as byoc
from tests.isa import has_kernels
from tests.unit.test_block_quantised import nbits
from tests.unit.test_compressed_weights import WEIGHTS, expected, inputs, layer, relax_rows
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.prepare.compression import compressed

pytestmark = pytest.mark.native


def rounded(x: np.ndarray, block: int) -> np.ndarray:
    """The definition of `accuracy_level` 4: the scale is float32, and numbers are multiplied by its inverse."""
    rows, k = x.shape
    blocks = np.pad(x, [(0, 0), (0, -k % block)]).reshape(rows, -1, block)
    scale = np.maximum(np.abs(blocks).max(-1, keepdims=True) / np.float32(127), np.finfo("float32").tiny)
    whole = np.rint(blocks * (np.float32(1) / scale))
    return (whole.astype("float64") * scale).reshape(rows, -1)[:, :k]


def leveled(level: int | None, k: int, block: int, bits: int, **options: Any) -> tuple[onnx.ModelProto, Any]:
    model, rest = nbits(k, block, bits, rows="rows", **options)
    if level is not None:
        model.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", level))
    return model, rest


def steps(executable: Any, *arrays: np.ndarray) -> set[str]:
    """The implementations that run, without their instruction set."""
    return {row.implementation.split(":")[0] for row in byoc.profile(executable, arrays, repeat=1).steps}


def assert_product(executable: Any, x: np.ndarray, source: np.ndarray, weights: np.ndarray, bias: Any = 0) -> None:
    """A product is as near to float64 as the sums of its magnitudes in float32 allow."""
    got = np.asarray(byoc.Runner(executable)(x))
    want = source.astype("float64") @ weights + bias
    allowed = 1e-6 * (np.abs(source) @ np.abs(weights) + 1)
    assert (np.abs(got - want) <= allowed).all(), np.abs(got - want).max()


@pytest.mark.parametrize("compiler", ["dnnl", "ccompiler"])
@pytest.mark.parametrize(("bits", "zeros"), [(2, ""), (4, ""), (4, "stored"), (8, ""), (8, "stored")])
@pytest.mark.parametrize(("k", "block"), [(64, 16), (100, 32), (192, 64), (40, 128), (512, 256)])
def test_level_four_rounds_the_source(k: int, block: int, bits: int, zeros: str, compiler: str) -> None:
    model, (weights, bias) = leveled(4, k, block, bits, zeros=zeros, bias=True)
    executable = byoc.compile(model, compiler)
    for rows in (1, 5, 17):
        x = np.random.default_rng(rows).standard_normal((rows, k)).astype("float32")
        x[0, :block] = 0
        assert_product(executable, x, rounded(x, block), weights, bias)


LEVELS = [  # level of the file, argument, options of the model, whether sources are rounded
    *((level, None, {}, False) for level in (None, 0, 1, 2, 3)),
    (4, None, {}, True),
    (4, "float32", {}, False),
    (4, "int8", {}, True),
    (1, "int8", {}, True),
    (None, "int8", {"zeros": "stored"}, True),
    (4, None, {"zeros": "float"}, False),  # weights that are no whole numbers times a scale
    (4, "int8", {"order": True}, False),
]


@pytest.mark.parametrize(("level", "activations", "options", "is_rounded"), LEVELS)
def test_who_asks_for_rounded_sources(
    level: int | None, activations: str | None, options: dict[str, Any], is_rounded: bool
) -> None:
    k, block = 128, 32
    model, (weights, _) = leveled(level, k, block, 4, **options)
    executable = byoc.compile(model, activations=activations)
    x = np.random.default_rng(1).standard_normal((3, k)).astype("float32")
    assert ("compressed_integer" in steps(executable, x)) == is_rounded
    assert_product(executable, x, rounded(x, block) if is_rounded else x, weights)


@pytest.mark.parametrize("level", [1, 4])
@pytest.mark.parametrize(("bits", "zeros"), [(4, ""), (4, "stored"), (8, "stored")])
@pytest.mark.parametrize(("k", "block"), [(128, 32), (100, 32), (512, 128)])
def test_onnx_runtime_computes_the_same(k: int, block: int, bits: int, zeros: str, level: int) -> None:
    """Both round alike; only the order of the sums differs, whose rounding float32 bounds."""
    runtime = pytest.importorskip("onnxruntime")
    model, (weights, _) = leveled(level, k, block, bits, zeros=zeros)
    for rows in (1, 16):
        x = np.random.default_rng(rows).standard_normal((rows, k)).astype("float32")
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (want,) = session.run(None, {"x": x})
        got = np.asarray(byoc.Runner(byoc.compile(model))(x))
        assert (np.abs(got - want) <= 2e-6 * (np.abs(x) @ np.abs(weights) + 1)).all()


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8), ("int4", 4)])
def test_compressed_float_weights_take_rounded_sources(weights: str, bits: int) -> None:
    executable = byoc.compile(layer(relax_rows()), weights=weights, activations="int8")
    small = compressed(WEIGHTS, bits)
    for rows in (1, 3, 7, 40):
        x, residual = inputs(rows)
        got = np.asarray(byoc.Runner(executable)(x, residual))
        source = rounded(x, small.group)
        allowed = 1e-6 * (np.abs(source) @ np.abs(small.values.T) + np.abs(residual) + 4)
        assert (np.abs(got - expected(source, residual, small.values.T)) <= allowed).all()
    assert "compressed_integer" in steps(executable, x, residual)


def test_products_of_one_source_are_all_taken() -> None:
    """As queries, keys and values, or gate and up, have one."""
    model, (weights, _) = leveled(4, 128, 32, 4)
    own = next(w for w in model.graph.initializer if w.name == model.graph.node[0].input[2])
    for i in range(2):
        scales = numpy_helper.from_array(numpy_helper.to_array(own) * np.float32(2 << i), f"scales{i}")
        model.graph.initializer.append(scales)
        model.graph.node.append(model.graph.node[0])
        model.graph.node[-1].input[2] = scales.name
        model.graph.node[-1].output[0] = model.graph.node[-1].name = f"z{i}"
    model.graph.node.append(helper.make_node("Sum", ["y", "z0", "z1"], ["all"]))
    model.graph.output[0].name = "all"
    x = np.random.default_rng(6).standard_normal((5, 128)).astype("float32")
    executable = byoc.compile(model)
    assert_product(executable, x, rounded(x, 32), 7 * weights)
    names = [row.implementation.split(":")[0] for row in byoc.profile(executable, [x], repeat=1).steps]
    assert names.count("compressed_integer") == 3


def test_a_row_does_not_depend_on_the_others_or_on_the_threads() -> None:
    model, _ = leveled(4, 512, 32, 4, zeros="stored")
    x = np.random.default_rng(2).standard_normal((140, 512)).astype("float32")
    one, two = (byoc.compile(model, threads=threads) for threads in (1, 2))
    whole = np.asarray(byoc.Runner(one)(x))
    np.testing.assert_array_equal(byoc.Runner(two)(x), whole)
    if has_kernels():  # without them there is one loop, which sums each row in the same order, too
        for rows in (1, 3, 7, 64):
            np.testing.assert_array_equal(byoc.Runner(one)(x[:rows]), whole[:rows])


@pytest.mark.parametrize("lost", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_lost_and_no_other(lost: float) -> None:
    model, (weights, _) = leveled(4, 128, 32, 4)
    x = np.random.default_rng(3).standard_normal((6, 128)).astype("float32")
    x[2, 40] = lost
    executable = byoc.compile(model)
    got = np.asarray(byoc.Runner(executable)(x))
    assert np.isnan(got[2]).all()
    others = np.arange(6) != 2
    assert_product(executable, x[others], rounded(x[others], 32), weights)
    assert np.isfinite(got[others]).all()


def test_emitted_source_has_the_same_bits() -> None:
    model, _ = nbits(128, 32, 4, zeros="stored")
    model.graph.node[0].attribute.append(helper.make_attribute("accuracy_level", 4))
    x = np.random.default_rng(4).standard_normal((2, 128)).astype("float32")
    plain, source = (byoc.compile(model, output=output) for output in ("module", "source"))
    np.testing.assert_array_equal(byoc.Runner(source)(x), byoc.Runner(plain)(x))


def test_the_cache_tells_the_activations_apart(tmp_path: Any) -> None:
    model, _ = leveled(4, 128, 32, 4)
    x = np.random.default_rng(5).standard_normal((3, 128)).astype("float32")
    found = [
        np.asarray(byoc.Runner(byoc.compile(model, activations=a, cache_dir=tmp_path))(x))
        for a in ("int8", "float32", "int8")
    ]
    assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(found[0], found[2])


def test_verify_states_the_error_of_rounded_sources() -> None:
    report = byoc.verify(layer(), weights="int8", activations="int8")
    assert report.ok
    assert report.from_float32 is not None
    assert 1e-3 < report.from_float32 < 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activations": "int4"}, "activations is 'int4'; expected one of None, 'float32', 'int8'"),
        ({"activations": "int8", "prepare": False}, "activations is 'int8' and prepare is False"),
        ({"activations": "int8", "compiler": "ccompiler"}, "ccompiler has no such option"),
        ({"options": {"dnnl": {"activations": "int3"}}}, "of 'dnnl' is 'int3'; expected one of 'stored', 'float32'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        byoc.compile(layer(), **arguments)


def experts_of(
    bits: int, block: int, level: int | None, normalized: int = 1
) -> tuple[onnx.ModelProto, list[tuple[Any, Any]]]:
    """Three experts, of which each row takes one whole: a layer, ReLU, a layer; and their weights."""
    rng = np.random.default_rng(bits)
    constants, weights = {}, []
    for i, (n, k) in enumerate([(48, 64), (64, 48)], 1):
        shape = (3, n, k // block) if block else (3, n, 1)
        packed = rng.integers(0, 256, (3, n, k * bits // 8)).astype("uint8")
        scales = (rng.uniform(0.5, 1, shape) / (1 << bits)).astype("float32")
        parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        numbers = np.stack(parts, -1).reshape(3, n, k).astype("float64") - (1 << (bits - 1))
        bias = rng.standard_normal((3, n)).astype("float32")
        weights.append((numbers * np.repeat(scales, k // shape[2], -1), bias))
        constants |= {f"w{i}": packed, f"s{i}": scales if block else scales[..., 0], f"b{i}": bias}
    attrs = {"block_size": block or None, "accuracy_level": level, "expert_weight_bits": bits}
    named = {name: value for name, value in attrs.items() if value is not None}
    node = helper.make_node("QMoE", ["x", "r", *constants], ["y"], domain="com.microsoft", k=1, **named)
    node.attribute.append(helper.make_attribute("normalize_routing_weights", normalized))
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["rows", w]) for n, w in zip("xry", (64, 3, 64))]
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "g", values[:2], values[2:], stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), weights


EXPERTS = [  # bits, block, level of the file, argument, whether sources are rounded
    *((4, 16, level, None, False) for level in (None, 0, 1)),
    (4, 16, 4, None, True),
    (4, 16, 4, "float32", False),
    *((8, 16, level, None, True) for level in (None, 1, 4)),
    (8, 16, None, "float32", False),
    (2, 16, 4, None, False),
    *((bits, 0, 4, None, False) for bits in (4, 8)),
]


@pytest.mark.parametrize(("bits", "block", "level", "activations", "is_rounded"), EXPERTS)
def test_experts_have_rounded_sources(
    bits: int, block: int, level: int | None, activations: str | None, is_rounded: bool
) -> None:
    """Of 8 bits in blocks at every level, of 4 bits at level 4, of scales by row never."""
    model, ((up, up_bias), (down, down_bias)) = experts_of(bits, block, level)
    runner = byoc.Runner(byoc.compile(model, activations=activations))
    rng = np.random.default_rng(7)
    x = rng.standard_normal((9, 64)).astype("float32")
    scores = rng.permuted(np.tile(np.arange(3, dtype="float32"), (9, 1)), axis=1)
    source = rounded if is_rounded else lambda a, _: a.astype("float64")
    for row, got in zip(range(9), np.asarray(runner(x, scores)), strict=True):
        expert = scores[row].argmax()
        hidden = up[expert] @ source(x[row : row + 1], block)[0] + up_bias[expert]
        hidden = np.maximum(hidden, 0).astype("float32")
        want = down[expert] @ source(hidden[None], block)[0] + down_bias[expert]
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


def test_shares_of_quantised_experts_are_always_normalized() -> None:
    rng = np.random.default_rng(8)
    x, scores = (rng.standard_normal((5, width)).astype("float32") for width in (64, 3))
    model = experts_of(4, 0, None, normalized=0)[0]
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "r": scores})
    np.testing.assert_allclose(np.asarray(byoc.Runner(byoc.compile(model))(x, scores)), want, rtol=0, atol=2e-2)
