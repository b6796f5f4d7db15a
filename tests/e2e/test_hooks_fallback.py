"""Target hooks that fail: the region, and nothing else, goes back to TVM with the reason."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.e2e.hook_vendor import MULTIPLY, VENDOR, Add, X, Y, build, elementwise, lowered, run, vendor  # noqa: F401 (vendor is a fixture)
from tests.harness import assert_right
from tvm_byoc_dnnl.core.compilation import read_log
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.vendors.hooks import for_each_region, refuse_region


def doubling(refused=None):
    """A hook for regions that add a vector to itself; a vector of length ``refused`` it cannot."""

    def lower(region, _builder):
        (size,) = region.params[0].ty.shape.values
        if int(size) == refused:
            raise RuntimeError(f"no vectors of {refused} here")
        a = te.placeholder((size,), "float32", "a")
        return te.create_prim_func([a, te.compute((size,), lambda i: a[i] + a[i])], "int64")

    return for_each_region(lower)


@I.ir_module
class TwoSizes:
    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((5,), "float32")):
        with R.dataflow():
            a = R.add(x, x)
            b = R.add(y, y)
            c = R.exp(a)
            R.output(b, c)
        return (b, c)


def test_a_region_that_fails_goes_back_with_its_reason_and_the_rest_stays():
    byoc.register_target_hooks(VENDOR, relax_to_tir=doubling(refused=5))
    mod = byoc.partition(TwoSizes, VENDOR)
    assert [(e.op, e.compiler, e.stage) for e in read_log(mod)] == [("relax.add", VENDOR, "lower")]
    assert "no vectors of 5 here" in read_log(mod)[0].reason
    executable = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    x, y = X, Y[:5]
    for got, want in zip(run(executable, x, y), [y + y, np.exp(x + x)], strict=True):
        assert_right(got, want, 1e-6, elementwise=True)
    assert sum(f"{VENDOR}_" in line for line in executable.as_text().splitlines()) > 0


def test_strict_raises_while_partitioning_and_while_building():
    byoc.register_target_hooks(VENDOR, relax_to_tir=doubling(refused=5))
    passes = [byoc.AnnotateExternalCompiler(VENDOR), byoc.PartitionGraph(strict=True)]
    with pytest.raises(UnsupportedError, match="no vectors of 5 here"):
        tvm.transform.Sequential(passes)(TwoSizes)
    byoc.register_target_hooks(VENDOR, tir_to_runtime=lambda mod, target: None, override=True)
    with pytest.raises(UnsupportedError, match="tir_to_runtime returned None; expected a runtime Module"):
        build(Add, strict=True)


BAD_RUNTIMES = {
    "raises": (lambda mod, target: 1 / 0, "ZeroDivisionError"),
    "nothing": (lambda mod, target: None, "returned None"),
    "not exportable": (lambda mod, target: tvm.runtime.system_lib(), "cannot be exported"),
    "lacks the function": (
        lambda mod, target: tvm.get_global_func("target.build.llvm")(tvm.IRModule(), target),
        "has no function",
    ),
}


@pytest.mark.parametrize("name", BAD_RUNTIMES)
def test_a_failing_tir_to_runtime_gives_the_region_back(name):
    hook, reason = BAD_RUNTIMES[name]
    byoc.register_target_hooks(VENDOR, tir_to_runtime=hook)
    mod = byoc.partition(Add, VENDOR)
    (entry,) = read_log(lowered(mod))
    assert (entry.op, entry.stage) == ("relax.add", "codegen")
    assert reason in entry.reason
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)


def test_only_the_culprit_of_a_failing_tir_to_runtime_goes_back():
    def tir_to_runtime(mod, target):
        if any(int(d) == 5 for f in mod.functions.values() for p in f.params for d in p.shape):
            raise RuntimeError("vectors of 5")
        return tvm.tirx.build(mod, target)

    byoc.register_target_hooks(VENDOR, relax_to_tir=doubling(), tir_to_runtime=tir_to_runtime, tir_passes=[])
    mod = byoc.partition(TwoSizes, VENDOR)
    log = read_log(lowered(mod))
    assert [e.op for e in log] == ["relax.add"]
    assert "vectors of 5" in log[0].reason


BAD_PRIMFUNCS = {
    "too few": (elementwise(), "has 2 parameters; expected 2 inputs, none or all of 0 constants, and 1 results"),
    "wrong dtype": (
        for_each_region(
            lambda region, builder: te.create_prim_func(
                [te.placeholder((8,), "float64") for _ in range(2)] + [te.compute((8,), lambda i: i)], "int64"
            )
        ),
        'parameter 0 of the PrimFunc, placeholder, is float64[8]; expected R.Tensor((8,), dtype="float32")',
    ),
    "untouched": (tvm.transform.Sequential([]), "relax_to_tir left it as it was"),
    "refused": (
        tvm.transform.module_pass(
            lambda mod, _: tvm.IRModule({gv: refuse_region(f, "not today") for gv, f in mod.functions.items()}),
            opt_level=0,
        ),
        "not today",
    ),
    "removed": (tvm.transform.module_pass(lambda mod, _: tvm.IRModule(), opt_level=0), "removed it"),
}


@pytest.mark.parametrize("name", BAD_PRIMFUNCS)
def test_what_relax_to_tir_must_not_do(name):
    hook, reason = BAD_PRIMFUNCS[name]
    byoc.register_target_hooks(VENDOR, relax_to_tir=hook)
    (entry,) = read_log(byoc.partition(Add, VENDOR))
    assert reason in entry.reason
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)


def test_without_hooks_and_codegen_the_region_goes_back():
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)


def test_what_a_hook_leaves_goes_to_the_codegen():
    byoc.register_target_hooks(VENDOR, relax_to_tir=tvm.transform.Sequential([]))
    called = []

    @byoc.register_codegen(VENDOR)
    def codegen(functions, _options, _constants):
        called.extend(str(f.attrs["global_symbol"]) for f in functions)
        create = tvm.get_global_func("runtime.CSourceModuleCreate")
        return [create(MULTIPLY % f.attrs["global_symbol"], "cc", [f.attrs["global_symbol"]], []) for f in functions]

    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X * Y)
    assert called[-1] == f"{VENDOR}_0"


def c_source(text):
    """A tir_to_runtime hook that returns this C."""
    create = tvm.get_global_func("runtime.CSourceModuleCreate")
    return lambda mod, target: create(text, "c", [gv.name_hint for gv in mod.get_global_vars()], [])


@pytest.mark.parametrize(
    ("text", "why"),
    [("this is no C", "error: "), ("int other() { return 0; }", "has no function ")],
    ids=["no C", "other"],
)
def test_c_that_cannot_be_used_gives_the_region_back(text, why):
    byoc.register_target_hooks(VENDOR, tir_to_runtime=c_source(text))
    (entry,) = read_log(lowered(byoc.partition(Add, VENDOR)))
    assert entry.stage == "codegen"
    assert why in entry.reason
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)


@I.ir_module
class AddHalves:
    @R.function
    def main(x: R.Tensor((8,), "float16"), y: R.Tensor((8,), "float16")):
        with R.dataflow():
            z = R.add(x, y)
            R.output(z)
        return z


def test_float16_for_tvms_c_target_gives_the_region_back():
    byoc.register_target_hooks(VENDOR, target="c")
    (entry,) = read_log(lowered(byoc.partition(AddHalves, VENDOR)))
    assert "half" in entry.reason
    x, y = X.astype("float16"), Y.astype("float16")
    np.testing.assert_array_equal(run(build(AddHalves), x, y)[0], x + y)


def test_a_primfunc_that_tvm_cannot_lower_gives_the_region_back():
    """It would go on through TVM's lowering, and fail the whole build there."""

    def twice_the_same_buffer(region, builder):
        a, b = (te.placeholder((8,), "float32", name) for name in "ab")
        return te.create_prim_func([a, b, a], "int64")

    byoc.register_target_hooks(VENDOR, relax_to_tir=for_each_region(twice_the_same_buffer))
    (entry,) = read_log(lowered(byoc.partition(Add, VENDOR)))
    assert "input_0" in entry.reason or "occurred multiple times" in entry.reason
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)
