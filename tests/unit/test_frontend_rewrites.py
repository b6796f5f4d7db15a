"""ONNX models that TVM's importer takes only after a rewrite, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.harness import assert_right
from tests.tvm_version import computed_range
from tests.unit.importing import check, node, onnx_model, ops, prepared, rand, run
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import ort_run
from tvm_byoc_dnnl.whole.table import expand

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
    assert check(model) == {f"onnx.com.microsoft.{op}": 1}
    assert ops(expand(to_relax(model)))["nn.layer_norm" if plain else "nn.rms_norm"] == 1


# ---- operators that the standard defines by others --------------------------------------------------


def test_swish() -> None:
    model = onnx_model([node("Swish", ["x"], ["y"])], {"x": (4, 8)}, opset=24)
    assert ops(prepared(to_relax(model))) == {"nn.silu": 1}


def test_celu() -> None:
    check(onnx_model([node("Celu", ["x"], ["y"], alpha=1.5)], {"x": (4, 8)}))


def test_attention_23() -> None:
    attention = node("Attention", ["q", "k", "v"], ["y"], q_num_heads=2, kv_num_heads=2)
    shapes = {"q": (1, 5, 16), "k": (1, 7, 16), "v": (1, 7, 16)}
    model = onnx_model([attention], shapes, opset=23)
    assert check(model) == {"onnx.Attention": 1}
    assert ops(expand(to_relax(model)))["nn.softmax"] == 1


@pytest.mark.parametrize("outputs", [["y", "m"], ["y", "m", "d"], ["y"]], ids=str)
def test_layer_norm_statistics(outputs: list[str]) -> None:
    norm = node("LayerNormalization", ["x", "g"], outputs, axis=1)
    got = check(onnx_model([norm], {"x": (2, 3, 4)}, {"g": rand(3, 4)}, outputs=outputs))
    assert got["nn.layer_norm"] == 1


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
    assert_right(got, want.astype("float16"), 5e-3, least=1.0, elementwise=True)


@pytest.mark.parametrize(
    ("nodes", "constants", "outputs"),
    [
        ([node("Dropout", ["x", "r", "t"], ["y"])], {"r": np.float32(0.5), "t": np.array(True)}, ["y"]),
    ],
    ids=["dropout"],
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
    assert got.get("matmul", 0) + got.get("multiply", 0) == len(shapes) - 1


# ---- ranges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5,), (1,), (0,), (64,)], ids=str)
@pytest.mark.parametrize(
    ("real", "whole", "start", "step"),
    [
        (TensorProto.FLOAT, TensorProto.INT64, 0.0, 1.0),
        pytest.param(TensorProto.DOUBLE, TensorProto.INT32, 2.0, 1.0, marks=computed_range),
        pytest.param(TensorProto.FLOAT, TensorProto.INT64, 3.0, -2.0, marks=computed_range),
        pytest.param(TensorProto.FLOAT, TensorProto.INT64, 0.5, 1.0, marks=computed_range),
        pytest.param(TensorProto.FLOAT, TensorProto.INT64, 0.0, 0.25, marks=computed_range),
    ],
)
def test_a_range_of_reals_between_integers(
    real: int, whole: int, start: float, step: float, sizes: tuple[int, ...]
) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(real)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Squeeze", ["s"], ["size"]),
        node("Cast", ["size"], ["n"], to=whole),
        node("Cast", ["n"], ["limit"], to=real),
        node("Range", ["start", "limit", "step"], ["y"]),
    ]
    numbers = {"start": np.array(start, dtype), "step": np.array(step, dtype)}
    model = onnx_model(nodes, {"x": ("n",)}, numbers, dtypes={"y": real})
    mod = to_relax(model)
    if (start, step) == (0, 1):  # its length is an expression of the open size
        assert not {"ceil", "tensor_to_shape"} & set(ops(mod))
    x = rand(*sizes)
    (got,) = run(prepared(mod), x)
    np.testing.assert_array_equal(got, ort_run(model, {"x": x})[0])
