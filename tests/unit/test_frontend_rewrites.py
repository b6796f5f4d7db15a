"""ONNX models that TVM's importer takes only after a rewrite, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.importing import check, node, onnx_model, ops, prepared, rand, run
from tvm_byoc_dnnl.errors import UnsupportedError
from tvm_byoc_dnnl.frontend import to_relax
from tvm_byoc_dnnl.testing.models import ort_run, random_inputs

MS = "com.microsoft"
IMAGE = {"x": (1, 3, 10, 11)}
W = {"w": rand(4, 3, 3, 3)}


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


# ---- padding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_auto_pad_of_conv(mode: str, stride: int) -> None:
    got = check(onnx_model([node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[stride] * 2)], IMAGE, W))
    assert got == {"nn.conv2d": 1}


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_of_pooling(op: str, mode: str) -> None:
    pool = node(op, ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], auto_pad=mode)
    assert len(check(onnx_model([pool], IMAGE))) == 1


@pytest.mark.parametrize("wanted", [(20, 22), (19, 21), (21, 23)])
def test_output_shape_of_conv_transpose(wanted: tuple[int, int]) -> None:
    conv = node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=list(wanted))
    assert check(onnx_model([conv], IMAGE, {"w": rand(3, 4, 3, 3)})) == {"nn.conv2d_transpose": 1}


def test_pool_indices_that_nobody_reads() -> None:
    check(onnx_model([node("MaxPool", ["x"], ["y", "indices"], kernel_shape=[2, 2])], IMAGE))


def test_pool_indices_that_are_read() -> None:
    model = onnx_model(
        [node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])], IMAGE, outputs=["y", "i"], dtypes={"i": 7}
    )
    with pytest.raises(UnsupportedError, match="MaxPool"):
        to_relax(model)


# ---- resize -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str) -> None:
    scales = {"s": np.array([1, 1, 2, 2], "float32")}
    assert check(onnx_model([node("Upsample", ["x", "s"], ["y"], mode=mode)], IMAGE, scales, opset=9)) == {
        "image.resize2d": 1
    }


def test_upsample_by_attribute() -> None:
    check(onnx_model([node("Upsample", ["x"], ["y"], mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])], IMAGE, opset=7))


def test_resize_10() -> None:
    scales = {"s": np.array([1, 1, 2, 2], "float32")}
    check(onnx_model([node("Resize", ["x", "s"], ["y"], mode="nearest")], IMAGE, scales, opset=10))


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_resize_with_empty_inputs(opset: int, by: str) -> None:
    none = np.zeros(0, "float32")
    scales = np.array([1, 1, 2, 2], "float32") if by == "scales" else none
    inputs = ["x", "roi", "scales"] + (["sizes"] if by == "sizes" else [])
    resize = node("Resize", inputs, ["y"], mode="linear", coordinate_transformation_mode="half_pixel")
    constants = {"roi": none, "scales": scales, "sizes": ints(1, 3, 20, 22)}
    check(onnx_model([resize], IMAGE, constants, opset=opset))


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_by_axes(policy: str) -> None:
    resize = node("Resize", ["x", "", "", "s"], ["y"], axes=[3, 2], keep_aspect_ratio_policy=policy)
    check(onnx_model([resize], IMAGE, {"s": ints(33, 20)}, opset=18))


def test_resize_antialias_of_an_open_shape_is_refused() -> None:
    resize = node("Resize", ["x", "", "s"], ["y"], antialias=1, mode="linear")
    with pytest.raises(UnsupportedError, match="antialias"):
        to_relax(onnx_model([resize], {"x": (1, 3, "h", "w")}, {"s": np.array([1, 1, 0.5, 0.5], "float32")}, opset=18))


# ---- quantised --------------------------------------------------------------------------------------


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


# ---- fused operators --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "params"), [("Relu", []), ("LeakyRelu", [0.1]), ("Clip", [-1.0, 1.0]), ("HardSigmoid", [0.2, 0.5])]
)
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation: str, params: list[float], added: bool) -> None:
    attrs = {"activation": activation, **({"activation_params": params} if params else {})}
    names = ["x", "w", "b"] + (["z"] if added else [])
    conv = node("FusedConv", names, ["y"], domain=MS, **attrs)
    inputs = {**IMAGE, "z": (1, 4, 8, 9)} if added else IMAGE
    check(onnx_model([conv], inputs, {**W, "b": rand(4)}))


@pytest.mark.parametrize("transposed", [False, True])
def test_fused_matmul(transposed: bool) -> None:
    w = rand(2, 5, 8) if transposed else rand(2, 8, 5)
    mul = node("FusedMatMul", ["x", "w"], ["y"], domain=MS, alpha=0.25, transB=int(transposed))
    assert check(onnx_model([mul], {"x": (2, 4, 8)}, {"w": w})) == {"matmul": 1, "multiply": 1}


def test_quick_gelu() -> None:
    check(onnx_model([node("QuickGelu", ["x"], ["y"], domain=MS, alpha=1.702)], {"x": (4, 8)}))


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sum_read", [False, True])
def test_skip_norms(op: str, bias: bool, sum_read: bool) -> None:
    plain = "Simplified" not in op
    names = ["x", "s", "g", *(["be"] if plain else []), *(["bi"] if bias else [])]
    outputs = ["y", "", "", "t"] if sum_read else ["y"]
    skip = node(op, names, outputs, domain=MS, epsilon=1e-5)
    model = onnx_model(
        [skip],
        {"x": (2, 4, 8), "s": (2, 4, 8)},
        {"g": rand(8), "be": rand(8, seed=2), "bi": rand(8, seed=3)},
        outputs=[o for o in outputs if o],
    )
    got = check(model)
    assert got["nn.layer_norm" if plain else "nn.rms_norm"] == 1


# ---- operators that the standard defines by others --------------------------------------------------


def test_swish() -> None:
    model = onnx_model([node("Swish", ["x"], ["y"])], {"x": (4, 8)}, opset=24)
    assert ops(prepared(to_relax(model))) == {"nn.silu": 1}


def test_celu() -> None:
    check(onnx_model([node("Celu", ["x"], ["y"], alpha=1.5)], {"x": (4, 8)}))


def test_attention_23() -> None:
    attention = node("Attention", ["q", "k", "v"], ["y"], q_num_heads=2, kv_num_heads=2)
    shapes = {"q": (1, 5, 16), "k": (1, 7, 16), "v": (1, 7, 16)}
    assert check(onnx_model([attention], shapes, opset=23))["nn.softmax"] == 1


@pytest.mark.parametrize("outputs", [["y", "m"], ["y", "m", "d"], ["y"]], ids=str)
def test_layer_norm_statistics(outputs: list[str]) -> None:
    norm = node("LayerNormalization", ["x", "g"], outputs, axis=1)
    got = check(onnx_model([norm], {"x": (2, 3, 4)}, {"g": rand(3, 4)}, outputs=outputs))
    assert ("nn.layer_norm" in got) == (len(outputs) == 1)


# ---- what the importer would get wrong ---------------------------------------------------------------


@pytest.mark.parametrize("detect", [{"detect_negative": 0}, {"detect_positive": 0}, {}], ids=str)
def test_is_inf(detect: dict[str, int]) -> None:
    model = onnx_model([node("IsInf", ["x"], ["y"], **detect)], {"x": (4,)}, dtypes={"y": TensorProto.BOOL})
    x = np.array([np.inf, -np.inf, 1, np.nan], "float32")
    np.testing.assert_array_equal(run(prepared(to_relax(model)), x)[0], ort_run(model, {"x": x})[0])


@pytest.mark.parametrize(
    ("base", "exponent"), [("float32", "int64"), ("float32", "int32"), ("int32", "float32"), ("float32", "float32")]
)
def test_power_of_another_type(base: str, exponent: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(base))
    power = node("Pow", ["x", "e"], ["y"])
    model = onnx_model([power], {"x": (4,)}, {"e": np.array([2], exponent)}, dtypes={"x": kind, "y": kind})
    check(model, inputs={"x": np.arange(1, 5).astype(base)})


@pytest.mark.parametrize("op", ["Elu", "Selu"])
def test_half_precision(op: str) -> None:
    model = onnx_model([node(op, ["x"], ["y"])], {"x": (4, 8)}, dtypes={"x": 10, "y": 10})
    want = ort_run(onnx_model([node(op, ["x"], ["y"])], {"x": (4, 8)}), {"x": rand(4, 8)})[0]
    got = run(prepared(to_relax(model)), rand(4, 8).astype("float16"))[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize(
    ("nodes", "constants", "outputs"),
    [
        ([node("Dropout", ["x", "r", "t"], ["y"])], {"r": np.float32(0.5), "t": np.array(True)}, ["y"]),
        (
            [node("BatchNormalization", ["x", *"gbmv"], ["y", "rm", "rv"], training_mode=1)],
            {k: np.ones(3, "float32") for k in "gbmv"},
            ["y", "rm"],
        ),
        (
            [node("RoiAlign", ["x", "r", "b"], ["y"], mode="max")],
            {"r": np.ones((1, 4), "float32"), "b": ints(0)},
            ["y"],
        ),
    ],
    ids=["dropout", "batch norm", "roi align"],
)
def test_refused(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], outputs: list[str]) -> None:
    with pytest.raises(UnsupportedError, match=nodes[0].op_type):
        to_relax(onnx_model(nodes, IMAGE, constants, outputs=outputs))


# ---- einsum -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(4, 5), (5, 6)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bhij,bhjd->bihd", [(2, 3, 4, 6), (2, 3, 6, 5)]),
        ("abc,cde->abde", [(2, 3, 4), (4, 5, 6)]),
        ("i,j->ij", [(4,), (5,)]),
        ("bij,bij->b", [(2, 3, 4), (2, 3, 4)]),
        ("abc->cab", [(2, 3, 4)]),
        ("i,i->", [(4,), (4,)]),
        (",->", [(), ()]),
        ("ab->ab", [(2, 3)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    names = [f"x{i}" for i in range(len(shapes))]
    model = onnx_model([node("Einsum", names, ["y"], equation=equation)], dict(zip(names, shapes, strict=True)))
    got = check(model)
    assert "call_tir" not in got
    assert got.get("matmul", 0) == len(shapes) - 1


@pytest.mark.parametrize("equation", ["ij,jk->k", "ii->i"])
def test_einsum_that_is_no_matmul(equation: str) -> None:
    names = ["x0", "x1"][: equation.count(",") + 1]
    model = onnx_model([node("Einsum", names, ["y"], equation=equation)], dict.fromkeys(names, (4, 4)))
    assert check(model) == {"call_tir": 1}


# ---- constants and shapes ---------------------------------------------------------------------------


def test_reshape_to_a_computed_shape() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "zero1"], ["n1"]),
        node("Concat", ["n1", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    constants = {"zero": ints(0).reshape(()), "zero1": ints(0), "rest": ints(-1)}
    assert check(onnx_model(nodes, {"x": (2, 3, 4)}, constants)) == {"reshape": 1}


def _sliced(source: str, result: str, start: int, stop: int) -> onnx.NodeProto:
    return node("Slice", [source, f"i{start}", f"i{stop}"], [result])


@pytest.mark.parametrize(
    ("dims", "shape"),
    [(("?", 200, 2, 3), (2, 200, 2, 3)), (("n", "c", "h", "w"), (2, 3, 4, 5))],
    ids=["batch", "all"],
)
def test_reshape_that_keeps_open_dims(dims: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """As Paddle writes ``flatten``: the shape as int32, cut, cast and put together again."""
    nodes = [
        node("Shape", ["x"], ["s64"]),
        node("Cast", ["s64"], ["s"], to=TensorProto.INT32),
        _sliced("s", "n", 0, 2),
        node("Cast", ["n"], ["n64"], to=TensorProto.INT64),
        node("Concat", ["n64", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": dims}, {"i0": ints(0), "i2": ints(2), "rest": ints(-1)}, opset=11)
    assert check(model, inputs={"x": rand(*shape)}) == {"reshape": 1}


def test_reshapes_of_attention_with_open_batch_and_length() -> None:
    """As exporters write heads: batch and length of the input, split in front of, and joined behind a transposition."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        *(node("Gather", ["s", f"g{axis}"], [f"d{axis}"], axis=0) for axis in (0, 1)),
        *(node("Unsqueeze", [f"d{axis}", "i0"], [f"u{axis}"]) for axis in (0, 1)),
        node("Concat", ["u0", "u1", "heads"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["a"]),
        node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        node("Transpose", ["t"], ["b"], perm=[0, 2, 1, 3]),
        node("Shape", ["b"], ["sb"]),
        node("Gather", ["sb", "g0"], ["e0"], axis=0),
        node("Gather", ["sb", "minus2"], ["e2"], axis=0),
        node("Gather", ["sb", "minus1"], ["e3"], axis=0),
        node("Mul", ["e2", "e3"], ["width"]),
        *(node("Unsqueeze", [name, "i0"], [f"{name}u"]) for name in ("e0", "width")),
        node("Concat", ["e0u", "rest", "widthu"], ["joined"], axis=0),
        node("Reshape", ["b", "joined"], ["y"]),
    ]
    scalars = {"g0": 0, "g1": 1, "minus1": -1, "minus2": -2}
    constants = {k: ints(v).reshape(()) for k, v in scalars.items()}
    constants |= {"i0": ints(0), "heads": ints(4, 8), "rest": ints(-1)}
    got = check(onnx_model(nodes, {"x": ("batch", "length", 32)}, constants), inputs={"x": rand(2, 5, 32)})
    assert got["reshape"] == 2


def test_reshape_to_several_open_dims_is_not_guessed() -> None:
    """The dims change places: neither can be left to the other."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "back"], ["to"]), node("Reshape", ["x", "to"], ["y"])]
    model = onnx_model(nodes, {"x": ("n", "m")}, {"back": ints(1, 0)})
    with pytest.raises(UnsupportedError, match="Reshape"):
        to_relax(model)


def test_shapes_close_what_the_model_leaves_open() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["w", "s"], ["r"]), node("Add", ["x", "r"], ["y"])]
    model = onnx_model(nodes, {"x": ("n", "m")}, {"w": rand(12)})
    assert check(model, shapes={"x": (3, 4)}) == {"add": 1}


def test_weights_made_by_constant_of_shape() -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.02])
    nodes = [node("ConstantOfShape", ["s"], ["w"], value=value), node("Conv", ["x", "w"], ["y"])]
    assert check(onnx_model(nodes, IMAGE, {"s": ints(64, 3, 10, 11)})) == {"nn.conv2d": 1}


def test_nodes_in_any_order() -> None:
    nodes = [node("Relu", ["a"], ["y"]), node("Conv", ["x", "w"], ["a"]), node("Relu", ["b"], ["unused"])]
    nodes.append(node("Neg", ["x"], ["b"]))
    assert check(onnx_model(nodes, IMAGE, W)) == {"nn.conv2d": 1, "nn.relu": 1}  # ONNX Runtime sorts by itself


def test_initialisers_that_are_inputs_too() -> None:
    model = onnx_model([node("Conv", ["x", "w"], ["y"])], {**IMAGE, "w": (4, 3, 3, 3)}, W)
    mod = to_relax(model)
    assert len(mod["main"].params) == 1
    assert list(mod["main"].attrs["input_names"]) == ["x"]


def test_pads_that_are_computed() -> None:
    nodes = [node("Concat", ["a", "b"], ["p"], axis=0), node("Pad", ["x", "p"], ["y"])]
    constants = {"a": ints(0, 0, 1, 2), "b": ints(0, 0, 0, 1)}
    assert check(onnx_model(nodes, IMAGE, constants)) == {"nn.pad": 1}


def test_a_large_result_is_not_folded() -> None:
    nodes = [node("Expand", ["c", "s"], ["e"]), node("Add", ["x", "e"], ["y"])]
    model = onnx_model(nodes, {"x": (200, 300)}, {"c": rand(1, 300), "s": ints(200, 300)})
    assert check(model) == {"add": 1}


def test_random_operators_are_not_folded() -> None:
    with pytest.raises(UnsupportedError, match="RandomNormalLike"):
        to_relax(onnx_model([node("RandomNormalLike", ["c"], ["y"])], {"x": (2,)}, {"c": rand(3)}))


def test_constants_of_every_spelling_in_subgraphs() -> None:
    def branch(name: str, **value: object) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [3])
        nodes = [node("Constant", [], [f"{name}_c"], **value), node("Add", ["x", f"{name}_c"], [f"{name}_y"])]
        return helper.make_graph(nodes, name, [], [out])

    one = node(
        "If", ["c"], ["y"], then_branch=branch("a", value_float=2.0), else_branch=branch("b", value_floats=[1.0])
    )
    model = onnx_model([one], {"c": (), "x": (3,)}, dtypes={"c": TensorProto.BOOL})
    for flag in (True, False):
        check(model, inputs={"c": np.array(flag), "x": rand(3)})


def test_subgraphs_keep_what_they_capture() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])
        return helper.make_graph([node(op, ["doubled"], [f"{name}_y"])], name, [], [out])

    nodes = [
        node("Add", ["x", "x"], ["doubled"]),
        node("If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg")),
    ]
    model = onnx_model(nodes, {"c": (), "x": (4,)}, dtypes={"c": TensorProto.BOOL})
    for flag in (True, False):
        check(model, inputs={"c": np.array(flag), "x": rand(4)})


@pytest.mark.parametrize("axes", [None, [2, 0]])
def test_slice_by_attributes(axes: list[int] | None) -> None:
    attrs = {} if axes is None else {"axes": axes}
    cut = node("Slice", ["x"], ["y"], starts=[1, 0], ends=[-1, 2], **attrs)
    assert check(onnx_model([cut], {"x": (3, 4, 5)}, opset=9)) == {"strided_slice": 1}


def test_top_k_10() -> None:
    model = onnx_model([node("TopK", ["x", "k"], ["y", "i"], axis=1)], {"x": (3, 8)}, {"k": ints(3)}, opset=10)
    assert check(model) == {"topk": 1}


@pytest.mark.parametrize("size", [1, 3])
def test_prelu_of_old_opsets(size: int) -> None:
    model = onnx_model([node("PRelu", ["x", "s"], ["y"])], {"x": (2, 3, 4)}, {"s": rand(size)}, opset=6)
    x = random_inputs(model)["x"]
    want = np.where(x < 0, x * rand(size).reshape(1, size, 1), x)
    np.testing.assert_allclose(run(prepared(to_relax(model)), x)[0], want, rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 1), (1, 3, 1), (4,), (1,)], ids=str)
def test_prelu(shape: tuple[int, ...]) -> None:
    assert check(onnx_model([node("PRelu", ["x", "s"], ["y"])], {"x": (2, 3, 4)}, {"s": rand(*shape)})) == {
        "nn.prelu": 1
    }


@pytest.mark.parametrize("slope", [(), (1,), (2, 1, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint64"])
def test_prelu_of_any_form(slope: tuple[int, ...], dtype: str) -> None:
    shape = (2, 3, 4) if len(slope) != 0 else ()
    x, s = (
        np.array(np.round(rand(*d, seed=k) * 4) % 7 - 3 * (dtype[0] != "u"), dtype)
        for k, d in enumerate([shape, slope])
    )
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = onnx_model([node("PRelu", ["x", "s"], ["y"])], {"x": shape}, {"s": s}, dtypes={"x": kind, "y": kind})
    got = run(prepared(to_relax(model)), x)[0]
    assert got.shape == shape
    np.testing.assert_array_equal(got, np.where(x < 0, x * s, x))


def test_old_opset_is_modernised() -> None:
    add = node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    model = onnx_model([add], {"x": (2, 3, 4)}, {"b": rand(3)}, opset=6)
    want = random_inputs(model)["x"] + rand(3).reshape(1, 3, 1)
    np.testing.assert_allclose(run(prepared(to_relax(model)), random_inputs(model)["x"])[0], want, rtol=1e-6)
