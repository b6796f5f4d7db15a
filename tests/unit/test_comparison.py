"""When results are equal: the rule that `verify`, the conformance kit, the benchmarks and the tests share."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.runtime.comparison import STEPS, as_tolerances, difference, differences, nudged, wrong

WANT = np.array([1000.0, 1.0, 0.0, np.inf, np.nan], "float32")


def changed(at: int, value: float) -> np.ndarray:
    got = WANT.copy()
    got[at] = value
    return got


@pytest.mark.parametrize(
    ("at", "value", "elementwise", "is_right"),
    [
        (0, 1000.01, False, True),
        (0, 1000.1, False, False),
        (1, 1.01, False, True),  # as far off as the largest may be: a sum may have cancelled
        (1, 1.01, True, False),
        (1, 1.00001, True, True),
        (2, 1e-30, True, False),
        (3, -np.inf, False, False),
        (3, 3e38, False, False),
        (3, np.nan, True, False),
        (4, 0.0, False, False),
        (4, np.inf, True, False),
        (0, np.inf, True, False),
        (0, np.nan, False, False),
    ],
)
def test_one_element(at: int, value: float, elementwise: bool, is_right: bool) -> None:
    got = changed(at, value)
    assert (difference(got, WANT, elementwise=elementwise) == "") == is_right
    assert wrong(got, WANT, elementwise=elementwise).tolist() == [i == at and not is_right for i in range(5)]
    assert (differences([WANT, got], [WANT, WANT], elementwise=elementwise) == "") == is_right


def test_what_counts_as_the_largest_value() -> None:
    want, got = np.zeros(3, "float32"), np.full(3, 1e-6, "float32")
    for elementwise in (False, True):
        assert difference(got, want, 1e-5, elementwise=elementwise)
        assert not difference(got, want, 1e-5, least=0.2, elementwise=elementwise)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
@pytest.mark.parametrize("tolerance", [None, 0.5])
def test_whole_numbers_are_equal(dtype: str, tolerance: float | None) -> None:
    want = np.array([1, 0, 1], dtype) if dtype != "int64" else np.array([2**62, 0, 1])
    got = want ^ np.array([1, 0, 0], dtype)
    assert not difference(want, want, tolerance)
    assert "1 of 3 wrong" in difference(got, want, tolerance)


def test_dtype_and_shape_are_those_that_are_wanted() -> None:
    ones = np.ones((2, 3), "float32")
    assert difference(ones.astype("float64"), ones) == "is float64[2, 3] instead of float32[2, 3]"
    assert "instead of float32[3, 2]" in difference(ones, ones.T)
    assert differences([ones], [ones, ones]) == "1 results instead of 2"
    half = ones.astype(ml_dtypes.bfloat16)
    assert not difference(half, half, elementwise=True)


@pytest.mark.parametrize("dtype", STEPS)
def test_integers_may_be_some_steps_off(dtype: str) -> None:
    info = np.iinfo(dtype)
    want = np.array([info.min, 5, info.max], dtype)
    got = want + np.array([1, 0, 0], dtype) - np.array([0, 2, 1], dtype)
    for steps, count in ((0, 3), (1, 1), (2, 0)):
        assert np.count_nonzero(wrong(got, want, {dtype: steps})) == count
    assert "1 of 3 wrong, tolerance 1" in difference(got, want, as_tolerances({dtype: "1 step"}))
    assert difference(want[::-1], want, {dtype: 2})  # from one end of the range to the other is no step


def test_booleans_have_no_steps() -> None:
    assert difference(np.array([True]), np.array([False]), 1.0)


def test_integers_are_nudged_by_the_steps_that_are_allowed_within_their_range() -> None:
    x = np.array([-128, 0, 127], "int8")
    assert nudged([x]) == [] == nudged([x], {"int8": 0, "uint8": 3})
    up, down = nudged([x, np.zeros(1, "uint8")], {"int8": 2})
    assert up[0].tolist() == [-126, 2, 127] and down[0].tolist() == [-128, -2, 125]
    assert up[0].dtype == x.dtype and up[1].tolist() == [0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int8", "1.5"),
        ("int8", "a step"),
        ("int8", "1 place"),
        ("int8", -1),
        ("int8", ""),
        ("bool", 1),
        ("int4", 1),
        ("float32", "1 step"),
        ("float32", "nan"),
        ("float32", "-1"),
        ("float8", 1),
        ("", ""),
    ],
)
def test_a_tolerance_that_is_none_is_an_error(dtype: str, value: object) -> None:
    with pytest.raises(InputError, match=f"tolerance {dtype}={value}; expected a share of the largest value"):
        as_tolerances({dtype: value})


def test_tolerances_are_numbers_and_steps() -> None:
    given = {"float32": "1e-4", "int8": "1 step", "uint8": "2 steps", "int32": 3}
    assert as_tolerances(given) == {"float32": 1e-4, "int8": 1, "uint8": 2, "int32": 3}
