"""Operands whose types, or whose open sizes, are others than an operator usually has, against ONNX's reference."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right

RNG = np.random.default_rng(0)
SPECIAL = np.array([1.5, -2, np.nan, np.inf, -np.inf, -0.0], "float32")


def _rand(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def _model(op: str, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray], opset: int, attrs: Any) -> Any:
    """A model of one node, whose inputs have open sizes, each with a name of its own."""
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), [f"{k}{i}" for i in range(v.ndim)])
        for k, v in feeds.items()
    ]
    node = helper.make_node(op, [*feeds, *constants], ["y"], name="node", **attrs)
    result = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(
        [node], "g", inputs, result, [numpy_helper.from_array(v, k) for k, v in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _attention(*types: str, heads: int = 4, width: int = 8) -> dict[str, np.ndarray]:
    shapes = ((2, heads, 3, width), (2, 2, 5, width), (2, 2, 5, 6))
    return {n: _rand(*s, dtype=t) for n, s, t in zip("qkv", shapes, types, strict=True)}


_HALF = np.dtype(ml_dtypes.bfloat16)
#: name -> operator, inputs of open sizes, constants, opset, attributes
CASES: dict[str, tuple[str, dict[str, np.ndarray], dict[str, np.ndarray], int, dict[str, Any]]] = {
    "values of another type": ("Attention", _attention("float32", "float32", "float16"), {}, 23, {}),
    "open heads": ("Attention", _attention(*["float32"] * 3), {}, 23, {}),
    "heads without columns": ("Attention", {"q": _rand(1, 2, 3, 0), "k": _rand(1, 2, 4, 0), "v": _rand(1, 2, 4, 5)},
                              {}, 23, {}),
    "a scale of another type": ("RMSNormalization", {"x": _rand(3, 5), "s": _rand(5, dtype="float16")}, {}, 23, {}),
    "a grid of another type": ("GridSample", {"x": _rand(1, 2, 5, 4)}, {"g": _rand(1, 3, 3, 2, dtype="float64") / 3},
                               20, {}),
    "NaN of bfloat16": ("IsNaN", {"x": SPECIAL.astype(_HALF)}, {}, 20, {}),
    "infinities of float8": ("IsInf", {"x": SPECIAL.astype(ml_dtypes.float8_e5m2)}, {}, 20, {"detect_positive": 0}),
    "signs of bfloat16": ("Sign", {"x": SPECIAL.astype(_HALF)}, {}, 13, {}),
    "slopes of bfloat16": ("PRelu", {"x": SPECIAL.astype(_HALF)}, {"s": np.array([0.25], _HALF)}, 16, {}),
    "the largest of no truth values": ("ReduceMax", {"x": np.zeros((3, 0), bool)}, {"axes": np.array([1])}, 20, {}),
    "infinities among exponents": ("ReduceLogSumExp", {"x": np.array([[1, np.inf], [-np.inf, 2]], "float32")},
                                   {"axes": np.array([1])}, 20, {}),
    "a size of 0 that is no copy": ("Reshape", {"x": _rand(0, 3, 4)}, {"shape": np.array([3, 4, 0])}, 25,
                                    {"allowzero": 1}),
    "a NaN beside": ("Resize", {}, {"x": np.array([[[[1, np.nan, 2, 3, 4]]]], "float32"), "r": np.zeros(0, "float32"),
                                    "s": np.array([1, 1, 1, 1.7], "float32")}, 19, {"mode": "linear"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_as_the_reference(name: str) -> None:
    op, feeds, constants, opset, attrs = CASES[name]
    feeds = feeds or {"unused": np.zeros(1, "float32")}
    model = _model(op, feeds if "unused" not in feeds else {}, constants, opset, attrs)
    (want,) = ReferenceEvaluator(model).run(None, {k: v for k, v in feeds.items() if k != "unused"})
    if "unused" in feeds:  # a model has an input
        model.graph.input.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, [1]))
    got = np.asarray(byoc.Runner(byoc.compile(model))(*feeds.values()))
    schema = onnx.defs.get_schema(op, opset)
    types = dict(zip((p.type_str for p in schema.inputs), (feeds | constants).values(), strict=False))
    like = types.get(schema.outputs[0].type_str)
    assert got.dtype == (want.dtype if like is None else like.dtype)  # the reference does not always have it
    tolerance = 2e-3 if any("16" in str(v.dtype) for v in feeds.values()) else 1e-5
    assert_right(got.astype("float64"), want.astype("float64"), tolerance, least=1.0, elementwise=True)


#: name -> operator, inputs, constants, opset, attributes, and what the call says
WRONG: dict[str, tuple[str, dict[str, np.ndarray], dict[str, np.ndarray], int, dict[str, Any], str]] = {
    "one scale for all columns": ("LayerNormalization", {"x": _rand(3, 4), "s": np.ones(1, "float32")},
                                  {"b": _rand(4)}, 17, {}, "do not fit"),
    "more scores than boxes": ("NonMaxSuppression", {"b": _rand(1, 5, 4), "s": _rand(1, 1, 6)},
                               {"most": np.array([3])}, 11, {}, "make them equal"),
    "heads that are no multiple": ("Attention", _attention(*["float32"] * 3, heads=3), {}, 23, {}, "do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_open_sizes_that_do_not_fit_are_refused_in_the_call(name: str) -> None:
    op, feeds, constants, opset, attrs, message = WRONG[name]
    run = byoc.Runner(byoc.compile(_model(op, feeds, constants, opset, attrs)))
    with pytest.raises(byoc.InputError, match=message):
        run(*feeds.values())


def test_antialias_by_scales_of_a_call() -> None:
    how = {"antialias": 1, "mode": "cubic"}
    model = _model("Resize", {"x": _rand(1, 1, 9, 8)}, {"r": np.zeros(0, "float32")}, 19, how)
    model.graph.node[0].input.append("s")
    model.graph.input.append(helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, [4]))
    run, x = byoc.Runner(byoc.compile(model)), _rand(1, 1, 9, 8)
    for scales in ([1, 1, 0.6, 1.3], [1, 1, 1 / 3, 0.25]):
        feeds = {"x": x, "s": np.array(scales, "float32")}
        (want,) = ReferenceEvaluator(model).run(None, feeds)
        np.testing.assert_allclose(np.asarray(run(*feeds.values())), want, rtol=1e-4, atol=1e-5)


def test_lengths_beyond_the_end_read_nothing() -> None:
    x = _rand(3, 2)
    model = _model("ReverseSequence", {"x": x, "n": np.array([2, 9])}, {}, 10, {})
    got = np.asarray(byoc.Runner(byoc.compile(model))(x, np.array([2, 9])))
    np.testing.assert_array_equal(got, np.stack([x[[1, 0, 2], 0], x[::-1, 1]], 1))


def test_pictures_of_integers_are_cut_at_the_end_alone() -> None:
    """As ONNX Runtime does: the standard leaves it open, and the reference rounds."""
    x, scales = RNG.integers(0, 255, (1, 1, 5, 4)).astype("uint8"), np.array([1, 1, 2, 4], "float32")
    model = _model("Resize", {"x": x}, {"r": np.zeros(0, "float32"), "s": scales}, 19, {"mode": "linear"})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None))
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(byoc.Runner(byoc.compile(model))(x)), want)
