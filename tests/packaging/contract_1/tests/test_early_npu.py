"""The backend is found, conforms, and computes a model beside the others."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance

RNG = np.random.default_rng(0)
A, B, C = (RNG.standard_normal((3, 5)).astype("float32") for _ in range(3))


def model() -> tvm.IRModule:
    """``softmax(relu(a·b + c))``: early_npu takes three calls, and not the softmax."""
    params = [relax.Var(name, relax.TensorType((3, 5), "float32")) for name in "abc"]
    a, b, c = params
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            active = relax.op.nn.relu(relax.op.add(relax.op.multiply(a, b), c))
            result = builder.emit_output(relax.op.nn.softmax(active))
        builder.emit_func_output(result)
    return builder.get()


def expected() -> np.ndarray:
    exponentials = np.exp(np.maximum(A * B + C, 0))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def codegens(mod: tvm.IRModule) -> list[str]:
    return [str(f.attrs["Codegen"]) for f in mod.functions.values() if f.attrs and "Codegen" in f.attrs]


def test_it_is_found_by_its_entry_point() -> None:
    assert "early_npu" in byoc.compilers()


def test_it_conforms() -> None:
    report = run_conformance("early_npu", share=0.1)
    assert report.ok, report.to_text()
    assert "early_npu.multiply_add" in {case.subject for case in report.cases if case.status == "taken"}


def test_a_model_is_right_and_runs_from_a_file(tmp_path) -> None:
    partitioned = byoc.partition(model(), "early_npu")
    assert codegens(partitioned) == ["early_npu"]
    composites = [line for line in partitioned.script().splitlines() if "Composite" in line]
    assert any("early_npu.multiply_add" in line for line in composites)
    library = tmp_path / "model.so"
    byoc.compile(model(), "early_npu", strict=True).export_library(str(library))
    np.testing.assert_allclose(byoc.load(library)(A, B, C), expected(), rtol=1e-5)


def sources(module: tvm.runtime.Module) -> list[str]:
    """The C source in a module and in those that it imports."""
    own = [module.inspect_source()] if module.kind == "c" else []
    return [*own, *(source for m in module.imports for source in sources(m))]


def test_an_option_reaches_the_generated_code() -> None:
    for unroll in (False, True):
        executable = byoc.compile(model(), "early_npu", options={"early_npu": {"unroll": unroll}})
        (source,) = sources(executable.mod)
        assert ("unroll-loops" in source) == unroll
        got = byoc.Runner(executable)(A, B, C)
        np.testing.assert_allclose(got, expected(), rtol=1e-5)


def test_what_it_does_not_take_has_a_reason() -> None:
    x = relax.Var("x", relax.TensorType((4,), "float64"))
    verdict = byoc.get_annotate_compiler("early_npu", "relax.abs")(None, [x])
    assert verdict == byoc.Reject("dtype float64; early_npu computes in float32 only")
