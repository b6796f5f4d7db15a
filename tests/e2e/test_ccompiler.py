"""The C compiler as a backend: whole models without TVM's LLVM path, object code in the library, and no compiler."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.ir.relax_utils import codegen_of
from tvm_byoc_dnnl.patterns.ccompiler.ops import compile_object, find_compiler
from tvm_byoc_dnnl.testing.models import light_model, ort_run, random_inputs

op = relax.op
X = np.random.default_rng(0).standard_normal((6, 33)).astype("float32")


def softmax_of_sum() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 33), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.add(x, relax.const(np.linspace(0, 1, 33, dtype="float32"))))
            y = builder.emit_output(builder.emit(op.nn.softmax(y)))
        builder.emit_func_output(y)
    return builder.get()


def run(executable, *args):
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, args)).numpy()


def kinds(module) -> list[str]:
    return [module.kind, *(k for m in module.imports for k in kinds(m))]


def left_to_tvm(mod) -> set[str]:
    """The PrimFuncs that TVM's own code generator gets, but for the empty one that makes a module loadable."""
    with tvm.target.Target("llvm"):
        final = byoc.byoc_pipeline()(mod)
    names = {gv.name_hint for gv, f in final.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    return names - {"byoc_host_anchor"}


WANT = run(tvm.compile(softmax_of_sum(), "llvm"), X)


# ---------------------------------------------------------------- running and exporting
def test_one_call_runs_in_process_and_exports_with_no_options(tmp_path):
    executable = byoc.compile(softmax_of_sum(), compiler=["ccompiler"])
    assert "object" in kinds(executable.mod)  # runs as it is, nothing is linked again
    assert executable.jit().same_as(executable.mod)
    assert_right(run(executable, X), WANT, 1e-5, elementwise=True)
    executable.export_library(str(tmp_path / "m.so"))
    code = (
        "import sys, numpy as np, tvm\n"
        "vm = tvm.relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())\n"
        "np.save(sys.argv[2], vm['main'](tvm.runtime.tensor(np.load(sys.argv[3]))).numpy())\n"
        "assert not any(m.startswith('tvm_byoc_dnnl') for m in sys.modules)\n"
    )
    np.save(tmp_path / "x.npy", X)
    files = [str(tmp_path / n) for n in ("m.so", "y.npy", "x.npy")]
    env = {"PATH": "/usr/bin:/bin", "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert_right(np.load(tmp_path / "y.npy"), WANT, 1e-5, elementwise=True)


def test_nothing_but_c(tmp_path):
    """Host code and regions in C: LLVM is not asked for anything."""
    executable = byoc.compile(softmax_of_sum(), compiler="ccompiler", target="c")
    assert "llvm" not in kinds(executable.mod)
    assert_right(run(executable, X), WANT, 1e-5, elementwise=True)
    executable.export_library(str(tmp_path / "m.so"))
    assert_right(byoc.load(tmp_path / "m.so")(X), WANT, 1e-5, elementwise=True)


@pytest.mark.parametrize("options", [{"optimize": 0}, {"march": "native"}, {"source": True}], ids=str)
def test_options(options, tmp_path):
    executable = byoc.compile(byoc.set_target_options(softmax_of_sum(), "ccompiler", **options), compiler="ccompiler")
    assert ("c" in kinds(executable.mod)) == ("source" in options)
    assert_right(run(executable, X), WANT, 1e-5, elementwise=True)
    executable.export_library(str(tmp_path / "m.so"))
    assert_right(byoc.load(tmp_path / "m.so")(X), WANT, 1e-5, elementwise=True)


def test_without_the_native_library_the_object_is_linked_first(monkeypatch, tmp_path):
    monkeypatch.setattr("tvm_byoc_dnnl.core._native.available", lambda: False)
    executable = byoc.compile(softmax_of_sum(), compiler="ccompiler")
    assert "static_library" in kinds(executable.mod)
    assert_right(run(executable, X), WANT, 1e-5, elementwise=True)
    executable.export_library(str(tmp_path / "m.so"))
    assert (tmp_path / "m.so").is_file()


def test_the_source_can_be_read():
    executable = byoc.compile(softmax_of_sum(), compiler="ccompiler")
    (made,) = [m for m in executable.mod.imports if m.kind == "object"]
    assert "__tvm_ffi_ccompiler_0" in made.inspect_source()
    assert "__restrict__" in made.inspect_source()


def test_views_alone_stay_with_tvm():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 33), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(op.reshape(builder.emit(op.expand_dims(x, 0)), (33, 6))))
        builder.emit_func_output(y)
    mod = byoc.partition(builder.get(), "ccompiler")
    assert not any(codegen_of(f) for f in mod.functions.values())
    executable = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    np.testing.assert_array_equal(run(executable, X), X.reshape(33, 6))


# ---------------------------------------------------------------- no compiler, or one that fails
@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


def test_no_compiler_is_a_reason_and_tvms_path(no_compiler):
    verdict = byoc.get_annotate_compiler("ccompiler", "relax.exp")
    with pytest.raises(UnsupportedError, match="no C compiler: tried cc, gcc, clang on PATH; install gcc or clang"):
        verdict(None, [relax.Var("x", relax.TensorType((4,), "float32"))])
    executable = byoc.compile(softmax_of_sum(), compiler="ccompiler")
    assert set(kinds(executable.mod)) <= {"relax.VMExecutable", "const_loader", "llvm"}
    assert_right(run(executable, X), WANT, 1e-6, elementwise=True)


def test_a_compiler_that_disappears_before_the_build(monkeypatch, tmp_path):
    mod = byoc.partition(softmax_of_sum(), "ccompiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    executable = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    assert "object" not in kinds(executable.mod)
    assert_right(run(executable, X), WANT, 1e-6, elementwise=True)
    with pytest.raises(UnsupportedError, match="no C compiler"):
        tvm.compile(mod, "llvm", relax_pipeline=byoc.byoc_pipeline(strict=True))


def test_which_compiler(monkeypatch):
    assert find_compiler("gcc -m64")[1:] == ["-m64"]
    monkeypatch.setenv("CC", "gcc -pipe")
    assert find_compiler()[1:] == ["-pipe"]
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(UnsupportedError, match="tried '/nowhere/cc' on PATH"):
        find_compiler()


def test_a_compilers_message_is_kept():
    with pytest.raises(UnsupportedError, match=r"-O1 .*-c kernels.c -o kernels.o failed with status 1: kernels.c:1"):
        compile_object("int f( {", ["f"], ["-O1"])


# ---------------------------------------------------------------- whole models
def test_resnet50_leaves_nothing_to_llvm():
    model = light_model("resnet50")
    inputs = random_inputs(model)
    mod = byoc.partition(byoc.to_relax(model), ["dnnl", "ccompiler"])
    assert left_to_tvm(mod) == set()
    got = byoc.Runner(tvm.compile(mod, "llvm", relax_pipeline="byoc"))(*inputs.values())
    (want,) = ort_run(model, inputs)
    assert_right(got, want, 1e-4)


def bert(layers: int = 3, width: int = 64, heads: int = 4, length: int = 24, words: int = 200) -> onnx.ModelProto:
    """BERT as exporters write it: three embeddings, a mask, attention, gelu by erf, a pooler."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}

    def weight(array) -> str:
        name = f"w{len(weights)}"
        weights[name] = np.asarray(array)
        return name

    def noise(*shape) -> str:
        return weight(rng.normal(0, 1.5 / np.sqrt(shape[0]), shape).astype("float32"))

    def node(kind: str, *inputs: str, **attrs) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [f"t{len(nodes)}"], **attrs))
        return nodes[-1].output[0]

    def number(value: float) -> str:
        return weight(np.float32(value))

    def dense(x: str, inner: int, outer: int) -> str:
        return node("Add", node("MatMul", x, noise(inner, outer)), noise(outer))

    def norm(x: str) -> str:
        return node("LayerNormalization", x, noise(width), noise(width), axis=-1, epsilon=1e-12)

    def split(x: str, order: list[int]) -> str:
        shape = weight(np.array([1, length, heads, width // heads], "int64"))
        return node("Transpose", node("Reshape", x, shape), perm=order)

    def gelu(x: str) -> str:
        half = node("Add", node("Erf", node("Div", x, number(2**0.5))), number(1))
        return node("Mul", node("Mul", x, half), number(0.5))

    table = weight(rng.normal(0, 1, (words, width)).astype("float32"))
    kinds_table = weight(rng.normal(0, 1, (2, width)).astype("float32"))
    positions = weight(rng.normal(0, 1, (1, length, width)).astype("float32"))
    x = node("Add", node("Gather", table, "input_ids"), node("Gather", kinds_table, "token_type_ids"))
    x = norm(node("Add", x, positions))
    mask = node("Unsqueeze", "attention_mask", weight(np.array([1, 2], "int64")))
    mask = node("Mul", node("Sub", number(1), node("Cast", mask, to=TensorProto.FLOAT)), number(-1e4))
    for _ in range(layers):
        q, v = (split(dense(x, width, width), [0, 2, 1, 3]) for _ in range(2))
        k = split(dense(x, width, width), [0, 2, 3, 1])
        scores = node("Div", node("MatMul", q, k), number((width // heads) ** 0.5))
        mixed = node("MatMul", node("Softmax", node("Add", scores, mask), axis=-1), v)
        mixed = node("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = node("Reshape", mixed, weight(np.array([1, length, width], "int64")))
        x = norm(node("Add", dense(mixed, width, width), x))
        x = norm(node("Add", dense(gelu(dense(x, width, 4 * width)), 4 * width, width), x))
    first = node("Gather", x, weight(np.int64(0)), axis=1)
    pooled = node("Tanh", dense(first, width, width))
    ids = [
        helper.make_tensor_value_info(n, TensorProto.INT64, [1, length])
        for n in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (x, pooled)]
    graph = helper.make_graph(nodes, "bert", ids, outs, [numpy_helper.from_array(w, n) for n, w in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize("compilers", [["dnnl", "ccompiler"], ["ccompiler"]], ids="-".join)
def test_bert(compilers, tmp_path):
    model = bert()
    ids = np.random.default_rng(1).integers(0, 200, (1, 24))
    mask = (np.arange(24) < 17).astype("int64")[None]
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids % 2).astype("int64")}
    mod = byoc.partition(byoc.to_relax(model), compilers)
    left = {name.rstrip("0123456789") for name in left_to_tvm(mod)}
    # alone, the C backend takes only small products, and no indices of which it is not known where they lie
    assert left == (set() if "dnnl" in compilers else {"matmul", "take", "check_values"})
    executable = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    assert any(gv.name_hint.startswith("ccompiler_") for gv in mod.get_global_vars())
    executable.export_library(str(tmp_path / "m.so"))
    for runner in (byoc.Runner(executable), byoc.load(tmp_path / "m.so")):
        for got, want in zip(runner(inputs), ort_run(model, inputs), strict=True):
            assert_right(got, want, 1e-3, least=0.1, elementwise=True)
