"""A backend that was written for stock TVM is a compiler here: its codegen `relax.ext.x`, and TVM's patterns."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.backend import _ffi_api
from tvm.relax.backend.pattern_registry import register_patterns
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native
STOCK = "stock_npu"
X = np.array([[1.0, -2.0], [3.0, -4.0]], "float32")

SOURCE = """
#include <tvm/ffi/c_api.h>
static float* data(const TVMFFIAny* a) {
  DLTensor* t = a->type_index == kTVMFFIDLTensorPtr ? (DLTensor*)a->v_ptr : TVMFFITensorGetDLTensorPtr(a->v_obj);
  return (float*)((char*)t->data + t->byte_offset);
}
#ifdef __cplusplus
extern "C"
#endif
int __tvm_ffi_SYMBOL(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  float *x = data(args), *y = data(args + num_args - 1);
  int i;
  (void)self, (void)result;
  for (i = 0; i < 4; ++i) y[i] = x[i] > 0 ? -x[i] : x[i];
  return 0;
}
"""


@pytest.fixture
def stock():
    seen = []

    def check(context) -> bool:
        seen.append(sorted(context.annotated_expr))
        return str(context.matched_expr.ty.dtype) == "float32"

    def codegen(functions, _options, _names):
        symbols = [str(f.attrs["global_symbol"]) for f in functions]
        return [byoc.c_source_module(SOURCE.replace("SYMBOL", s), [s]) for s in symbols]

    inner = is_op("relax.abs")(wildcard())
    register_patterns([(f"{STOCK}.negated_abs", is_op("relax.negative")(inner), {"abs": inner}, check)])
    tvm_ffi.register_global_func(f"relax.ext.{STOCK}", codegen)
    yield seen
    tvm_ffi.remove_global_func(f"relax.ext.{STOCK}")
    _ffi_api.RemovePatterns([f"{STOCK}.negated_abs"])


def model(dtype: str = "float32") -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(X.shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.negative(builder.emit(relax.op.abs(x))))
        builder.emit_func_output(result)
    return builder.get()


def test_it_is_listed_and_takes_what_its_patterns_match(stock):
    assert STOCK in byoc.compilers()
    np.testing.assert_array_equal(byoc.Runner(byoc.compile(model(), STOCK, strict=True))(X), -np.abs(X))
    assert stock[0] == ["abs"]
    assert {c.compiler for c in byoc.explain(model(), STOCK).calls} == {STOCK}


def test_its_check_may_refuse(stock):
    report = byoc.explain(model("float64"), [STOCK, "dnnl"])
    assert STOCK not in {c.compiler for c in report.calls}
    assert [n.pattern for c in report.calls for n in c.near_misses] != []


def test_composites_that_tvm_has_made_are_partitioned(stock):
    fused = relax.transform.FuseOpsByPattern([(f"{STOCK}.any", is_op("relax.abs")(wildcard()))])(model())
    regions = byoc.PartitionGraph()(fused)
    assert [str(f.attrs["Codegen"]) for f in regions.functions.values() if f.attrs and "Codegen" in f.attrs] == [STOCK]


def test_it_is_gone_with_its_registration():
    assert STOCK not in byoc.compilers()
    with pytest.raises(ValueError, match=f"unknown compiler '{STOCK}'"):
        byoc.compile(model(), STOCK)
