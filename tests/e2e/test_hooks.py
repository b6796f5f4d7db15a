"""Target hooks: a vendor's own way from regions to PrimFuncs and from these to a runtime module.

The first three carry over what TVM's tests of its target hooks asked.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_byoc_dnnl as byoc
from tests.e2e.hook_vendor import (  # noqa: F401 (vendor is a fixture)
    MULTIPLY,
    SUBTRACT,
    VENDOR,
    Add,
    AddTwice,
    X,
    Y,
    build,
    elementwise,
    in_a_fresh_process,
    lowered,
    run,
    vendor,
)
from tests.harness import assert_right
from tvm_byoc_dnnl.vendors.hooks import InlineComposites
from tvm_byoc_dnnl.vendors.namespaces import get_target_options


# ---------------------------------------------------------------- what TVM's own tests ask
def test_tir_external_generation_inline_without_target_instance():
    byoc.register_target_hooks(VENDOR, relax_to_tir=SUBTRACT)
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X - Y)


def test_tir_external_generation_outline_with_target_instance():
    @tvm.transform.module_pass(opt_level=0)
    def subtract_and_attribute(mod, _context):
        attribute = get_target_options(mod, VENDOR)["example_attribute"]
        return elementwise(lambda x, y: x - y - tvm.tirx.const(attribute, "float32"))(mod)

    byoc.register_target_hooks(VENDOR, relax_to_tir=subtract_and_attribute, options={"example_attribute": 0})
    mod = byoc.set_target_options(AddTwice, VENDOR, example_attribute=42)
    assert_right(run(build(mod), X, Y)[0], (X - Y - 42) * 2, 0)
    assert_right(run(build(AddTwice), X, Y)[0], (X - Y) * 2, 0)  # the default


def multiplying(mod, target):
    (name,) = [gv.name_hint for gv in mod.get_global_vars()]
    return tvm.get_global_func("runtime.CSourceModuleCreate")(MULTIPLY % name, "c", [name], [])


def test_runtime_module_generation(tmp_path):
    byoc.register_target_hooks(VENDOR, relax_to_tir=SUBTRACT, tir_to_runtime=multiplying)
    executable = build(Add)
    np.testing.assert_array_equal(run(executable, X, Y)[0], X * Y)
    executable.export_library(str(tmp_path / "m.so"))
    assert in_a_fresh_process(tmp_path / "m.so", X, Y) == (X * Y).tolist()


# ---------------------------------------------------------------- either hook alone
def test_tir_to_runtime_alone_gets_the_translated_region():
    seen = {}

    def tir_to_runtime(mod, target):
        seen.update({gv.name_hint: f for gv, f in mod.functions.items()})
        return tvm.get_global_func("target.build.llvm")(mod, target)

    byoc.register_target_hooks(VENDOR, tir_to_runtime=tir_to_runtime)
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)
    assert list(seen) == [f"{VENDOR}_0"]
    assert seen[f"{VENDOR}_0"].attrs["calling_conv"] == 1  # behind TVM's passes


def test_no_hook_but_a_target(tmp_path):
    byoc.register_target_hooks(VENDOR, target="c")
    executable = build(AddTwice)
    np.testing.assert_array_equal(run(executable, X, Y)[0], (X + Y) * 2)
    executable.export_library(str(tmp_path / "m.so"))
    assert in_a_fresh_process(tmp_path / "m.so", X, Y) == ((X + Y) * 2).tolist()


def test_standard_passes_as_the_hook():
    passes = [InlineComposites(), relax.transform.LegalizeOps()]
    byoc.register_target_hooks(VENDOR, relax_to_tir=passes)
    np.testing.assert_array_equal(run(build(AddTwice), X, Y)[0], (X + Y) * 2)


def test_a_pass_may_leave_primfuncs_in_place_of_regions():
    @tvm.transform.module_pass(opt_level=0)
    def replace(mod, _context):
        kernel = SUBTRACT(mod)
        (pf,) = [f for f in kernel.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        return tvm.IRModule(dict.fromkeys(mod.get_global_vars(), pf))

    byoc.register_target_hooks(VENDOR, relax_to_tir=replace)
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X - Y)


# ---------------------------------------------------------------- TIR passes
def test_a_short_list_of_tir_passes():
    names = []

    @tvm.transform.module_pass(opt_level=0)
    def note(mod, _context):
        names.extend(gv.name_hint for gv in mod.get_global_vars())
        return mod

    t, s = tvm.tirx.transform, tvm.s_tir.transform
    passes = [s.ConvertBlocksToOpaque(), s.LowerOpaqueBlock(), t.FlattenBuffer(), note, t.MakePackedAPI()]
    byoc.register_target_hooks(VENDOR, tir_passes=[*passes, t.LowerTVMBuiltin(), t.LowerIntrin()])
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)
    assert names == [f"{VENDOR}_0"]


def test_no_tir_passes_at_all():
    def tir_to_runtime(mod, target):
        assert all("s_tir" in f.attrs for f in mod.functions.values())  # as relax_to_tir left them
        return tvm.tirx.build(mod, target)

    byoc.register_target_hooks(VENDOR, tir_passes=[], tir_to_runtime=tir_to_runtime)
    np.testing.assert_array_equal(run(build(Add), X, Y)[0], X + Y)


# ---------------------------------------------------------------- order, sharing, what is left alone
@I.ir_module
class Many:
    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
        with R.dataflow():
            a = R.add(x, y)
            b = R.exp(a)
            c = R.add(b, R.const(np.arange(8, dtype="float32")))
            d = R.exp(c)
            e = R.add(d, R.const(np.ones(8, "float32")))
            R.output(e)
        return e


def test_namespaces_run_once_each_in_the_order_of_their_names():
    order = []

    def noting(name):
        @tvm.transform.module_pass(opt_level=0)
        def note(mod, _context):
            order.append((name, sorted(gv.name_hint for gv in mod.get_global_vars())))
            return mod

        return [note, InlineComposites(), relax.transform.LegalizeOps()]

    try:
        byoc.register_annotate_compiler("z_vendor", ["relax.add"])
        byoc.register_target_hooks("z_vendor", relax_to_tir=noting("z_vendor"))
        byoc.register_annotate_compiler("a_vendor", ["relax.exp"])
        byoc.register_target_hooks("a_vendor", relax_to_tir=noting("a_vendor"))
        mod = byoc.partition(Many, ["z_vendor", "a_vendor"])
        order.clear()  # partitioning tried each region by itself
        lowered(mod)
    finally:
        for name in ("z_vendor", "a_vendor"):
            byoc.unregister_compiler(name)
    assert order == [("a_vendor", ["a_vendor_0"]), ("z_vendor", ["z_vendor_0", "z_vendor_1", "z_vendor_2"])]


def test_equal_functions_are_built_once_and_constants_are_arguments():
    built = []

    def tir_to_runtime(mod, target):
        built.append(sorted(gv.name_hint for gv in mod.get_global_vars()))
        return tvm.get_global_func("target.build.llvm")(mod, target)

    byoc.register_target_hooks(VENDOR, tir_to_runtime=tir_to_runtime)
    want = run(tvm.compile(Many, "llvm"), X, Y)[0]
    assert_right(run(build(Many), X, Y)[0], want, 1e-6, elementwise=True)
    assert built == [[f"{VENDOR}_0"]]  # three additions, the same kernel


def test_primfuncs_that_are_there_already_are_left_alone():
    @I.ir_module
    class Given:
        @T.prim_func(private=True, s_tir=True)
        def triple(a: T.Buffer((T.int64(8),), "float32"), b: T.Buffer((T.int64(8),), "float32")):
            for i in range(T.int64(8)):
                with T.sblock("b"):
                    v = T.axis.spatial(T.int64(8), i)
                    b[v] = a[v] * T.float32(3)

        @R.function
        def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
            cls = Given
            with R.dataflow():
                a = R.call_tir(cls.triple, (x,), out_ty=R.Tensor((8,), "float32"))
                b = R.add(a, y)
                R.output(b)
            return b

    seen = []

    @tvm.transform.module_pass(opt_level=0)
    def note(mod, _context):
        seen.append(sorted(gv.name_hint for gv in mod.get_global_vars()))
        return SUBTRACT(mod)

    byoc.register_target_hooks(VENDOR, relax_to_tir=note)
    mod = byoc.partition(Given, VENDOR)
    np.testing.assert_array_equal(run(tvm.compile(mod, "llvm", relax_pipeline="byoc"), X, Y)[0], X * 3 - Y)
    assert seen[-1] == [f"{VENDOR}_0"]
    assert any(gv.name_hint == "triple" for gv in lowered(mod).get_global_vars())


def test_a_primfunc_that_names_the_vendor_goes_to_its_runtime():
    def tir_to_runtime(mod, target):
        assert [gv.name_hint for gv in mod.get_global_vars()] == ["mine"]
        return multiplying(mod, target)

    byoc.register_target_hooks(VENDOR, tir_to_runtime=tir_to_runtime)
    a, b = (te.placeholder((8,), "float32") for _ in range(2))
    kernel = te.create_prim_func([a, b, te.compute((8,), lambda i: a[i] + b[i])], "int64")
    builder = relax.BlockBuilder()
    x, y = (relax.Var(n, relax.TensorType((8,), "float32")) for n in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            callee = builder.add_func(kernel.without_attr("global_symbol").with_attr("Codegen", VENDOR), "mine")
            z = builder.emit_output(relax.op.call_tir(callee, relax.Tuple([x, y]), x.ty))
        builder.emit_func_output(z)
    executable = tvm.compile(builder.get(), "llvm", relax_pipeline="byoc")
    np.testing.assert_array_equal(run(executable, X, Y)[0], X * Y)


# ---------------------------------------------------------------- shapes
@I.ir_module
class Symbolic:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n", 4), "float32")):
        n = T.int64()
        with R.dataflow():
            a = R.add(x, y)
            b = R.reshape(a, R.shape([n * 4]))
            c = R.exp(b)
            d = R.reshape(c, R.shape([n, 2, 2]))
            e = R.add(d, d)
            R.output(b, e)
        return (b, e)


@pytest.mark.parametrize(
    "hooks", [{}, {"target": "c"}, {"relax_to_tir": [InlineComposites(), relax.transform.LegalizeOps()]}], ids=str
)
def test_shape_arguments(hooks):
    byoc.register_annotate_compiler(VENDOR, ["relax.reshape"])
    byoc.register_target_hooks(VENDOR, **hooks)
    x, y = (np.random.default_rng(0).standard_normal((3, 4)).astype("float32") for _ in range(2))
    executable = build(Symbolic)
    assert f"{VENDOR}_0" in executable.as_text()
    for got, want in zip(run(executable, x, y), run(tvm.compile(Symbolic, "llvm"), x, y), strict=True):
        assert_right(got, want, 1e-6, elementwise=True)


# ---------------------------------------------------------------- several C libraries in one
def test_two_vendors_in_c_and_a_host_in_c_link_into_one_library(tmp_path):
    try:
        for name, op in (("c_one", "relax.add"), ("c_two", "relax.exp")):
            byoc.register_annotate_compiler(name, [op])
            byoc.register_target_hooks(name, target="c")
        ops = relax.BlockBuilder()
        x, y = (relax.Var(n, relax.TensorType((8,), "float32")) for n in "xy")
        with ops.function("main", [x, y]):
            with ops.dataflow():
                z = ops.emit(relax.op.exp(ops.emit(relax.op.add(x, y))))
                z = ops.emit_output(ops.emit(relax.op.negative(z)))
            ops.emit_func_output(z)
        executable = build(ops.get(), ["c_one", "c_two"], target="c")
    finally:
        for name in ("c_one", "c_two"):
            byoc.unregister_compiler(name)
    want = -np.exp(X + Y)
    assert_right(run(executable, X, Y)[0], want, 1e-6, elementwise=True)
    executable.export_library(str(tmp_path / "m.so"))
    assert_right(np.array(in_a_fresh_process(tmp_path / "m.so", X, Y), "float32"), want, 1e-6, elementwise=True)
