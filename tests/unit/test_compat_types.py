"""The dtypes of types, as text."""

import pytest
import tvm
from tvm import relax

from tvm_byoc_dnnl._compat import dtype_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_the_dtype_of_a_tensor(dtype: str):
    for _ in range(2):  # the second time it is remembered
        assert dtype_of(relax.TensorType((2, 3), dtype)) == dtype


def test_an_unknown_dtype():
    assert dtype_of(relax.TensorType(dtype="", ndim=2)) == ""


def test_the_dtype_of_a_dim():
    n = tvm.tirx.Var("n", "int64")
    assert dtype_of(getattr(n, "ty", n)) == "int64"
    assert dtype_of(getattr(n + 1, "ty", n)) == "int64"
