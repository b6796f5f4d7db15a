"""Arrays of a call that are taken without the checks of other values, and those that must not be."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tvm

from tvm_byoc_dnnl.core.arguments import as_view
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.core.tensor_info import TensorInfo, check_symbols
from tvm_byoc_dnnl.runtime.machines import InputPlan, Views, as_array

CACHE = TensorInfo("past", "float32", (2, "p", 4))


def _tensor(*shape: int) -> tvm.runtime.Tensor:
    return tvm.runtime.tensor(np.random.default_rng(3).standard_normal(shape).astype("float32"))


def test_a_view_is_taken_back_as_its_tensor() -> None:
    views, tensor = Views(), _tensor(2, 3, 4)
    array = views.array(tensor)
    assert not array.flags.writeable
    assert InputPlan(CACHE, True, views).tensor(array) is tensor
    np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:, 1:],
        lambda a: a[::-1],
        lambda a: a.copy(),
        lambda a: as_view(tvm.runtime.tensor(a)),
    ],
)
def test_a_part_of_a_view_is_not_the_tensor(change: Any) -> None:
    views, tensor = Views(), _tensor(2, 3, 4)
    other = change(views.array(tensor))
    taken = InputPlan(CACHE, True, views).tensor(other)
    assert taken is not tensor
    np.testing.assert_array_equal(taken.numpy(), other)


def test_a_view_that_was_given_another_shape() -> None:
    views, tensor = Views(), _tensor(2, 3, 4)
    array = views.array(tensor)
    array.shape = (2, 6, 2)
    with pytest.raises(InputError, match=r"has shape \[2, 6, 2\], expected \[2, 'p', 4\]"):
        InputPlan(CACHE, True, views).tensor(array)


def test_views_keep_nothing_that_is_no_longer_used() -> None:
    views = Views()
    array = views.array(_tensor(2, 3, 4))
    part = array[0]
    del array
    gc.collect()
    assert len(views._tensors) == 1
    del part
    gc.collect()
    assert not views._tensors


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 3, 5), "float32"),
        np.zeros((1, 3, 4), "float32"),
        np.zeros((2, 3, 4), "float64"),
        np.zeros((2, 3, 4), ">f4"),
        np.zeros((2, 12), "float32"),
    ],
)
@pytest.mark.parametrize("aligned", [False, True])
def test_what_does_not_fit_is_refused(value: np.ndarray, aligned: bool) -> None:
    with pytest.raises(InputError, match="past"):
        InputPlan(CACHE, aligned, None).tensor(value)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_what_fits_is_taken(rows: int, aligned: bool) -> None:
    value = np.random.default_rng(2).standard_normal((2, 2 * rows, 4)).astype("float32")
    read_only = value.copy()
    read_only.flags.writeable = False
    for given in (value, value[:, ::2], read_only, np.asfortranarray(value)):
        tensor = InputPlan(CACHE, aligned, None).tensor(given)
        np.testing.assert_array_equal(tensor.numpy(), given)
        assert not aligned or tensor.data_ptr() % 64 == 0


def test_an_input_without_a_dtype_takes_any() -> None:
    plan = InputPlan(TensorInfo("x", "", (2,)), False, None)
    assert [str(plan.tensor(np.zeros(2, dtype)).dtype) for dtype in ("float64", "int8")] == ["float64", "int8"]


def test_dims_of_one_name_are_compared() -> None:
    inputs = [TensorInfo("a", "float32", ("n", "n")), TensorInfo("b", "float32", ("?", "?")), CACHE]
    inputs.append(TensorInfo("c", "float32", ("p", "n")))
    check_symbols(inputs, [(3, 3), (4, 7), (2, 5, 4), (5, 3)])
    for shapes in ([(3, 2), (4, 7), (2, 5, 4), (5, 3)], [(3, 3), (4, 7), (2, 5, 4), (6, 3)]):
        with pytest.raises(InputError, match="make them equal"):
            check_symbols(inputs, shapes)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bool", "int8", "uint64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_results_are_copies(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = tvm.runtime.tensor(np.ones(shape, dtype))
    array = as_array(tensor)
    assert (array.dtype, array.shape, array.flags.writeable) == (np.dtype(dtype), shape, True)
    array[...] = 0
    np.testing.assert_array_equal(tensor.numpy(), np.ones(shape, dtype))


def test_results_that_numpy_has_no_type_for() -> None:
    tensor = tvm.runtime.empty((2,), "bfloat16")
    assert as_array([tensor, [tensor]])[0].shape == (2,)
    assert Views().array(tensor).dtype.itemsize == 2
