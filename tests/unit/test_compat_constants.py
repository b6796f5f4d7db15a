"""Constants and calls that are made without the detours of TVM's constructors."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_byoc_dnnl._compat import (
    constant_numpy,
    constant_tensor,
    dtype_of,
    is_a,
    small_constants,
    static_shape,
    with_args,
)


def test_small_constants_keep_values_shapes_and_dtypes() -> None:
    """Scalars, empty arrays and such with strides included."""
    dtypes = ("bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64")
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes]
    arrays += [np.array(3, "int64"), np.zeros((0, 4), "float32"), np.arange(12.0).reshape(3, 4).T[1:]]
    for array, constant in zip(arrays, small_constants(arrays), strict=True):
        np.testing.assert_array_equal(constant_numpy(constant), array, strict=True)
        assert static_shape(constant.ty) == array.shape
        assert str(constant_tensor(constant).dtype) == str(array.dtype)


def test_small_constants_are_copies_and_aligned() -> None:
    """TVM's loops expect the alignment of its own tensors, and a model may change its arrays afterwards."""
    arrays = [np.ones(size, "float32") for size in (1, 5, 33)]
    made = [constant_numpy(c) for c in small_constants(arrays)]
    for array in arrays:
        array[:] = 7
    assert all((value == 1).all() and value.ctypes.data % 64 == 0 for value in made)
    assert small_constants([]) == []


@pytest.mark.parametrize("typed", [True, False])
def test_a_call_with_other_arguments_keeps_the_rest(typed: bool) -> None:
    """Attributes stay; the type is the given one, or missing until the call is normalised."""
    x, y = (relax.Var(name, relax.TensorType((2, 3), "float32")) for name in "xy")
    call = relax.BlockBuilder().normalize(relax.op.nn.softmax(x, axis=0))
    made = with_args(call, [y], call.ty if typed else None)
    assert made.args[0].same_as(y) and made.op.same_as(call.op) and made.attrs.axis == 0
    assert isinstance(made.ty, relax.TensorType) == typed
    tvm.ir.assert_structural_equal(relax.BlockBuilder().normalize(made).ty, call.ty)


def test_dtypes_of_tensors_and_of_scalars() -> None:
    """The type of a size is that of a scalar, whose dtype is a string already."""
    size = tvm.tirx.Var("n", "int64")
    assert dtype_of(relax.TensorType((size,), "float16")) == "float16"
    assert dtype_of(relax.TensorType(ndim=2, dtype=None)) == ""
    if hasattr(size, "ty"):
        assert dtype_of(size.ty) == "int64"


@pytest.mark.parametrize(
    "kind",
    [relax.Expr, relax.Call, relax.Var, relax.DataflowVar, relax.TensorType, tvm.ir.Op, (relax.Call, relax.Var), int],
    ids=str,
)
def test_the_test_of_a_class_answers_as_isinstance_does(kind) -> None:
    x = relax.DataflowVar("x", relax.TensorType((2,), "float32"))
    call = relax.op.add(x, x)
    for value in (x, relax.Var("y", x.ty), call, call.op, x.ty, relax.Tuple([x]), 3, None):
        assert is_a(value, kind) == isinstance(value, kind)
