"""Messages for a user who forgot a step, and for patterns that match the imported graph and not the prepared one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import module, node, onnx_model, rand
from tvm_byoc_dnnl.testing.models import ort_run

pytestmark = pytest.mark.native


def _mod() -> tvm.IRModule:
    return module(lambda b, x, y: b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(x, y)))), (8, 64), (64, 32))


@pytest.mark.parametrize("pipeline", ["default", "zero", None])
def test_regions_without_our_pipeline(pipeline: str | None) -> None:
    mod = byoc.partition(_mod())
    with pytest.raises(byoc.InputError, match=r'regions of dnnl, which .* relax_pipeline="byoc"'):
        tvm.compile(mod, "llvm", **({"relax_pipeline": pipeline} if pipeline else {}))


def test_regions_that_run_codegen_built_are_fine(caplog: pytest.LogCaptureFixture) -> None:
    mod = relax.transform.RunCodegen()(byoc.partition(_mod()))
    run = byoc.Runner(tvm.compile(mod, "llvm"))
    assert_right(run(np.ones((8, 64), "float32"), np.ones((64, 32), "float32")), np.full((8, 32), 64.0, "float32"), 0)
    assert not caplog.records


@pytest.mark.parametrize("pipeline", ["default", "byoc"])
def test_annotated_but_not_partitioned(pipeline: str, caplog: pytest.LogCaptureFixture) -> None:
    mod = byoc.AnnotateExternalCompiler("dnnl")(_mod())
    with caplog.at_level(logging.WARNING):
        tvm.compile(mod, "llvm", relax_pipeline=pipeline)
    assert "annotated for dnnl, but not partitioned" in caplog.text
    assert "PartitionGraph()" in caplog.text


def test_annotated_with_weights_but_not_partitioned() -> None:
    weight = relax.const(np.ones((64, 32), "float32"))
    mod = module(lambda b, x: b.emit(relax.op.matmul(x, weight)), (8, 64))
    with pytest.raises(byoc.InputError, match=r"annotated for dnnl, but not partitioned.*PartitionGraph\(\)"):
        tvm.compile(byoc.AnnotateExternalCompiler("dnnl")(mod), "llvm", relax_pipeline="byoc")


@pytest.mark.parametrize("compile_it", [byoc.compile, lambda mod: tvm.compile(mod, "llvm")])
def test_nothing_is_said_of_other_modules(compile_it: object, caplog: pytest.LogCaptureFixture) -> None:
    compile_it(_mod())  # type: ignore[operator]
    assert not caplog.records


def test_errors_of_others_stay_what_they_are() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        tvm.compile(_mod(), "llvm", relax_pipeline="nonsense")


@pytest.fixture
def erfs() -> Iterator[None]:
    """A vendor whose pattern looks for the parts of a gelu, which are one operator again in the prepared module."""
    byoc.register_pattern("erf_npu", "erf_one", is_op("relax.add")(is_op("relax.erf")(wildcard()), wildcard()))
    yield
    byoc.unregister_compiler("erf_npu")


def _gelu() -> onnx.ModelProto:
    nodes = [node("Div", ["x", "r"], ["d"]), node("Erf", ["d"], ["e"]), node("Add", ["e", "one"], ["a"])]
    nodes += [node("Mul", ["x", "a"], ["m"]), node("Mul", ["m", "half"], ["y"])]
    numbers = {"r": 2**0.5, "one": 1.0, "half": 0.5}
    return onnx_model(nodes, {"x": (2, 8)}, {k: np.array(v, "float32") for k, v in numbers.items()})


def _conv_norm() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"])]
    nodes.append(node("Relu", ["n"], ["y"]))
    constants = {"w": rand(4, 3, 3, 3), "s": rand(4), "b": rand(4), "m": rand(4), "v": np.abs(rand(4))}
    return onnx_model(nodes, {"x": (1, 3, 8, 8)}, constants)


def test_explain_says_that_a_pattern_lost_its_operator(erfs: None) -> None:
    (advice,) = [line for line in byoc.explain(_gelu(), "erf_npu").advice if "erf_one" in line]
    assert advice.startswith("erf_npu.erf_one matches 1 place of the model as imported and none as prepared")
    assert "relax.erf" in advice and "prepare=False" in advice


def test_explain_says_nothing_of_patterns_that_match_or_never_did(erfs: None) -> None:
    x = node("Erf", ["x"], ["e"])
    kept = onnx_model([x, node("Add", ["e", "one"], ["y"])], {"x": (2, 8)}, {"one": np.array(1.0, "float32")})
    for model in (kept, _conv_norm()):
        assert not any("erf_one" in line and "prepare" in line for line in byoc.explain(model, "erf_npu").advice)


@pytest.mark.parametrize("prepare", [False, True])
def test_prepare_of_partition_and_compile(prepare: bool) -> None:
    mod = byoc.partition(byoc.to_relax(_conv_norm()), prepare=prepare)
    assert ("relax.nn.batch_norm" in mod.script()) == (not prepare)
    x = rand(1, 3, 8, 8)
    (want,) = ort_run(_conv_norm(), {"x": x})
    assert_right(byoc.Runner(byoc.compile(_conv_norm(), prepare=prepare))(x), want, 1e-4, least=1.0, elementwise=True)
