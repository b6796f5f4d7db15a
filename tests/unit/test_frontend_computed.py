"""Operators whose sizes, limits or elements only a call knows, compared with ONNX's reference or NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_shapes

from tests.harness import assert_right
from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl import onnx_backend
from tvm_byoc_dnnl.core.errors import ByocError, UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.runtime.runner import Runner
from tvm_byoc_dnnl.testing.models import ort_run

NAN, INF = np.nan, np.inf
RNG = np.random.default_rng(3)


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def outcome(op: str, inputs: list[np.ndarray], count: int, judge: Any, opset: int, **attrs: Any) -> list[np.ndarray]:
    """The results of one node whose inputs all come with the call, once of fixed and once of open sizes."""
    names = [f"x{i}" for i in range(len(inputs))]
    results = [f"y{i}" for i in range(count)]
    known = {"x3": inputs[3]} if op == "Slice" else {}  # the axes
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in zip(names, inputs, strict=True)}
    feeds = dict(zip(names, inputs, strict=True))
    got: list[np.ndarray] = []
    for is_open in (False, True):
        kept = 1 if op == "DFT" else 0  # of the last axes: parts of a number
        least = 1 if op == "Slice" else 2  # the rank of what is open: the known axes say how many bounds there are
        shapes = {
            n: [f"{n}_{i}" if is_open and least <= a.ndim > i + kept else d for i, d in enumerate(a.shape)]
            for n, a in feeds.items()
            if n not in known
        }
        model = onnx_model(
            [node(op, names, results, **attrs)],
            shapes,
            known,
            outputs=results,
            dtypes={**kinds, results[0]: 0},
            opset=opset,
        )
        run = Runner(tvm.compile(to_relax(model), "llvm", relax_pipeline="byoc"))
        found = run(*(feeds[n] for n in shapes))
        got = list(found) if isinstance(found, (list, tuple)) else [found]
        fixed = onnx_model(
            [node(op, names, results, **attrs)],
            {n: a.shape for n, a in feeds.items()},
            outputs=results,
            dtypes={**kinds, results[0]: helper.np_dtype_to_tensor_dtype(got[0].dtype)}
            | dict.fromkeys(results[1:], TensorProto.INT64),
            opset=opset,
        )
        with np.errstate(all="ignore"):
            want = judge(fixed, feeds)
        for have, expected in zip(got, want, strict=True):
            assert have.dtype == expected.dtype
            assert_right(have, expected, 1e-5, least=1.0, elementwise=True)
    return got


def reference(model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = ReferenceEvaluator(model).run(None, feeds)
    return found


MATRIX = RNG.integers(-3, 4, (3, 5)).astype("float32")
#: operator, inputs, number of results, opset, attributes
CASES: list[tuple[str, list[np.ndarray], int, int, dict[str, Any]]] = [
    ("TopK", [MATRIX, ints(3)], 2, 17, {}),
    ("TopK", [MATRIX, ints(2)], 2, 17, {"axis": 0, "largest": 0}),
    ("TopK", [RNG.integers(0, 2**64 - 1, (2, 7), dtype="uint64"), ints(4)], 2, 17, {}),
    ("Slice", [MATRIX, ints(-1, 1), ints(-10, 4), ints(1, 0), ints(-2, 1)], 1, 17, {}),
    ("Slice", [MATRIX, ints(3, 2), ints(1, 2), ints(0, 1)], 1, 17, {}),
    ("Range", [np.array(9), np.array(-4), np.array(-3)], 1, 17, {}),
    ("Range", [np.float32(0.5), np.float32(3), np.float32(0.75)], 1, 17, {}),
    ("Range", [np.array(5, "int32"), np.array(2, "int32"), np.array(1, "int32")], 1, 17, {}),
    ("Pad", [MATRIX, ints(1, -1, 0, 2)], 1, 19, {}),
    ("Pad", [MATRIX, ints(-1, 1, 1, -2)], 1, 19, {"mode": "reflect"}),
    ("ReduceMean", [MATRIX, ints(-1)], 1, 18, {"keepdims": 0}),
    ("ReduceLogSumExp", [rand(2, 3, 4), ints(2, 0)], 1, 18, {}),
    ("ReduceMax", [MATRIX, ints()], 1, 18, {"keepdims": 0}),
    ("GatherElements", [MATRIX, np.zeros((3, 0), "int64")], 1, 13, {"axis": 1}),
    ("ScatterElements", [MATRIX, np.zeros((2, 0), "int64"), np.zeros((2, 0), "float32")], 1, 18, {}),
    (
        "Resize",
        [MATRIX[:1], np.zeros(0, "float32"), np.zeros(0, "float32"), ints(3, 7)],
        1,
        13,
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    ),
    ("Tile", [MATRIX, ints(2, 3)], 1, 17, {}),
    ("Tile", [MATRIX, ints(0, 1)], 1, 17, {}),
    ("Split", [MATRIX, ints(1, 0, 4)], 3, 17, {"axis": 1}),
    ("Trilu", [MATRIX, np.array(1)], 1, 17, {"upper": 0}),
    ("Trilu", [MATRIX, np.array(-2)], 1, 17, {}),
    ("OneHot", [ints(-1, 0, 4, 9), np.array(5), np.array([2, 7], "float32")], 1, 17, {"axis": 0}),
    ("NonZero", [MATRIX], 1, 17, {}),
    ("NonZero", [np.zeros((2, 0), "float32")], 1, 17, {}),
    ("NonZero", [np.array([[NAN, 0], [-0.0, INF]], "float32")], 1, 17, {}),
    ("Compress", [MATRIX, np.array([True, False, True])], 1, 17, {"axis": 0}),
    ("Compress", [MATRIX, np.array([False] * 7 + [True])], 1, 17, {}),
    ("Unique", [np.array([2, 1, 1, 3, 4, 3], "float32")], 4, 17, {"sorted": 0}),
    ("Unique", [np.array([2, NAN, 1, NAN, -INF], "float32")], 4, 17, {}),
    ("Unique", [RNG.integers(0, 2, (6, 2)).astype("float32")], 4, 17, {"axis": 0}),
    ("Unique", [RNG.integers(0, 2, (2, 5, 2)).astype("int64")], 4, 17, {"axis": -2}),
    ("DFT", [rand(2, 11, 1)], 1, 17, {}),
    ("DFT", [rand(2, 6, 2), ints(8)[0]], 1, 17, {"inverse": 1}),
    ("DFT", [rand(2, 9, 1)], 1, 17, {"onesided": 1}),
    ("MelWeightMatrix", [np.array(v) for v in (8, 16, 8192)] + [np.float32(0), np.float32(4096)], 1, 17, {}),
    ("Det", [rand(2, 3, 4, 4)], 1, 17, {}),
    ("Det", [np.array([[0, 2], [3, 0]], "float32")], 1, 17, {}),
    ("Det", [np.ones((3, 3), "float64")], 1, 17, {}),
    ("EyeLike", [MATRIX], 1, 17, {"k": -1, "dtype": TensorProto.INT32}),
    ("ArgMax", [MATRIX], 1, 17, {"axis": 1, "select_last_index": 1}),
    ("ArgMin", [MATRIX], 1, 17, {"axis": 0, "keepdims": 0, "select_last_index": 1}),
    ("ScatterElements", [MATRIX, ints(1, -1, 0).reshape(1, 3), rand(1, 3)], 1, 18, {"axis": 0, "reduction": "max"}),
    ("ScatterElements", [MATRIX, ints(1, -1, 1).reshape(1, 3), rand(1, 3)], 1, 18, {"axis": 1, "reduction": "add"}),
    ("ScatterND", [MATRIX > 0, ints(1, 1).reshape(2, 1), rand(2, 5) > 0], 1, 18, {"reduction": "add"}),
    (
        "ScatterND",
        [rand(3), ints(2, 2, 0).reshape(3, 1), np.array([NAN, 2, 3], "float32")],
        1,
        18,
        {"reduction": "max"},
    ),
    ("GatherND", [np.arange(4.0), ints(1, -1, 3).reshape(3, 1)], 1, 17, {}),
    ("ScatterND", [MATRIX, ints(1, -1, 1).reshape(3, 1), rand(3, 5)], 1, 18, {"reduction": "mul"}),
    ("Pow", [np.array([[2, -1, 3]], "int32"), np.array([[5, -3, -1]], "int64")], 1, 17, {}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}{c[4] or ''}")
def test_as_the_reference_says(case: tuple[str, list[np.ndarray], int, int, dict[str, Any]]) -> None:
    op, inputs, count, opset, attrs = case
    judge = {"Pad": ort_run, "Pow": _powers}.get(op, reference)  # the reference has no widths below 0
    outcome(op, [np.asarray(a) for a in inputs], count, judge, opset, **attrs)


def _powers(_model: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """NumPy has no powers of integers with exponents below 0."""
    return [np.array([[32, -1, 0]], "int32")]


BOXES = np.sort(RNG.uniform(0, 10, (2, 12, 2, 2)).astype("float32"), axis=2).reshape(2, 12, 4)
SCORES = RNG.standard_normal((2, 3, 12)).astype("float32").round(1)  # with ties, and below 0


@pytest.mark.parametrize("most", [0, 2, 100])
@pytest.mark.parametrize("limits", [[], [0.3], [0.3, 0.1], [0.0, -0.5]], ids=str)
@pytest.mark.parametrize("centre", [0, 1])
def test_suppression_by_limits_of_the_call(most: int, limits: list[float], centre: int) -> None:
    numbers = [np.array([limit], "float32") for limit in limits]
    outcome("NonMaxSuppression", [BOXES, SCORES, ints(most), *numbers], 1, ort_run, 17, center_point_box=centre)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_regions(kind: str, mode: str, ratio: int) -> None:
    boxes = np.array([[0, 0, 6, 7], [2, 1.5, 9, 3], [-3, -3, 20, 2]], "float32")
    how = {"output_height": 2, "output_width": 3, "spatial_scale": 0.5, "sampling_ratio": ratio}
    inputs = [rand(2, 3, 8, 9), boxes, ints(1, 0, 1)]
    outcome("RoiAlign", inputs, 1, reference, 16, mode=kind, coordinate_transformation_mode=mode, **how)


# ---- casts ------------------------------------------------------------------------------------------

REALS = np.array([0.0, -0.7, 1.5, -128.0, 300.0, -70000.0, 2.0**31, -(2.0**33), 1e20, NAN, INF, -INF], "float32")


@pytest.mark.parametrize("to", ["int32", "int64", "bool"])
def test_casts_of_what_has_no_integer(to: str) -> None:
    """NumPy on x86 is the judge: the lowest integer stands for what there is none for."""
    with np.errstate(all="ignore"):
        low = np.iinfo(to).min if to != "bool" else 0
        is_inside = np.abs(REALS) < (2.0**63 if to == "int64" else 2.0**31)
        want = REALS != 0 if to == "bool" else np.where(is_inside, np.where(is_inside, REALS, 0).astype(to), low)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    outcome("Cast", [REALS], 1, lambda *_: [want.astype(to)], 19, to=kind)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_casts_to_few_bits_and_back(dtype: str) -> None:
    short = np.dtype(getattr(ml_dtypes, dtype))
    x = np.array([0, 1, -1, 1.6, -3.4, 2.5, 9, -9, 100.7, 0.25, -0.2], "float32")
    kind = helper.np_dtype_to_tensor_dtype(short)
    there = onnx_model([node("Cast", ["x"], ["y"], to=kind)], {"x": x.shape}, opset=25, dtypes={"y": kind})
    (made,) = onnx_backend.prepare(infer_shapes(there)).run([x])
    assert made.dtype == short
    np.testing.assert_array_equal(made.view("uint8"), x.astype(short).view("uint8"))
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("Transpose", ["r"], ["t"]), node("Cast", ["t"], ["y"], to=1)]
    back = onnx_model(nodes, {"x": x.shape}, {"s": ints(1, 11)}, opset=25, dtypes={"x": kind})
    (again,) = onnx_backend.prepare(infer_shapes(back)).run([made])
    np.testing.assert_array_equal(again, made.astype("float32").reshape(11, 1))


def test_a_cast_to_strings_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="strings"):
        to_relax(onnx_model([node("Cast", ["x"], ["y"], to=TensorProto.STRING)], {"x": (2,)}))


# ---- what a call may not ask for --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("TopK", [MATRIX, ints(6)]), ("Split", [MATRIX, ints(1, 1)]), ("Split", [MATRIX, ints(4, -1)])],
)
def test_refused_in_the_call(op: str, inputs: list[np.ndarray]) -> None:
    names = [f"x{i}" for i in range(len(inputs))]
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in zip(names, inputs, strict=True)}
    shapes = {n: a.shape for n, a in zip(names, inputs, strict=True)}
    model = onnx_model([node(op, names, ["y", "z"])], shapes, outputs=["y", "z"], dtypes={**kinds, "y": 0, "z": 0})
    run = Runner(tvm.compile(to_relax(model), "llvm", relax_pipeline="byoc"))
    with pytest.raises(ByocError):
        run(*inputs)
