"""Functions that TVM alone compiles, and that its passes for external compilers do not: with and without regions."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.failing_vendor import vendors
from tests.unit.importing import ops
from tvm_byoc_dnnl.ir.relax_utils import codegen_of

F = R.Tensor((8, 8), "float32")


@I.ir_module
class Private:
    @R.function(private=True)
    def product(x: F, w: F) -> F:
        with R.dataflow():
            y = R.matmul(x, w)
            R.output(y)
        return y

    @R.function
    def main(x: F, n: R.Tensor((), "int64")) -> F:
        cls = Private
        with R.dataflow():
            a = cls.product(x, x)
            b = R.tan(a)
            R.output(b)
        return b


@I.ir_module
class Recursive:
    @R.function
    def main(x: F, n: R.Tensor((), "int64")) -> F:
        cls = Recursive
        again = R.greater(n, R.const(0, "int64"))
        if again:
            y = R.matmul(x, x)
            m = R.subtract(n, R.const(1, "int64"))
            r = cls.main(y, m)
        else:
            r = R.tan(x)
        return r


@I.ir_module
class ShortDims:
    """A PrimFunc as people write them, with dims of int32; those that TVM makes have dims of int64."""

    @T.prim_func(private=True, s_tir=True)
    def plus_one(x: T.Buffer((T.int32(8), T.int32(8)), "float32"), y: T.Buffer((T.int32(8), T.int32(8)), "float32")):
        for i, j in T.grid(8, 8):
            with T.sblock("plus_one"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] + T.float32(1)

    @R.function
    def main(x: F, n: R.Tensor((), "int64")) -> F:
        cls = ShortDims
        with R.dataflow():
            a = R.matmul(x, x)
            b = R.call_tir(cls.plus_one, (a,), out_ty=R.Tensor((8, 8), "float32"))
            c = R.tan(b)
            R.output(c)
        return c


@I.ir_module
class Sum:
    @R.function
    def main(x: F) -> F:
        y = R.add(x, x)
        return y


X = np.random.default_rng(0).uniform(-0.3, 0.3, (8, 8)).astype("float32")


def run(mod, pipeline="byoc"):
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(X), tvm.runtime.tensor(np.asarray(2, "int64"))).numpy()


@pytest.mark.parametrize("compiler", ["dnnl", "ccompiler", "nothing"])
@pytest.mark.parametrize("model", [Private, Recursive, ShortDims], ids=lambda m: m.__name__)
def test_what_tvm_compiles_is_compiled_with_regions_and_without(model, compiler):
    with vendors(("nothing", ())):
        mod = byoc.partition(model, compiler)
        regions = [f for f in mod.functions.values() if codegen_of(f)]
        assert bool(regions) == (compiler != "nothing")
        assert_right(run(mod), run(model, "default"))


@pytest.mark.parametrize("model", [Private, Recursive, ShortDims], ids=lambda m: m.__name__)
def test_a_module_without_a_region_keeps_its_functions(model):
    with vendors(("nothing", ())):
        mod = byoc.partition(model, "nothing")
    assert {gv.name_hint: str(f.ret_ty) for gv, f in mod.functions_items() if isinstance(f, relax.Function)} == {
        gv.name_hint: str(f.ret_ty) for gv, f in model.functions_items() if isinstance(f, relax.Function)
    }


def test_a_module_whose_regions_all_fail_has_its_calls_and_their_reasons():
    with vendors("v1") as vendor:
        vendor.fail("plan", "relax.add")
        partitioned = byoc.partition(Sum, "v1")
        report = byoc.explain(Sum, "v1")
    assert ops(partitioned) == {"add": 1}
    assert not any(map(codegen_of, partitioned.functions.values()))
    assert report.calls[0].reasons == [
        "v1: the lowering of relax.add in 'v1' failed: VendorError: "
        "the probe of 'v1' raised RuntimeError: plan cannot do relax.add (asked by the report)"
    ]


@I.ir_module
class Product:
    @R.function
    def main(x: F) -> F:
        with R.dataflow():
            y = R.matmul(x, x)
            R.output(y)
        return y


def test_a_pass_behind_partitioning_that_makes_a_region_impossible():
    """The library has no matmul of this type here, which nobody asked it before the model was loaded."""
    changed = relax.transform.ToMixedPrecision(out_dtype="float16")(byoc.partition(Product))
    vm = relax.VirtualMachine(tvm.compile(changed, "llvm", relax_pipeline="byoc"), tvm.cpu())
    assert_right(vm["main"](tvm.runtime.tensor(X)).numpy(), X @ X, 2**-8)
