"""output="source": regions are C in the model's library, which needs libdnnl and TVM's runtime, not this package."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.e2e.source_outputs import compare_outputs, compile_source
from tests.harness import Case, assert_right, const, data
from tvm_byoc_dnnl.pipeline.executable import SourceExecutable
from tvm_byoc_dnnl.testing.models import LIGHT_MODELS, light_model, random_inputs

#: What gcc is given: lines for each step, and of the longest function, which grows as the network does.
LINES_PER_STEP, LINES_PER_FUNCTION = 40, 4
QUICK = ("shufflenet",)


def sources(ex):
    return ex.mod._collect_from_import_tree(lambda module: module.kind == "c")


def two_regions(x, w, v):
    """A call that stays with TVM between two regions; two outputs."""
    h = relax.op.nn.relu(relax.op.matmul(x, w))
    y = relax.op.matmul(relax.op.cumsum(h, axis=1), v)
    return relax.op.nn.softmax(y, axis=-1), h


def padded(x, w):
    """Fills, views, a residual, integer arguments of steps."""
    y = relax.op.nn.relu(relax.op.nn.conv2d(x, w, padding=1))
    pooled = relax.op.nn.max_pool2d(relax.op.nn.pad(y, [0, 0, 0, 0, 1, 1, 1, 1]), (3, 3))
    return relax.op.add(
        relax.op.nn.conv2d(relax.op.concat([y, x], axis=1), relax.op.concat([w, w], axis=1), padding=1), pooled
    )


def cases():
    weights = {"low": -0.1, "high": 0.1}
    return {
        "two_regions": Case(two_regions, (data(17, 33), const(33, 41), const(41, 7))),
        "padded": Case(padded, (data(2, 32, 9, 11), const(32, 32, 3, 3, **weights))),
        "bfloat16": Case(
            lambda x, w: relax.op.nn.gelu(relax.op.matmul(x, w)),
            (data(19, 64, dtype="bfloat16"), const(64, 48, dtype="bfloat16", **weights)),
        ),
        "no_constants": Case(
            lambda x, y: relax.op.nn.softmax(relax.op.matmul(x, y), axis=-1), (data(9, 64), data(64, 96))
        ),
        # read in place: a bias and a scale need no packing
        "resident": Case(lambda x, s: relax.op.nn.relu(relax.op.multiply(x, s)), (data(64, 1024), const(64, 1024))),
    }


CASES = cases()


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.sweep) for n in LIGHT_MODELS])
def test_a_network_gives_the_modules_bits(name):
    model = light_model(name)
    comparison = compare_outputs(byoc.partition(byoc.to_relax(model)), list(random_inputs(model).values()))
    assert (comparison.regions, comparison.sources, comparison.refusals) == (1, 1, [])
    assert not comparison.differing


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_graph_gives_the_modules_bits(case):
    arrays = [a for o, a in zip(case.operands, case.arrays, strict=True) if not o.constant]
    comparison = compare_outputs(case.partitioned, arrays)
    assert comparison.sources == comparison.regions > 0
    assert not comparison.differing


@pytest.mark.parametrize("name", QUICK)
def test_the_source_is_readable_stable_and_short(name):
    model = light_model(name)
    (module,) = sources(byoc.compile(model, output="source"))
    (again,) = sources(byoc.compile(model, output="source"))
    text = module.inspect_source()
    assert text == again.inspect_source()
    assert "/* relax.nn.conv2d" in text and "dnnl_convolution_forward_primitive_desc_create" in text
    assert "__tvm_ffi_dnnl_0(void* self, const TVMFFIAny* args" in text
    assert len(text) < 1e6, "weights of 100 MB are not printed"
    steps = text.count("_primitive_desc_create(") + text.count("byoc_use_kernel(")
    longest = max(part.count("\n") for part in text.split("\n}\n"))
    assert text.count("\n") < LINES_PER_STEP * steps
    assert longest < LINES_PER_FUNCTION * steps


_FRESH = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tvm_byoc_dnnl":
            raise ImportError("blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import tvm
from tvm import relax
vm = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
np.save(sys.argv[3], vm["main"](tvm.runtime.tensor(np.load(sys.argv[2]))).numpy())
assert "libtvm_byoc_dnnl" not in open("/proc/self/maps").read()
"""


@pytest.mark.parametrize("compiled_before", [False, True], ids=["source", "object"])
def test_the_library_needs_neither_this_package_nor_options(compiled_before, tmp_path):
    case = CASES["padded"]
    ex = compile_source(case.partitioned)[0]
    if compiled_before:
        relax.VirtualMachine(ex, tvm.cpu())
        assert not sources(ex)
    ex.export_library(tmp_path / "m.so")
    np.save(tmp_path / "x.npy", case.arrays[0])
    paths = [str(tmp_path / f) for f in ("m.so", "x.npy", "y.npy")]
    environment = {**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    subprocess.run([sys.executable, "-c", _FRESH, *paths], check=True, env=environment)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), case.run()[0])


def test_on_another_cpu_it_is_an_error_at_load(tmp_path):
    """Its layouts are those of the machine that it was made on; it must not compute in the wrong ones."""
    case = CASES["padded"]
    compile_source(case.partitioned)[0].export_library(tmp_path / "m.so")
    np.save(tmp_path / "x.npy", case.arrays[0])
    paths = [str(tmp_path / f) for f in ("m.so", "x.npy", "y.npy")]
    environment = {**os.environ, "TVM_DEVICE_BACKEND_AUTOLOAD": "0", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    done = subprocess.run([sys.executable, "-c", _FRESH, *paths], text=True, capture_output=True, env=environment)
    assert done.returncode == 1 and "RuntimeError: dnnl_0: this program was emitted for a CPU of" in done.stderr


def test_two_models_beside_each_other_loaded_twice_and_again(tmp_path):
    """Symbols of two models are the same; a library that is loaded twice is one to the linker."""
    for name in ("resident", "two_regions"):
        compile_source(CASES[name].partitioned)[0].export_library(tmp_path / f"{name}.so")
    for _ in range(3):
        for name in ("resident", "two_regions", "resident"):
            case = CASES[name]
            library = tvm_ffi.load_module(str(tmp_path / f"{name}.so"), keep_module_alive=False)
            machine = relax.VirtualMachine(library, tvm.cpu())
            result = machine["main"](tvm.runtime.tensor(case.arrays[0]))
            got = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
            for g, w in zip(got, case.run(), strict=True):
                np.testing.assert_array_equal(g.numpy(), w)
            del library, machine, result, got


def test_any_number_of_threads_run_one_module():
    case = CASES["padded"]
    run = byoc.Runner(compile_source(case.partitioned)[0])
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(case.arrays[0].shape).astype("float32") for _ in range(4)]
    wanted = [run(x) for x in inputs]
    assert not np.array_equal(wanted[0], wanted[1])
    wrong = []

    def work(i):
        wrong.extend(1 for _ in range(50) if not np.array_equal(run(inputs[i]), wanted[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_function_checks_its_arguments():
    ex, _ = compile_source(CASES["resident"].partitioned)
    (loader,) = ex.jit().imports
    loader.get_function("dnnl_0")  # lets the loader pass the constants
    call = next(m for m in loader.imports if m.kind == "object").get_function("dnnl_0")
    x, y = (tvm.runtime.tensor(np.ones((64, 1024), "float32")) for _ in range(2))
    call(x, y)
    with pytest.raises(ValueError, match=r"dnnl_0: argument 0 .* has shape \[2, 3\], expected \[64, 1024\]"):
        call(tvm.runtime.tensor(np.ones((2, 3), "float32")), y)
    with pytest.raises(ValueError, match=r"output 0 .* has DLPack dtype code 0 with 32 bits, expected code 2"):
        call(x, tvm.runtime.tensor(np.ones((64, 1024), "int32")))
    with pytest.raises(TypeError, match="got 1 arguments, expected 1 inputs and 1 outputs"):
        call(x)
    with pytest.raises(TypeError, match=r"argument 0 .* is not a tensor"):
        call(1, y)


def test_without_the_constants_it_is_an_error_not_a_crash():
    ex, _ = compile_source(CASES["two_regions"].partitioned)
    (loader,) = ex.jit().imports
    call = next(m for m in loader.imports if m.kind == "object").get_function("dnnl_0")
    with pytest.raises(RuntimeError, match="before its constants were set"):
        call(*[tvm.runtime.tensor(np.ones((17, n), "float32")) for n in (33, 41)])


SYMBOLIC = Case(lambda x, w: relax.op.matmul(x, w), (data("n", 64), const(64, 64)), symbols={"n": 32})


def test_symbolic_shapes_become_a_module_with_a_reason():
    ex, noted = compile_source(SYMBOLIC.partitioned)
    assert not sources(ex)
    (entry,) = noted
    assert entry.stage == "output" and entry.name == "dnnl_0" and "shapes depend on" in entry.reason
    got = byoc.Runner(ex)(SYMBOLIC.arrays[0])
    np.testing.assert_array_equal(got, SYMBOLIC.run()[0])
    with pytest.raises(byoc.UnsupportedError, match="strict=True forbids to make modules"):
        byoc.compile(SYMBOLIC.module, output="source", strict=True)


def test_the_option_of_tvms_pass(tmp_path):
    """RunCodegen and tvm.compile by themselves: the user passes the options that SourceExecutable would."""
    case = CASES["two_regions"]
    mod = relax.transform.RunCodegen({"dnnl": {"output": "source"}})(case.partitioned)
    assert [m.kind for m in mod.attrs["external_mods"]] == ["c", "c"]
    ex = tvm.compile(mod, "llvm")
    assert not isinstance(ex, SourceExecutable)
    machine = relax.VirtualMachine(ex.jit(options=byoc.source_options()), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(case.arrays[0]))
    for g, w in zip(got, case.run(), strict=True):
        np.testing.assert_array_equal(g.numpy(), w)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "binary"}, r"'output' of 'dnnl' is 'binary'; expected one of 'module', 'source'"),
        ({"output": 3}, r"option 'output' of 'dnnl' is 3; expected str"),
        ({"optimise": 3}, r"'dnnl' has no option 'optimise'; its options and their defaults: output='module'"),
    ],
)
def test_wrong_options_of_the_pass_are_refused(options, message):
    with pytest.raises(byoc.InputError, match=message):
        relax.transform.RunCodegen({"dnnl": options})(CASES["resident"].partitioned)
    with pytest.raises(byoc.InputError, match=message):
        byoc.compile(CASES["resident"].module, options={"dnnl": options})


def test_the_option_of_one_backend_says_the_same():
    case = CASES["two_regions"]
    ex = byoc.compile(case.module, ["dnnl", "ccompiler"], options={"dnnl": {"output": "source"}})
    assert isinstance(ex, SourceExecutable) and len(sources(ex)) == 2
    for g, w in zip(byoc.Runner(ex)(case.arrays[0]), case.run(), strict=True):
        assert_right(g, w, 1e-6, elementwise=True)


def test_wrong_outputs_are_refused_before_the_work():
    with pytest.raises(byoc.InputError, match="output is 'text'"):
        byoc.compile(CASES["resident"].module, output="text")
    with pytest.raises(byoc.InputError, match="output is 'text'"):
        byoc.byoc_pipeline(output="text")
    with pytest.raises(byoc.InputError, match="output is 'source', but ccompiler has no such option"):
        byoc.compile(CASES["resident"].module, "ccompiler", output="source")


def test_without_a_compiler_it_is_one_clear_error(monkeypatch):
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(byoc.NativeLibraryError, match=r"needs a C\+\+ compiler.*output='module'"):
        byoc.compile(CASES["resident"].module, output="source")
    # ... which a module never needs, also when everything is offloaded
    byoc.Runner(byoc.compile(CASES["resident"].module))


def test_source_that_does_not_compile_goes_back_to_tvm(monkeypatch):
    import dataclasses

    from tvm_byoc_dnnl.vendors.namespaces import namespace

    def broken(graph):
        return tvm.get_global_func("runtime.CSourceModuleCreate")("int = 0;", "c", [graph.name], [])

    ns = namespace("dnnl")
    case = CASES["two_regions"]
    monkeypatch.setattr(ns, "codegen", dataclasses.replace(ns.codegen, create_source=broken))
    ex = byoc.compile(case.module, output="source")
    assert not sources(ex)
    got = byoc.Runner(ex)(case.arrays[0])
    for g, w in zip(got, case.run(partitioned=False), strict=True):
        assert_right(g, w, 1e-5, elementwise=True)
