"""Blocks that share a scale, whether or not they divide the axis: MatMulNBits, QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError

N = 8


def nbits(
    k: int, block: int, bits: int, zeros: str = "", order: bool = False, bias: bool = False, rows: Any = 2
) -> tuple[Any, Any]:
    """A model with one MatMulNBits, and the weights [K, N] that the definition gives it."""
    rng, count, blocks = np.random.default_rng(k + block + bits), 1 << bits, -(-k // block)
    numbers = rng.integers(0, count, (N, blocks, block), dtype="uint8")
    scales = rng.uniform(0.01, 0.1, (N, blocks)).astype("float32")
    centre = rng.integers(0, count, (N, blocks)) if zeros else np.full((N, blocks), count // 2)
    centre = centre + 0.25 if zeros == "float" else centre

    def packed(a: np.ndarray) -> np.ndarray:
        per = 8 // bits
        whole = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -a.shape[-1] % per)]).astype("uint8")
        parts = [whole[..., i::per] << bits * i for i in range(per)]
        return np.bitwise_or.reduce(parts)

    constants = {"w": packed(numbers), "s": scales.reshape(-1)}
    names = ["x", "w", "s", "", "", ""]
    places = np.arange(k) // block
    if zeros:
        constants["z"] = centre.astype("float32") if zeros == "float" else packed(centre).reshape(-1)
        names[3] = "z"
    if order:
        places = rng.permutation(places)
        constants["g"] = places.astype("int32")
        names[4] = "g"
    if bias:
        constants["b"] = rng.standard_normal(N).astype("float32")
        names[5] = "b"
    attrs = {"K": k, "N": N, "bits": bits, "block_size": block}
    product = node("MatMulNBits", names, ["y"], domain="com.microsoft", **attrs)
    flat = numbers.reshape(N, -1)[:, :k].astype("float64")
    weights = (flat - centre[:, places]) * scales[:, places]
    return onnx_model([product], {"x": (rows, k)}, constants), (weights.T, constants.get("b", 0))


@pytest.mark.native
@pytest.mark.parametrize(
    ("bits", "zeros"), [(2, "stored"), (4, ""), (4, "stored"), (4, "float"), (8, ""), (8, "stored")]
)
@pytest.mark.parametrize(
    ("k", "block"),
    [(192, 128), (312, 128), (576, 128), (48, 32), (40, 16), (40, 64), (33, 16), (100, 32), (128, 32), (17, 256)],
)
def test_a_product_with_blocks(k: int, block: int, bits: int, zeros: str) -> None:
    model, (weights, _) = nbits(k, block, bits, zeros=zeros)
    x = np.random.default_rng(k).standard_normal((2, k)).astype("float32")
    assert_right(byoc.Runner(byoc.compile(model))(x), (x.astype("float64") @ weights).astype("float32"))


@pytest.mark.native
@pytest.mark.parametrize("zeros", ["", "stored"])
@pytest.mark.parametrize("rows", [7, "rows"])
@pytest.mark.parametrize("options", [{"bias": True}, {"order": True}, {"bias": True, "order": True}])
@pytest.mark.parametrize(("k", "block"), [(40, 16), (312, 128), (64, 32)])
def test_a_product_with_an_order_of_blocks_and_a_bias(
    k: int, block: int, options: dict[str, Any], rows: Any, zeros: str
) -> None:
    model, (weights, bias) = nbits(k, block, 4, zeros=zeros, rows=rows, **options)
    run = byoc.Runner(byoc.compile(model))
    for count in (1, 7) if rows == "rows" else (rows,):
        x = np.random.default_rng(count).standard_normal((count, k)).astype("float32")
        assert_right(run(x), (x.astype("float64") @ weights + bias).astype("float32"))


@pytest.mark.native
@pytest.mark.parametrize(
    ("k", "block", "order", "is_small"),
    [(192, 128, False, True), (40, 16, False, True), (100, 32, False, True), (96, 12, False, False),
     (8704, 512, True, True), (8224, 32, True, True), (8704, 4, True, False)],
)  # fmt: skip
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_blocks_of_a_multiple_of_eight_stay_small(
    k: int, block: int, order: bool, is_small: bool, bits: int
) -> None:
    """Also where the blocks do not divide the axis: the last one is filled; and where those of a block lie apart."""
    model, (weights, _) = nbits(k, block, bits, zeros="stored", order=order)
    executable = byoc.compile(model)
    implementations = [row.implementation for row in byoc.profile(executable, repeat=1).steps]
    assert any("compressed" in name for name in implementations) == is_small, implementations
    x = np.random.default_rng(k).standard_normal((2, k)).astype("float32")
    assert_right(byoc.Runner(executable)(x), (x.astype("float64") @ weights).astype("float32"))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"bits": 3}, UnsupportedError, "MatMulNBits .* has 3 bits; expected 2, 4 or 8"),
        ({"weight_prepacked": 1}, UnsupportedError, "packed for one device"),
        ({"block_size": 64}, InputError, r"scales of shape \[16\]; expected \[8, 1\]"),
        ({"block_size": 0}, InputError, "block_size 0; expected blocks of whole bytes"),
        ({"N": 4}, InputError, "weights of shape"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: dict[str, int], error: type[Exception], message: str) -> None:
    model, _ = nbits(48, 32, 4)
    for attribute in list(model.graph.node[0].attribute):
        if attribute.name in change:
            model.graph.node[0].attribute.remove(attribute)
    model.graph.node[0].attribute.extend(node("X", [], [], **change).attribute)
    with pytest.raises(error, match=message):
        byoc.compile(model)


def test_weights_that_are_no_constants_are_named() -> None:
    attrs = {"K": 32, "N": N, "bits": 8, "block_size": 32}
    product = node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attrs)
    model = onnx_model(
        [product], {"x": (2, 32), "w": (N, 1, 32)}, {"s": np.ones(N, "float32")}, dtypes={"w": TensorProto.UINT8}
    )
    with pytest.raises(UnsupportedError, match=r"MatMulNBits.* needs its weights, input 1, when it is compiled"):
        byoc.compile(model)


# ---------------------------------------------------------------- QuantizeLinear and DequantizeLinear
SHAPES = [
    ((192, 8), 0, 128),
    ((8, 48), 1, 32),
    ((8, 40), -1, 16),
    ((2, 33, 3), 1, 8),
    ((2, 3, 5, 10), -1, 4),
    ((21,), 0, 4),
]
FORMS = [("QuantizeLinear", True), ("DequantizeLinear", True), ("DequantizeLinear", False)]


def blocked(op: str, shape: tuple[int, ...], axis: int, block: int, dtype: str, zeros: bool, constant: bool) -> Any:
    """A model with one conversion in blocks, and its feeds."""
    rng, limits = np.random.default_rng(sum(shape)), np.iinfo(dtype)
    of_blocks = tuple(-(-d // block) if i == axis % len(shape) else d for i, d in enumerate(shape))
    scales = {"s": rng.uniform(0.01, 0.1, of_blocks).astype("float32")}
    if zeros or op == "QuantizeLinear":
        scales["z"] = rng.integers(limits.min // 2, limits.max // 2 + 1, of_blocks).astype(dtype)
    if op == "QuantizeLinear":
        x = (rng.standard_normal(shape) * 0.06 * limits.max).astype("float32")  # a part of it is clamped
    else:
        x = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    feeds = {"x": x} if constant else {"x": x, **scales}
    nodes = [node(op, ["x", *scales], ["y"], axis=axis, block_size=block)]
    kinds = {"float32": TensorProto.FLOAT, dtype: TensorProto.DataType.Value(dtype.upper())}
    dtypes = {name: kinds[str(value.dtype)] for name, value in {**feeds, **scales}.items()}
    dtypes["y"] = kinds["float32" if op == "DequantizeLinear" else dtype]
    shapes = {name: value.shape for name, value in feeds.items()}
    model = onnx_model(nodes, shapes, scales if constant else {}, dtypes=dtypes, opset=21)
    model.ir_version = 10
    return model, feeds


@pytest.mark.native
@pytest.mark.parametrize(("dtype", "constant"), [("uint8", True), ("int8", False), ("int16", True)])
@pytest.mark.parametrize(("shape", "axis", "block"), SHAPES)
@pytest.mark.parametrize(("op", "zeros"), FORMS)
def test_conversions_in_blocks(
    op: str, zeros: bool, shape: tuple[int, ...], axis: int, block: int, dtype: str, constant: bool
) -> None:
    model, feeds = blocked(op, shape, axis, block, dtype, zeros, constant)
    places = np.arange(shape[axis]) // block
    scales = {**feeds, **{t.name: numpy_helper.to_array(t) for t in model.graph.initializer}}
    scale = np.take(scales["s"], places, axis)
    zero = np.take(scales["z"], places, axis).astype("int64") if "z" in scales else 0
    if op == "DequantizeLinear":
        want = ((feeds["x"].astype("int64") - zero).astype("float32") * scale).astype("float32")
    else:
        limits = np.iinfo(dtype)
        want = np.clip(np.rint(feeds["x"] / scale) + zero, limits.min, limits.max).astype(dtype)
        assert (want == limits.max).any() or (want == limits.min).any()
    got = np.asarray(byoc.Runner(byoc.compile(model))(*feeds.values()))
    np.testing.assert_array_equal(got, want)


@pytest.mark.native
@pytest.mark.parametrize(("shape", "axis", "block"), [((192, 8), 0, 128), ((8, 48), 1, 32), ((8, 100), 1, 32)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
def test_constant_weights_in_blocks(shape: tuple[int, int], axis: int, block: int, dtype: str) -> None:
    """As ONNX's reference computes them."""
    rng, kind = np.random.default_rng(7), TensorProto.DataType.Value(dtype.upper())
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16)}[dtype]
    of_blocks = tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape))
    stored = {"w": rng.integers(low, high, shape), "z": rng.integers(low, high, of_blocks)}
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, block_size=block)]
    nodes.append(node("Gemm", ["x", "d"], ["y"], transB=axis))
    constants = {"s": rng.uniform(0.01, 0.1, of_blocks).astype("float32")}
    model = onnx_model(nodes, {"x": (3, shape[axis])}, constants, opset=21)
    model.ir_version = 10
    tensors = [helper.make_tensor(name, kind, v.shape, v.reshape(-1).tolist()) for name, v in stored.items()]
    model.graph.initializer.extend(tensors)
    x = rng.standard_normal((3, shape[axis])).astype("float32")
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert_right(byoc.Runner(byoc.compile(model))(x), want)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_blocks_that_do_not_fit_are_named(op: str) -> None:
    model, _ = blocked(op, (8, 48), 1, 16, "uint8", True, True)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "block_size":
            attribute.i = 32
    with pytest.raises(
        InputError, match=rf"{op}.*scales of float32 \(8, 3\) for blocks of 32 along axis 1 .*expected 2"
    ):
        byoc.compile(model)


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_blocks_along_an_axis_of_open_size_are_named(op: str) -> None:
    model, _ = blocked(op, (8, 48), 1, 16, "uint8", True, True)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "k"
    with pytest.raises(UnsupportedError, match=rf"{op}.*expected an axis of a known size"):
        byoc.compile(model)
