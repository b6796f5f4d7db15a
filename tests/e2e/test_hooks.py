"""Target hooks: a vendor's own way from regions to PrimFuncs and from these to a runtime module.

The first three carry over what TVM's tests of its target hooks asked.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.hooks import InlineComposites, for_each_region, get_target_options, refuse_region
from tvm_byoc_dnnl.hooks.stage import RunTargetHooks
from tvm_byoc_dnnl.log import read_log

VENDOR = "example_target_hook"
RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(8).astype("float32") for _ in range(2))


@I.ir_module
class Add:
    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
        with R.dataflow():
            z = R.add(x, y)
            R.output(z)
        return z


@I.ir_module
class AddTwice:
    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
        with R.dataflow():
            z = R.add(x, y)
            r = R.multiply(z, R.const(2.0, "float32"))
            R.output(r)
        return r


@pytest.fixture(autouse=True)
def vendor():
    byoc.register_annotate_compiler(VENDOR, ["relax.add"])
    yield
    byoc.unregister_compiler(VENDOR)


def run(executable, *args):
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, args))
    return [t.numpy() for t in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def build(mod, compiler=VENDOR, target="llvm", **options):
    return tvm.compile(byoc.partition(mod, compiler), target, relax_pipeline=byoc.byoc_pipeline(**options))


def lowered(mod):
    """The module behind the hooks."""
    with tvm.target.Target("llvm"):
        return RunTargetHooks()(mod)


def elementwise(*functions):
    """A hook that makes a kernel of several results over vectors of one length, whatever the region computes."""

    def kernel(region, _builder):
        size = region.params[0].ty.shape.values[0]
        ins = [te.placeholder((size,), "float32", p.name) for p in region.params]
        outs = [te.compute((size,), lambda i: function(*(t[i] for t in ins)), "out") for function in functions]  # noqa: B023
        return te.create_prim_func([*ins, *outs], "int64")

    return for_each_region(kernel)


SUBTRACT = elementwise(lambda x, y: x - y)


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
    np.testing.assert_allclose(run(build(mod), X, Y)[0], (X - Y - 42) * 2, rtol=1e-6)
    np.testing.assert_allclose(run(build(AddTwice), X, Y)[0], (X - Y) * 2, rtol=1e-6)  # the default


MULTIPLY = """
#include <tvm/ffi/c_api.h>
static float* data(const TVMFFIAny* a) {
  DLTensor* t = a->type_index == kTVMFFIDLTensorPtr ? (DLTensor*)a->v_ptr : TVMFFITensorGetDLTensorPtr(a->v_obj);
  return (float*)((char*)t->data + t->byte_offset);
}
#ifdef __cplusplus
extern "C"
#endif
TVM_FFI_DLL_EXPORT int __tvm_ffi_%s(void* self, const TVMFFIAny* a, int32_t n, TVMFFIAny* r) {
  for (int i = 0; i < 8; ++i) data(a + 2)[i] = data(a)[i] * data(a + 1)[i];
  return 0;
}
"""


def multiplying(mod, target):
    (name,) = [gv.name_hint for gv in mod.get_global_vars()]
    return tvm.get_global_func("runtime.CSourceModuleCreate")(MULTIPLY % name, "c", [name], [])


def test_runtime_module_generation(tmp_path):
    byoc.register_target_hooks(VENDOR, relax_to_tir=SUBTRACT, tir_to_runtime=multiplying)
    executable = build(Add)
    np.testing.assert_array_equal(run(executable, X, Y)[0], X * Y)
    executable.export_library(str(tmp_path / "m.so"))
    assert in_a_fresh_process(tmp_path / "m.so", X, Y) == (X * Y).tolist()


def in_a_fresh_process(library, *args):
    """The first result of a library in a process that knows nothing but TVM."""
    code = (
        "import sys, json, tvm, numpy as np\n"
        "vm = tvm.relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())\n"
        "args = [tvm.runtime.tensor(np.array(a, 'float32')) for a in json.loads(sys.argv[2])]\n"
        "r = vm['main'](*args)\n"
        "assert not any(m.startswith('tvm_byoc_dnnl') for m in sys.modules), 'our package was needed'\n"
        "print(json.dumps((r if hasattr(r, 'numpy') else r[0]).numpy().tolist()))\n"
    )
    import json

    text = json.dumps([a.tolist() for a in args])
    env = {"PATH": "/usr/bin:/bin", "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code, str(library), text], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
    np.testing.assert_allclose(run(build(Many), X, Y)[0], want, rtol=1e-6)
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
    x, y = (RNG.standard_normal((3, 4)).astype("float32") for _ in range(2))
    executable = build(Symbolic)
    assert f"{VENDOR}_0" in executable.as_text()
    for got, want in zip(run(executable, x, y), run(tvm.compile(Symbolic, "llvm"), x, y), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


# ---------------------------------------------------------------- what fails
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
        np.testing.assert_allclose(got, want, rtol=1e-6)
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
    np.testing.assert_allclose(run(executable, X, Y)[0], want, rtol=1e-6)
    executable.export_library(str(tmp_path / "m.so"))
    np.testing.assert_allclose(in_a_fresh_process(tmp_path / "m.so", X, Y), want, rtol=1e-6)


def test_options_are_checked():
    byoc.register_target_hooks(VENDOR, relax_to_tir=SUBTRACT, options={"level": 2, "fast": False, "scale": 1.0})
    assert get_target_options(Add, VENDOR) == {"level": 2, "fast": False, "scale": 1.0}
    mod = byoc.set_target_options(Add, VENDOR, level=3, scale=2)
    assert get_target_options(mod, VENDOR) == {"level": 3, "fast": False, "scale": 2}
    assert get_target_options(byoc.partition(mod, VENDOR), VENDOR)["level"] == 3
    with pytest.raises(InputError, match=r"no option 'lvl'; its options and their defaults: level=2, fast=False"):
        byoc.set_target_options(Add, VENDOR, lvl=3)
    with pytest.raises(InputError, match=r"option 'level' of .* is 'high'; expected int"):
        byoc.set_target_options(Add, VENDOR, level="high")
    with pytest.raises(InputError, match=r"option 'level' of .* is True; expected int"):
        byoc.set_target_options(Add, VENDOR, level=True)
