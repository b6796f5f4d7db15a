"""Corner cases that ONNX defines and TVM's importer or its kernels do otherwise, compared with ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import node, onnx_model, ops, prepared, rand, run
from tvm_byoc_dnnl.core.errors import ByocError, InputError, UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import ort_run

INF, NAN = np.inf, np.nan


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def same(model: onnx.ModelProto, *arrays: np.ndarray, tolerance: float = 1e-5) -> dict[str, int]:
    """Run with stock TVM after our rewrites, compare with ONNX's reference; returns the operators."""
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(model).run(None, dict(zip((i.name for i in model.graph.input), arrays, strict=True)))
    mod = prepared(to_relax(model))
    for got, expected in zip(run(mod, *arrays), want, strict=True):
        assert_right(got, expected, tolerance, least=1.0, elementwise=True)
    return ops(mod)


def typed(nodes: list[onnx.NodeProto], inputs: dict[str, Any], constants: Any = None, **options: Any) -> Any:
    """A model whose inputs have the dtypes and shapes of arrays."""
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items()}
    kinds["y"] = options.pop("result", next(iter(kinds.values())))
    shapes = {k: v.shape for k, v in inputs.items()}
    return onnx_model(nodes, shapes, constants, dtypes={**kinds, **options.pop("dtypes", {})}, **options)


# ---- dims -------------------------------------------------------------------------------------------


def test_a_dim_of_0_is_no_symbol() -> None:
    mod = to_relax(onnx_model([node("Relu", ["x"], ["y"])], {"x": (2, 0, 3)}))
    assert [int(d) for d in mod["main"].params[0].ty.shape] == [2, 0, 3]


def test_open_dims_without_a_name_differ() -> None:
    model = onnx_model([node("Concat", ["x", "z"], ["y"], axis=0)], {"x": ("a", 4), "z": ("b", 4)})
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].Clear()
    params = to_relax(model)["main"].params
    first, second = (p.ty.shape[0] for p in params)
    assert not first.same_as(second)
    assert {str(first), str(second)} == {"x_dim0", "z_dim0"}


@pytest.mark.parametrize("joined", ["Concat", "sequence"])
def test_sizes_beside_the_axis_of_a_concat_are_not_broadcast(joined: str) -> None:
    """A size of 1 of one part is that of the others, also where an input has the same open size twice."""
    cut = node("Slice", ["x", "zero", "one", "zero"], ["v"])
    both = [cut, node("Concat", ["v", "x"], ["y"], axis=1)]
    if joined == "sequence":
        both = [cut, node("SequenceConstruct", ["v", "x"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=1)]
    model = onnx_model(both, {"x": ("k", "k", 3)}, {"zero": ints(0), "one": ints(1)})
    same(model, rand(1, 1, 3))


@pytest.mark.parametrize("inner", [1, 2])
def test_pictures_of_one_channel_are_rows_of_a_matrix(inner: int) -> None:
    nodes = [node("Conv", ["x", "w"], ["v"]), node("MatMul", ["v", "m"], ["y"])]
    model = onnx_model(nodes, {"x": (2, inner, 3, 5)}, {"w": rand(1, inner, 1, 2), "m": rand(4, 2)})
    x = rand(2, inner, 3, 5)
    assert_right(byoc.Runner(byoc.compile(model))(x), ort_run(model, {"x": x})[0])


def test_a_sequence_as_input_is_refused() -> None:
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(inner))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    at = node("SequenceAt", ["s", "i"], ["y"])
    graph = helper.make_graph([at], "g", [sequence], [out], [onnx.numpy_helper.from_array(np.array(0), "i")])
    with pytest.raises(UnsupportedError, match="`s`, which is a sequence"):
        to_relax(helper.make_model(graph))


# ---- reductions -------------------------------------------------------------------------------------

REDUCTIONS = ["Sum", "SumSquare", "L1", "L2", "LogSum", "LogSumExp", "Prod", "Max", "Mean", "Min"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_of_nothing(kind: str, keepdims: int) -> None:
    x = np.zeros((2, 0, 4), "float32")
    reduce = node(f"Reduce{kind}", ["x", "a"], ["y"], keepdims=keepdims)
    same(typed([reduce], {"x": x}, {"a": ints(1)}, opset=18), x)


@pytest.mark.parametrize("kind", ["Max", "Min"])
@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_extremes_of_no_integers(kind: str, dtype: str) -> None:
    x = np.zeros((0, 3), dtype)
    same(typed([node(f"Reduce{kind}", ["x", "a"], ["y"])], {"x": x}, {"a": ints(0)}, opset=18), x)


@pytest.mark.parametrize("kind", ["Max", "Min"])
@pytest.mark.parametrize("shape", [(3, 4), (2, 0)])
def test_extremes_of_truth_values(kind: str, shape: tuple[int, ...]) -> None:
    x = rand(*shape) > 0.5
    same(typed([node(f"Reduce{kind}", ["x", "a"], ["y"])], {"x": x}, {"a": ints(1)}, opset=20), x)


def test_a_result_without_elements_is_left_alone() -> None:
    x = np.zeros((0, 4), "float32")
    model = typed([node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], {"x": x}, {"a": ints(1)}, opset=18)
    assert ops(to_relax(model)) == {"sum": 1}


def test_the_mean_of_no_integers_is_refused() -> None:
    mean = node("ReduceMean", ["x", "a"], ["y"], name="m")
    with pytest.raises(InputError, match=r"ReduceMean \(node `m`\) has the mean of no integers, of .* \(0, 3\)"):
        to_relax(typed([mean], {"x": np.zeros((0, 3), "int32")}, {"a": ints(0)}, opset=18))


# ---- sizes and limits at their ends -----------------------------------------------------------------

NO_SCALES = np.zeros(0, "float32")
ENDS: list[tuple[onnx.NodeProto, int, dict[str, np.ndarray], np.ndarray]] = [
    *((node("TopK", ["x", "k"], ["y", ""], axis=axis), 11, {"k": ints(0)}, rand(3, 4)) for axis in (0, 1)),
    *(
        (node("AffineGrid", ["x", "s"], ["y"], align_corners=corners), 20, {"s": ints(*size)}, rand(2, *theta))
        for corners in (0, 1)
        for size, theta in (((2, 3, 1, 5), (2, 3)), ((2, 3, 5, 1), (2, 3)), ((2, 1, 2, 1, 3), (3, 4)))
    ),
    *(
        (node("Clip", ["x"], ["y"], **limits), 6, {}, np.array([-INF, -2, 3, INF], "float32"))
        for limits in ({}, {"min": -1.0}, {"max": 1.0}, {"min": -INF})
    ),
    *(
        (
            node("Resize", ["x", "", "f", "s"], ["y"], mode=mode),
            18,
            {"f": NO_SCALES, "s": ints(1, 2, 0, 5)},
            rand(1, 2, 4, 5),
        )
        for mode in ("nearest", "linear")
    ),
]


@pytest.mark.parametrize(("made", "opset", "constants", "x"), ENDS, ids=lambda v: getattr(v, "op_type", None))
def test_sizes_and_limits_at_their_ends(made: onnx.NodeProto, opset: int, constants: Any, x: np.ndarray) -> None:
    model = typed([made], {"x": x}, constants, opset=opset)
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert_right(np.asarray(byoc.Runner(byoc.compile(model))(x)), want, 1e-5, least=1.0, elementwise=True)


# ---- integers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize(("dtype", "by"), [("int32", [3, 32, -1]), ("uint8", [7, 8, 255]), ("int64", [63, 64, 1])])
@pytest.mark.parametrize("constant", [True, False])
def test_shifts_out_of_range(direction: str, dtype: str, by: list[int], constant: bool) -> None:
    x, by_array = np.array([-8 if dtype != "uint8" else 200, 9, 100]).astype(dtype), np.array(by).astype(dtype)
    shift = node("BitShift", ["x", "s"], ["y"], direction=direction)
    model = typed([shift], {"x": x} if constant else {"x": x, "s": by_array}, {"s": by_array} if constant else None)
    bits = x.dtype.itemsize * 8
    inside = (by_array >= 0) & (by_array < bits)
    safe = np.where(inside, by_array, 0).astype(dtype)
    shifted = np.left_shift(x, safe) if direction == "LEFT" else np.right_shift(x, safe)
    emptied = np.where(x < 0, -1, 0) if direction == "RIGHT" else 0
    want = np.where(inside, shifted, emptied).astype(dtype)
    inputs = [x] if constant else [x, by_array]
    np.testing.assert_array_equal(run(prepared(to_relax(model)), *inputs)[0], want)


def test_a_shift_known_to_be_in_range_stays_one_operator() -> None:
    x = np.array([1, 2, 3], "int32")
    shift = node("BitShift", ["x", "s"], ["y"], direction="LEFT")
    assert same(typed([shift], {"x": x}, {"s": np.array([0, 31, 4], "int32")}), x) == {"left_shift": 1}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_floats(dtype: str) -> None:
    x = np.array([5.5, -5.5, 5.5, -5.5, 3, -3, INF, 2, 0, NAN], dtype)
    by = np.array([2, 2, -2, -2, INF, INF, 2, 0, -3, 1], dtype)
    model = typed([node("Mod", ["x", "z"], ["y"])], {"x": x, "z": by}, opset=13)
    with np.errstate(all="ignore"):
        want = np.mod(x, by)
    assert_right(run(prepared(to_relax(model)), x, by)[0], want, 1e-6, elementwise=True)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("constant", [True, False])
def test_powers_of_integers(dtype: str, constant: bool) -> None:
    x, e = np.array([2, 3, 7, 1, 0, 5]).astype(dtype), np.array([5, 4, 2, 60000 % 251, 0, 1]).astype(dtype)
    model = typed(
        [node("Pow", ["x", "e"], ["y"])], {"x": x} if constant else {"x": x, "e": e}, {"e": e} if constant else None
    )
    inputs = [x] if constant else [x, e]
    np.testing.assert_array_equal(run(prepared(to_relax(model)), *inputs)[0], np.power(x, e))


# ---- casts ------------------------------------------------------------------------------------------


def test_a_cast_like_a_known_type_is_a_cast() -> None:
    x, like = np.arange(3, dtype="int32"), rand(2)
    model = typed([node("CastLike", ["x", "l"], ["y"])], {"x": x, "l": like}, opset=19, result=TensorProto.FLOAT)
    assert same(model, x, like) == {"astype": 1}


def test_a_model_of_another_domain_alone_is_refused_by_its_operator() -> None:
    model = onnx_model([node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml")], {"x": (3,)})
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    with pytest.raises(UnsupportedError, match=r"ai\.onnx\.ml\.DictVectorizer"):
        to_relax(model)


# ---- masks ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_rows_that_are_masked_whole(swapped: bool) -> None:
    x = np.array([[-INF, -INF], [-INF, 0], [NAN, -INF], [np.finfo("float32").min] * 2, [INF, -INF]], "float32")
    nodes = [
        node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
        node("Equal", ["lowest", "m"] if swapped else ["m", "lowest"], ["y"]),
    ]
    model = typed(nodes, {"x": x}, {"lowest": np.float32(-INF)}, result=TensorProto.BOOL)
    got = byoc.Runner(byoc.compile(model))(x)
    np.testing.assert_array_equal(got, [True, False, False, False, False])


# ---- operators that move elements -------------------------------------------------------------------


def test_the_mask_of_dropout_is_of_truth_values() -> None:
    x = rand(2, 3)
    model = typed([node("Dropout", ["x"], ["y", "m"])], {"x": x}, outputs=["y", "m"], dtypes={"m": TensorProto.BOOL})
    y, mask = run(prepared(to_relax(model)), x)
    np.testing.assert_array_equal(y, x)
    assert mask.dtype == bool and mask.shape == (2, 3) and mask.all()


@pytest.mark.parametrize("sizes", [(0, 3, 2), (2, 0, 3), (5, 0), (0, 0, 5)], ids=str)
def test_splits_with_empty_parts(sizes: tuple[int, ...]) -> None:
    x, names = rand(5, 2), [f"y{i}" for i in range(len(sizes))]
    model = onnx_model([node("Split", ["x", "s"], names, axis=0)], {"x": (5, 2)}, {"s": ints(*sizes)}, outputs=names)
    got = run(to_relax(model), x)
    for part, want in zip(got, np.split(x, np.cumsum(sizes)[:-1]), strict=True):
        np.testing.assert_array_equal(part, want)


def test_splits_into_full_parts_stay() -> None:
    names = ["y0", "y1"]
    split = node("Split", ["x", "s"], names, axis=0)
    assert "split" in ops(to_relax(onnx_model([split], {"x": (5, 2)}, {"s": ints(2, 3)}, outputs=names)))


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_points_far_outside_read_no_memory_of_others(padding: str) -> None:
    how = {"mode": "cubic", "padding_mode": padding, "align_corners": 1}
    x, grid = np.ones((1, 2, 6, 1), "float32"), rand(1, 7, 1, 2)
    grid[0, 1:, 0, 1] = [1e9, -1e20, 3e38, np.inf, -np.inf, np.nan]
    model = onnx_model([node("GridSample", ["x", "g"], ["y"], **how)], {"x": x.shape, "g": grid.shape}, {}, opset=20)
    got = byoc.Runner(byoc.compile(model))(x, grid)[0, 0, 1:, 0]
    outside = 0.0 if padding == "zeros" else 1.0
    np.testing.assert_allclose(got[:2], outside, atol=1e-6)
    assert ((got == 0) | (got == 1) | np.isnan(got)).all()


def test_boxes_that_overlap_by_just_the_threshold_stay() -> None:
    boxes = np.array([[[0, 0, 1, 2], [0, 0, 1, 1], [0, 0, 1, 1.9]]], "float32")  # overlaps of 0.5 and 0.95
    scores = np.array([[[0.9, 0.8, 0.7]]], "float32")
    suppress = node("NonMaxSuppression", ["b", "s", "n", "t"], ["y"])
    inputs = {"b": boxes, "s": scores}
    constants = {"n": ints(3), "t": np.array([0.5], "float32")}
    model = typed([suppress], inputs, constants, result=TensorProto.INT64)
    np.testing.assert_array_equal(run(to_relax(model), boxes, scores)[0], [[0, 0, 0], [0, 0, 1]])


# ---- sequences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("insert", [None, 0, 1, -1, -2, 2])
@pytest.mark.parametrize("at", [0, 1, -1, 2])
def test_positions_in_sequences(insert: int | None, at: int) -> None:
    values = [np.full(2, i, "float32") for i in range(3)]
    constants = {"at": np.array(at), **({} if insert is None else {"i": np.array(insert)})}
    nodes = [
        node("SequenceConstruct", ["a", "b"], ["s"]),
        node("SequenceInsert", ["s", "c", *(["i"] if insert is not None else [])], ["t"]),
        node("SequenceAt", ["t", "at"], ["y"]),
    ]
    expected = [0, 1]
    expected.insert(2 if insert is None else insert, 2)
    model = typed(nodes, dict(zip("abc", values, strict=True)), constants)
    np.testing.assert_array_equal(run(to_relax(model), *values)[0], values[expected[at]])


@pytest.mark.parametrize("erase", [None, 0, -3, 1])
def test_erasing_from_sequences(erase: int | None) -> None:
    values = [np.full(2, i, "float32") for i in range(3)]
    constants = {"at": np.array(0), **({} if erase is None else {"e": np.array(erase)})}
    nodes = [
        node("SequenceConstruct", ["a", "b", "c"], ["s"]),
        node("SequenceErase", ["s", *(["e"] if erase is not None else [])], ["t"]),
        node("SequenceAt", ["t", "at"], ["y"]),
    ]
    left = [0, 1, 2]
    del left[-1 if erase is None else erase]
    model = typed(nodes, dict(zip("abc", values, strict=True)), constants)
    np.testing.assert_array_equal(run(to_relax(model), *values)[0], values[left[0]])


# ---- norms and products -----------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "axis"), [(1, 0), (2, -1), (2, 1)])
@pytest.mark.parametrize("opset", [13, 22])
def test_lp_normalization(p: int, axis: int, opset: int) -> None:
    x = rand(3, 4)
    x[:, 1] = x[1] = 0
    norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
    want = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    model = typed([node("LpNormalization", ["x"], ["y"], p=p, axis=axis)], {"x": x}, opset=opset)
    assert_right(run(prepared(to_relax(model)), x)[0], want, 1e-5, elementwise=True)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative_product(exclusive: int, reverse: int, axis: int) -> None:
    x = rand(2, 5, 3)
    product = node("CumProd", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    y = np.flip(x, axis) if reverse else x
    if exclusive:
        y = np.concatenate([np.ones_like(y.take([0], axis)), y.take(range(x.shape[axis] - 1), axis)], axis)
    want = np.cumprod(y, axis)
    model = typed([product], {"x": x}, {"a": np.array(axis)}, opset=26)
    assert_right(run(prepared(to_relax(model)), x)[0], np.flip(want, axis) if reverse else want, 1e-5, elementwise=True)


# ---- functions --------------------------------------------------------------------------------------


def test_attention_with_a_cache_and_no_mask() -> None:
    attention = node("Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "nk", "nv"], is_causal=1)
    arrays = [rand(1, 2, 3, 8, seed=i) for i in range(3)] + [rand(1, 2, 2, 8, seed=i) for i in (3, 4)]
    shapes = {name: a.shape for name, a in zip(("q", "k", "v", "pk", "pv"), arrays, strict=True)}
    same(onnx_model([attention], shapes, opset=24, outputs=["y", "nk", "nv"]), *arrays)


# ---- resize -----------------------------------------------------------------------------------------

MODES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transform", MODES)
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("nearest", {}),
        ("linear", {}),
        ("linear", {"antialias": 1}),
        ("cubic", {}),
        ("cubic", {"antialias": 1}),
        ("cubic", {"exclude_outside": 1}),
    ],
    ids=str,
)
def test_resize_by_a_scale_that_does_not_fit(transform: str, mode: str, options: dict[str, int]) -> None:
    x = rand(1, 2, 7, 9)
    resize = node("Resize", ["x", "", "s"], ["y"], mode=mode, coordinate_transformation_mode=transform, **options)
    scales = np.array([1, 1, 0.6, 0.4 if "antialias" in options else 1.7], "float32")
    same(typed([resize], {"x": x}, {"s": scales}, opset=19), x, tolerance=1e-4)


@pytest.mark.parametrize("axes", [[0, 3], [2], [1, 2]], ids=str)
def test_resize_of_any_axes(axes: list[int]) -> None:
    x = rand(2, 3, 5, 4)
    resize = node("Resize", ["x", "", "s"], ["y"], mode="linear", axes=axes)
    same(typed([resize], {"x": x}, {"s": np.full(len(axes), 1.3, "float32")}, opset=19), x)


def test_resize_that_tvm_does_right_is_left_to_it() -> None:
    resize = node("Resize", ["x", "", "s"], ["y"], mode="linear")
    scales = {"s": np.array([1, 1, 2, 2], "float32")}
    assert ops(to_relax(typed([resize], {"x": rand(1, 2, 3, 4)}, scales))) == {"image.resize2d": 1}


@pytest.mark.parametrize(("size", "scale"), [(3, 5 / 3), (6, 4 / 3), (480, 4 / 3), (7, 1 / 7)])
def test_scales_that_fit_but_for_their_rounding(size: int, scale: float) -> None:
    resize = node("Resize", ["x", "", "s"], ["y"], mode="linear")
    constants = {"s": np.array([1, 1, scale, 1], "float32")}
    mod = to_relax(typed([resize], {"x": rand(1, 1, size, 3)}, constants))
    assert ops(mod) == {"image.resize2d": 1}
    assert [int(d) for d in mod["main"].ret_ty.shape] == [1, 1, round(size * scale), 3]


# ---- what nobody reads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "left"),
    [
        ("Gelu", ["x"], {"curve": 2}, "has curve=2"),
        ("FastGelu", ["x"], {"mode": "exact"}, "has mode=exact"),
        ("BiasGelu", ["x", "x", "x"], {}, "has 3 inputs; expected 2"),
    ],
)
def test_what_a_converter_does_not_read_is_refused(
    op: str, inputs: list[str], attrs: dict[str, Any], left: str
) -> None:
    fused = helper.make_node(op, inputs, ["y"], domain="com.microsoft", **attrs)
    with pytest.raises(ByocError, match=rf"com.microsoft.{op} \(node `y`\) {left}"):
        to_relax(onnx_model([fused], {"x": (4,)}))


def test_an_attribute_at_its_default_need_not_be_read() -> None:
    drop = node("Dropout", ["x"], ["y"], seed=3)
    pool = node("MaxPool", ["y"], ["z"], kernel_shape=[2, 2], storage_order=0)
    assert ops(to_relax(onnx_model([drop, pool], {"x": (1, 1, 4, 4)}, outputs=["z"])))["nn.max_pool2d"] == 1


def test_names_of_nodes_mean_nothing() -> None:
    """Rules know the nodes that they have made themselves by other means."""
    x = np.array([NAN, -2, 0], "float32")
    for name in ("sign_moved", "y_of_numbers", "y_next_threshold", "y_in_range", "y_found"):
        model = typed([node("Sign", ["x"], ["y"], name=name)], {"x": x})
        np.testing.assert_array_equal(run(to_relax(model), x)[0], [NAN, -1, 0])


def test_constants_in_a_sequence_stay_apart() -> None:
    sequence = [node("SequenceConstruct", ["a", "b"], ["s"]), node("SequenceAt", ["s", "i"], ["t"])]
    constants = {"a": ints(1, 2), "b": ints(3, 4), "i": np.array(1)}
    model = onnx_model(
        [*sequence, node("Add", ["t", "x"], ["y"])], {"x": (2,)}, constants, dtypes=dict.fromkeys("xy", 7)
    )
    np.testing.assert_array_equal(run(to_relax(model), ints(10, 20))[0], [13, 24])


_BLOCKS = {"axis": 1, "block_size": 2, "output_dtype": TensorProto.FLOAT8E4M3FN}
_CORNERS: list[tuple[str, list[np.ndarray], dict[str, Any], int]] = [
    ("Celu", [rand(9)], {"alpha": -0.5}, 12),
    ("CumSum", [np.zeros((3, 0), "float32"), ints(0).reshape(())], {"reverse": 1}, 14),
    ("Equal", [np.array([True, False, True]), np.array([[True], [False]])], {}, 19),
    ("Gemm", [rand(2, 3), rand(3, 2), np.full((2, 2), INF, "float32")], {"beta": 0.0}, 13),
    ("LayerNormalization", [np.zeros((0, 5), "float32")] * 2, {"axis": -2}, 17),
    ("Erf", [np.array([-3, 0, 1], "int32")], {}, 9),
    ("HardSigmoid", [rand(9, dtype="float64")], {}, 6),
    ("Pow", [np.arange(12, dtype="int32").reshape(4, 3), np.arange(3, dtype="int32")], {}, 15),
    ("Selu", [rand(9)], {}, 6),
    ("QuantizeLinear", [np.array([[6.25, -0.06, 1.4]], "float32"), np.full((1, 2), 0.25, "float32")], _BLOCKS, 21),
]


@pytest.mark.parametrize(("op", "arrays", "attrs", "opset"), _CORNERS, ids=lambda v: v if isinstance(v, str) else "")
def test_odd_operands_and_attributes(op: str, arrays: list[np.ndarray], attrs: dict[str, Any], opset: int) -> None:
    inputs = {f"x{i}": x for i, x in enumerate(arrays)}
    constants = {k: inputs.pop(k) for k in list(inputs) if op == "CumSum" and k == "x1"}
    kinds = {"Equal": TensorProto.BOOL, "QuantizeLinear": TensorProto.FLOAT8E4M3FN}
    result = kinds.get(op, helper.np_dtype_to_tensor_dtype(arrays[0].dtype))
    nodes = [node(op, [f"x{i}" for i in range(len(arrays))], ["y"], **attrs)]
    same(typed(nodes, inputs, constants, result=result, opset=opset), *inputs.values(), tolerance=1e-6)
