"""Fall-back while code is generated: what passed partitioning and fails in the pipeline."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.failing_vendor import reasons, run, vendors
from tvm_byoc_dnnl.core.compilation import compiling
from tvm_byoc_dnnl.core.errors import NativeLibraryError, UnsupportedError
from tvm_byoc_dnnl.graph.cost import RegionPolicy
from tvm_byoc_dnnl.ir.functions import dissolve_regions
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of
from tvm_byoc_dnnl.pipeline.metadata import read_metadata
from tvm_byoc_dnnl.pipeline.regions import build_regions
from tvm_byoc_dnnl.vendors.codegen import check_sources

T = R.Tensor((4, 4), "float32")


@I.ir_module
class Chain:
    @R.function
    def main(x: T) -> T:
        with R.dataflow():
            a = R.add(x, x)
            b = R.exp(a)
            c = R.multiply(b, a)
            R.output(c)
        return c


X = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
EXPECTED = np.exp(X + X) * (X + X)


def built(mod, **options):
    """The calls of main after the codegens, and the module."""
    mod = build_regions(mod, **options)[1]
    calls = [v for _, v in bindings_of(mod["main"]) if isinstance(v, relax.Call)]
    names = [str(c.args[0].global_symbol) if c.op.name == "relax.call_dps_packed" else c.op.name for c in calls]
    return names, mod


def test_healthy_regions_are_generated_once():
    with vendors("va") as va, compiling():
        mod = byoc.partition(Chain, "va")
        va.attempts.clear()
        names, mod = built(mod)
        assert names == ["va_0"]
        assert len(va.attempts) == 1
        assert reasons(mod) == []


def test_compile_tries_a_region_as_often_as_the_passes_do():
    with vendors("va") as va:
        with compiling():
            built(byoc.partition(Chain, "va"))
        by_passes = list(va.attempts)
        va.attempts.clear()
        byoc.compile(Chain, "va")
        assert va.attempts == by_passes


FAULTS = {
    "raises": ("codegen", lambda ops: 1 / 0 if "relax.exp" in ops else None, "ZeroDivisionError: division by zero"),
    "out of memory": ("codegen", lambda ops: [].extend("x" for _ in _exhausted(ops)), "MemoryError: 3 PB"),
    "wrong C": ("source", lambda ops: "int main( { broken" if "relax.exp" in ops else None, "error: "),
    "other C": ("source", lambda ops: "int other() { return 0; }" if "relax.exp" in ops else None, "has no function "),
}


def _exhausted(ops):
    if "relax.exp" in ops:
        raise MemoryError("3 PB")
    return []


@pytest.mark.parametrize(("stage", "fault", "why"), FAULTS.values(), ids=FAULTS)
def test_a_call_whose_code_cannot_be_generated_goes_back(stage, fault, why):
    with vendors("va") as va:  # portable: partitioning lowers and plans, and generates nothing
        mod = byoc.partition(Chain, "va")
        assert len([f for f in mod.functions.values() if codegen_of(f)]) == 1
        va.faults[stage] = fault
        names, done = built(mod)
        assert names == ["va_0", "relax.exp", "va_1"]
        (reason,) = reasons(done)
        assert reason.startswith("b relax.exp va codegen: ")
        assert why in reason
        assert_right(run(mod, X), EXPECTED)


def test_the_compiled_model_knows_the_reason(tmp_path):
    with vendors("va") as va:
        va.faults["codegen"] = FAULTS["raises"][1]
        byoc.compile(Chain, "va").export_library(str(tmp_path / "m.so"))
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "m.so")), tvm.cpu())
    (entry,) = read_metadata(vm)["log"]
    assert entry["op"] == "relax.exp"
    assert entry["stage"] == "codegen"
    assert "ZeroDivisionError" in entry["reason"]


def test_strict_raises_instead():
    with vendors("va") as va:
        mod = byoc.partition(Chain, "va")
        va.faults["codegen"] = FAULTS["raises"][1]
        for compile_it in (
            lambda: build_regions(mod, strict=True),
            lambda: byoc.compile(Chain, "va", strict=True),
        ):
            with pytest.raises(UnsupportedError, match=r"relax\.exp \(b in main\): va: codegen: ZeroDivisionError"):
                compile_it()
        assert_right(byoc.Runner(byoc.compile(Chain, "va"))(X), EXPECTED)


def test_the_next_compiler_takes_over():
    with vendors("va", "vb") as (va, _):
        mod = byoc.partition(Chain, ["va", "vb"])
        va.faults["codegen"] = FAULTS["raises"][1]
        assert built(mod)[0] == ["va_0", "vb_0", "va_1"]
        assert_right(run(mod, X), EXPECTED)


def test_a_combination_is_cut():
    with vendors("va") as va:
        mod = byoc.partition(Chain, "va")
        va.fail("codegen", "relax.exp", "relax.multiply")
        names, done = built(mod)
        assert names == ["va_0", "va_1"]
        assert "works, but not in one region with" in reasons(done)[0]
        assert_right(run(mod, X), EXPECTED)


BREAKS = {"one call": ("relax.multiply",), "two calls together": ("relax.exp", "relax.multiply")}


@pytest.mark.parametrize("ops", BREAKS.values(), ids=BREAKS)
@pytest.mark.parametrize("whose", ["the module", "va"])
def test_what_breaks_while_code_is_generated_makes_no_more_regions_than_allowed(ops, whose):
    @I.ir_module
    class Long:
        @R.function
        def main(x: T) -> T:
            with R.dataflow():
                a = R.exp(x)
                b = R.exp(a)
                c = R.multiply(b, b)
                d = R.exp(c)
                e = R.sin(d)
                f = R.add(e, e)
                R.output(f)
            return f

    limit = RegionPolicy(max_regions=2)
    with vendors("va") as va:
        if whose == "va":
            byoc.register_namespace("va", policy=limit)
        mod = byoc.partition(Long, "va", policy=limit if whose == "the module" else None)
        assert len([f for f in mod.functions.values() if codegen_of(f)]) == 2
        va.fail("codegen", *ops)
        names, done = built(mod)
        assert len([name for name in names if name.startswith("va_")]) == 2, "not three: the failed one in two parts"
        assert f"{whose} may have 2 region(s), and others have more operations" in str(reasons(done))
        assert_right(run(mod, X), run(Long, X, pipeline="default"))


def test_a_compiler_without_a_codegen_gives_everything_back():
    byoc.register_annotate_compiler("vc", ["relax.add", "relax.exp"])
    try:
        mod = byoc.partition(Chain, "vc")
        assert any(codegen_of(f) for f in mod.functions.values())
        names, done = built(mod)
        assert names == ["relax.add", "relax.exp", "relax.multiply"]
        assert "'vc' has registered no codegen" in reasons(done)[0]
    finally:
        byoc.unregister_compiler("vc")


def test_a_codegen_that_returns_the_wrong_thing():
    with vendors("va", portable=False):
        for wrong in ([], None, "a module", ["a module"]):
            byoc.register_codegen("va", lambda functions, options, names, made=wrong: made, override=True)
            mod = byoc.partition(Chain, "va")
            assert f"the codegen of 'va' returned {wrong!r}; expected " in reasons(mod)[0]


def test_regions_that_work_only_apart_from_each_other():
    """The codegen fails for the module and for no region of it: what that compiler has goes back."""

    @I.ir_module
    class M:
        @R.function
        def main(x: T) -> T:
            with R.dataflow():
                a = R.exp(x)
                b = R.sin(a)
                c = R.add(b, x)
                R.output(c)
            return c

    with vendors("va", portable=False) as va:
        one_by_one = va._codegen

        def only_one(functions, options, names):
            if len(functions) > 1:
                raise RuntimeError("one region per process")
            return one_by_one(functions, options, names)

        byoc.register_codegen("va", only_one, override=True)
        mod = byoc.partition(M, "va")
        assert len([f for f in mod.functions.values() if codegen_of(f)]) == 2
        names, done = built(mod)
        assert names == ["relax.exp", "relax.sin", "relax.add"]
        assert "all regions of the module together: RuntimeError: one region per process" in reasons(done)[0]


def test_a_failure_that_is_no_regions_fault_is_raised():
    with vendors("va") as va:
        mod = byoc.partition(Chain, "va")
        failures = iter([RuntimeError("only the first time")])

        def once(ops):
            for error in failures:
                raise error

        va.faults["codegen"] = once
        with pytest.raises(RuntimeError, match="only the first time"):
            build_regions(mod)


def test_a_missing_library_is_no_regions_fault():
    with vendors("va") as va:
        mod = byoc.partition(Chain, "va")
        va.fail("codegen", "relax.exp", error=NativeLibraryError("libva.so is not there"))
        with pytest.raises(NativeLibraryError, match=r"libva\.so"):
            build_regions(mod)


@pytest.mark.parametrize("compiler", ["", "/bin/false"], ids=["none", "a broken one"])
def test_c_source_without_a_compiler(monkeypatch, compiler):
    monkeypatch.setattr("tvm.support.cc.get_cc", lambda: compiler)
    source = tvm.get_global_func("runtime.CSourceModuleCreate")("int x;", "cc", ["x"], [])
    with pytest.raises(RuntimeError, match="there is no C.. compiler" if not compiler else "false"):
        check_sources([source])


# ---------------------------------------------------------------- regions dissolved
def dissolved_and_formed_again(mod, *inputs):
    """Undo the partitioning and do it again: the same regions, the same numbers."""
    regions = [gv for gv, f in mod.functions.items() if codegen_of(f)]
    assert regions
    again = byoc.PartitionGraph()(dissolve_regions(mod, regions))
    assert relax.analysis.well_formed(again) is not False
    assert len([f for f in again.functions.values() if codegen_of(f)]) == len(regions)
    assert_right(run(again, *inputs), run(mod, *inputs), 1e-6)


def test_regions_with_several_results():
    @I.ir_module
    class M:
        @R.function
        def main(x: T) -> T:
            with R.dataflow():
                a = R.exp(x)
                b = R.add(a, x)
                c = R.sin(a)
                d = R.cos(b)
                e = R.subtract(c, d)
                R.output(e)
            return e

    with vendors("va"):
        dissolved_and_formed_again(byoc.partition(M, "va"), X)


def test_regions_with_symbols_used_twice():
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m", 4), "float32")):
            with R.dataflow():
                a = R.exp(R.add(x, x))
                b = R.exp(R.add(y, y))
                c = R.concat((a, b), axis=0)
                R.output(c)
            return c

    with vendors("va"):
        mod = byoc.partition(M, "va")
        dissolved_and_formed_again(mod, X[:1], X[:3])


def test_regions_in_branches():
    @I.ir_module
    class M:
        @R.function
        def main(x: T, flag: R.Tensor((), "bool")) -> T:
            if flag:
                r = R.exp(R.add(x, x))
            else:
                r = R.sin(R.add(x, x))
            return r

    with vendors("va"):
        dissolved_and_formed_again(byoc.partition(M, "va"), X, np.array(True))


def test_a_region_is_tried_once_in_a_compilation_and_again_where_it_has_left_one():
    with vendors("va") as va:
        with compiling():
            mod = byoc.partition(Chain, "va")
            va.attempts.clear()
            built(mod)
            assert len(va.attempts) == 1  # its module is made
            va.fail("plan", "relax.exp")
            assert built(mod)[0] == ["va_0"]
        names, done = built(mod)
        assert names == ["va_0", "relax.exp", "va_1"]
        assert "plan cannot do relax.exp" in reasons(done)[0]
