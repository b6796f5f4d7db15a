"""Constants and calls that are made without the detours of TVM's constructors."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax

from tvm_byoc_dnnl.core.tvm_fast import is_a
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of, with_args


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
