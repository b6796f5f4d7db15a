"""Resize of every kind with fixed and with open sizes, compared with ONNX's reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from tests.harness import assert_right
from tests.unit.importing import node, onnx_model, ops, prepared, rand, run
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import ort_run

TRANSFORMS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def model(shape: Any, opset: int, constants: dict[str, Any], dtype: str = "float32", **attrs: Any) -> onnx.ModelProto:
    """One node; ``constants`` are its inputs roi, scales and sizes."""
    given = {k: np.asarray(v, "int64" if k == "sizes" else "float32") for k, v in constants.items()}
    inputs = ["x", *(k if k in given else "" for k in ("roi", "scales", "sizes"))]
    while not inputs[-1]:
        inputs.pop()
    kinds = {n: onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for n in ("x", "y")}
    return onnx_model([node("Resize", inputs, ["y"], **attrs)], {"x": shape}, given, opset=opset, dtypes=kinds)


def both(shape: tuple[int, ...], opset: int = 19, dtype: str = "float32", **options: Any) -> None:
    """Compare the node with a fixed shape, and with every size open."""
    constants = {k: options.pop(k) for k in ("roi", "scales", "sizes") if k in options}
    x = (rand(*shape) * 50).astype(dtype)
    fixed = model(shape, opset, constants, dtype, **options)
    want = ReferenceEvaluator(fixed).run(None, {"x": x})[0]
    for given in (fixed, model([f"d{i}" for i in range(len(shape))], opset, constants, dtype, **options)):
        assert_right(run(prepared(to_relax(given)), x)[0], want, 1e-5, least=50.0, elementwise=True)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("height", [7, 8])
def test_scales_that_give_no_whole_size(transform: str, mode: str, height: int) -> None:
    both((1, 2, height, 5), scales=[1, 1, 0.6, 1.5], mode=mode, coordinate_transformation_mode=transform)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scale", [0.5, 1 / 3, 1.5, 2.5])
def test_nearest(rounding: str, scale: float) -> None:
    for transform in ("half_pixel", "asymmetric"):
        how = {"coordinate_transformation_mode": transform, "nearest_mode": rounding}
        shape, scales = (1, 1, 9, 7), np.array([1, 1, scale, 2], "float32")
        want = nearest(shape, scales, **how)
        for dims in (shape, (1, 1, "h", "w")):
            got = run(to_relax(model(dims, 13, {"scales": scales}, **how)), numbered(shape))[0]
            np.testing.assert_array_equal(got, want)


def test_a_coordinate_between_two_elements_is_rounded_as_said() -> None:
    both((1, 1, 2, 8), sizes=[1, 1, 2, 500], mode="nearest", nearest_mode="round_prefer_floor")  # 62.5 / 62.5 is 1


def test_nearest_before_opset_11_rounds_as_onnx_runtime() -> None:
    shape, scales = (1, 1, 9, 7), np.array([1, 1, 0.6, 1.7], "float32")
    want = nearest(shape, scales, coordinate_transformation_mode="asymmetric", nearest_mode="by_scale")
    for dims in (shape, (1, 1, "h", "w")):
        resize = onnx_model([node("Resize", ["x", "s"], ["y"], mode="nearest")], {"x": dims}, {"s": scales}, opset=10)
        np.testing.assert_array_equal(run(to_relax(resize), numbered(shape))[0], want)


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def nearest(shape: tuple[int, ...], scales: np.ndarray, **how: str) -> np.ndarray:
    """Gathered; in float32, as ONNX Runtime computes coordinates (in ONNX's reference, 1 / (1/3) is less than 3)."""
    value, half = numbered(shape), np.float32(0.5)
    for axis, scale in enumerate(scales):
        to_whole = {
            "round_prefer_floor": lambda x: np.ceil(x - half),
            "round_prefer_ceil": lambda x: np.floor(x + half),
            "floor": np.floor,
            "ceil": np.ceil,
            "by_scale": np.ceil if scale < 1 else np.floor,
        }[how["nearest_mode"]]
        i = np.arange(int(np.float32(shape[axis]) * scale)).astype("float32")
        x = i / scale if how["coordinate_transformation_mode"] == "asymmetric" else (i + half) / scale - half
        value = np.take(value, np.clip(to_whole(x).astype(int), 0, shape[axis] - 1), axis)
    return value


#: shape, and what the node is given
ODD: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "rank 1": ((7,), {"scales": [1.5], "mode": "linear"}),
    "rank 2": ((4, 5), {"scales": [2, 2], "mode": "cubic"}),
    "rank 2 by sizes": ((4, 5), {"sizes": [7, 9], "mode": "linear"}),
    "rank 3, both axes": ((2, 4, 5), {"scales": [1, 2, 2], "mode": "linear"}),
    "rank 3, the first": ((4, 5, 3), {"sizes": [8, 9, 3], "mode": "nearest"}),
    "rank 4, channels last": ((1, 4, 5, 3), {"scales": [1, 2, 2, 1], "mode": "linear"}),
    "rank 4, channels": ((1, 2, 4, 5), {"scales": [1, 2, 2, 2], "mode": "nearest"}),
    "rank 4, batch": ((2, 1, 4, 5), {"scales": [1.5, 1, 1, 1], "mode": "linear"}),
    "rank 5": ((1, 1, 3, 4, 5), {"scales": [1, 1, 2, 1.5, 0.5], "mode": "linear"}),
    "rank 5, cubic": ((1, 1, 3, 4, 5), {"scales": [1, 1, 2, 2, 2], "mode": "cubic"}),
    "axes": ((1, 4, 6, 2), {"axes": [1, 2], "sizes": [8, 9], "mode": "linear"}),
    "axes by scales": ((1, 4, 6, 2), {"axes": [2, 1], "scales": [1.5, 0.5], "mode": "cubic"}),
    "antialias": ((1, 1, 9, 8), {"scales": [1, 1, 0.4, 0.6], "mode": "linear", "antialias": 1}),
    "antialias, cubic": ((1, 1, 11, 8), {"scales": [1, 1, 0.4, 0.3], "mode": "cubic", "antialias": 1}),
    "outside": ((1, 1, 5, 4), {"scales": [1, 1, 1.6, 0.6], "mode": "cubic", "exclude_outside": 1}),
    "another cubic": ((1, 1, 5, 4), {"scales": [1, 1, 1.6, 2.5], "mode": "cubic", "cubic_coeff_a": -0.5}),
    "roi that is not read": ((1, 1, 4, 4), {"roi": [0.25] * 8, "scales": [1, 1, 2, 1.5], "mode": "linear"}),
    "one element": ((1, 1, 5, 5), {"sizes": [1, 1, 1, 7], "mode": "linear"}),
    "of one element": ((1, 1, 1, 5), {"sizes": [1, 1, 3, 7], "mode": "linear"}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_axes_and_options(name: str) -> None:
    shape, options = ODD[name]
    both(shape, **options)


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [1, 1, 1, 7]])
def test_corners_of_one_element(sizes: list[int]) -> None:
    both((1, 1, 1, 5), sizes=sizes, mode="linear", coordinate_transformation_mode="align_corners")


@pytest.mark.parametrize("dims", [(1, 2, "h", 5), (1, 2, 6, "w"), ("n", 2, 6, 5), ("n", "c", "h", "w")])
@pytest.mark.parametrize("scales", [[1, 1, 3, 1], [1, 1, 1, 3], [1, 1, 1.5, 1], [1, 1, 3, 2]])
@pytest.mark.parametrize("transform", ["half_pixel", "asymmetric"])
def test_some_open_sizes(dims: Any, scales: list[float], transform: str) -> None:
    x, options = rand(1, 2, 6, 5), {"mode": "linear", "coordinate_transformation_mode": transform}
    want = ReferenceEvaluator(model(x.shape, 18, {"scales": scales}, **options)).run(None, {"x": x})[0]
    got = run(prepared(to_relax(model(dims, 18, {"scales": scales}, **options))), x)[0]
    assert_right(got, want, 1e-5, least=1.0, elementwise=True)


@pytest.mark.parametrize(("mode", "by"), list(product(["nearest", "linear", "cubic"], ["scales", "sizes"])))
def test_crops(mode: str, by: str) -> None:
    """A region of interest; what is outside of the source has the value that the node gives."""
    roi = [0, 0, 0.25, -0.2, 1, 1, 0.8, 1.2]
    wanted = {"scales": [1, 1, 1.5, 0.75]} if by == "scales" else {"sizes": [1, 2, 5, 6]}
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 4.5}
    both((1, 2, 6, 8), mode=mode, roi=roi, **wanted, **how)


def test_the_end_of_a_region_is_inside() -> None:
    """``1 - 0.2`` is in float32 more than the rest of the axis; ONNX's reference is outside, ONNX Runtime inside."""
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 4.5, "mode": "linear"}
    x, given = rand(1, 1, 9, 9), {"roi": [0, 0, 0.2, 0.2, 1, 1, 1, 1], "sizes": [1, 1, 5, 5]}
    got = run(to_relax(model(x.shape, 18, given, **how)), x)[0]
    assert_right(got[..., -1, -1], x[..., -1, -1], 1e-6)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_aspect_ratios_that_are_kept(policy: str) -> None:
    options = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
    shape, sizes = (1, 1, 6, 9), {"sizes": [4, 7]}
    x, fixed = rand(*shape), model(shape, 18, sizes, **options)
    want = ReferenceEvaluator(fixed).run(None, {"x": x})[0]
    for made in (fixed, model((1, 1, "h", "w"), 18, sizes, **options)):
        assert_right(run(to_relax(made), x)[0], want, 1e-5, least=1.0)


def test_integers_are_cut_as_onnx_runtime_cuts_them() -> None:
    x = (rand(1, 1, 4, 5) * 50).astype("int32")
    options: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    want = np.trunc(
        ReferenceEvaluator(model(x.shape, 13, {"scales": [1, 1, 1.6, 1]}, **options)).run(
            None, {"x": x.astype("float32")}
        )[0]
    )
    for shape in (x.shape, (1, 1, "h", "w")):
        got = run(to_relax(model(shape, 13, {"scales": [1, 1, 1.6, 1]}, "int32", **options)), x)[0]
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)


def test_antialias_to_a_size_whose_scale_depends_on_the_call() -> None:
    how: dict[str, Any] = {"mode": "linear", "antialias": 1}
    mod = to_relax(model((1, 1, "h", "w"), 18, {"sizes": [1, 1, 3, 3]}, **how))
    for shape in ((1, 1, 7, 2), (1, 1, 13, 3)):
        x = rand(*shape)
        want = ReferenceEvaluator(model(shape, 18, {"sizes": [1, 1, 3, 3]}, **how)).run(None, {"x": x})[0]
        assert_right(run(mod, x)[0], want, 1e-5, least=1.0)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("what", ["scales", "sizes", "roi"])
def test_numbers_that_only_a_call_knows(mode: str, what: str) -> None:
    values = {
        "scales": np.array([1, 1, 0.6, 1.5], "float32"),
        "sizes": np.array([1, 2, 3, 9], "int64"),
        "roi": np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 0.7], "float32"),
    }
    how = {"coordinate_transformation_mode": "tf_crop_and_resize"} if what == "roi" else {}
    names = ["x", "roi" if what == "roi" else "", *(["", "sizes"] if what == "sizes" else ["scales"])]
    constants = {"scales": values["scales"]} if what == "roi" else {}
    kind = TensorProto.INT64 if what == "sizes" else TensorProto.FLOAT
    given = onnx_model(
        [node("Resize", names, ["y"], mode=mode, **how)],
        {"x": (1, 2, 7, 5), what: values[what].shape},
        constants,
        opset=19,
        dtypes={what: kind},
    )
    x = rand(1, 2, 7, 5)
    want = ort_run(given, {"x": x, what: values[what]})[0]
    assert_right(run(prepared(to_relax(given)), x, values[what])[0], want, 1e-5, least=1.0, elementwise=True)


def test_whole_scales_stay_one_operator() -> None:
    """Libraries have an operator for these."""
    for dims in ((1, 2, 4, 5), (1, 2, "h", "w")):
        module = to_relax(model(dims, 13, {"scales": [1, 1, 2, 2]}, mode="linear"))
        assert ops(module) == {"image.resize2d": 1}
