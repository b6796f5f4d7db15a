"""Weights that `compile` reads from a file are scaled where they are, and those of anybody else are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.harness import assert_right
from tests.unit.importing import node, onnx_model, prepared, rand
from tvm_byoc_dnnl import RegionPolicy, Runner, compile, partition
from tvm_byoc_dnnl.core.compilation import OverwritableWeights
from tvm_byoc_dnnl.frontends import imported, to_relax
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, constant_numpy
from tvm_byoc_dnnl.prepare import Prepare
from tvm_byoc_dnnl.testing.models import ort_run, random_inputs

NORM = ["g", "be", "m", "v"]
CONSTANTS = {
    "w": rand(32, 32, 3, 3, seed=2),
    "s": rand(32, 1, 1, seed=3),
    **dict(zip(NORM, [*(rand(32, seed=i) for i in (4, 5, 6)), np.abs(rand(32, seed=7)) + 0.5], strict=True)),
}
SCALED = [
    node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
    node("BatchNormalization", ["c", *NORM], ["n"]),
    node("Mul", ["n", "s"], ["t"]),
]
FINAL = node("Relu", ["t"], ["y"])
# Models in which a second reader wants the weights as they are.
READ_TWICE: dict[str, list[onnx.NodeProto]] = {
    "two convolutions": [*SCALED, node("Conv", ["t", "w"], ["y"])],
    "as numbers": [*SCALED, node("GlobalAveragePool", ["t"], ["q"]), node("Mul", ["q", "w"], ["y"])],
    "under another name": [node("Identity", ["w"], ["w2"]), *SCALED, node("Conv", ["t", "w2"], ["y"])],
    "as a view": [
        node("Reshape", ["w", "flat"], ["w2"]),
        *SCALED,
        node("Reshape", ["w2", "full"], ["w3"]),
        node("Conv", ["t", "w3"], ["y"]),
    ],
    "as a view of two": [
        node("Cast", ["w"], ["w2"], to=onnx.TensorProto.FLOAT),
        node("Conv", ["x", "w2"], ["c"], pads=[1] * 4),
        *SCALED[1:],
        node("Conv", ["t", "w2"], ["y"]),
    ],
}


def saved(path: Path, nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    constants = {**CONSTANTS, "flat": np.array([32, -1]), "full": np.array([32, 32, 3, 3])}
    model = onnx_model(nodes, {"x": (1, 32, 8, 8)}, constants)
    onnx.save(model, path)
    return model


def right(path: Path, model: onnx.ModelProto, **options: Any) -> None:
    feeds = random_inputs(model)
    got = Runner(compile(path, **options))(*feeds.values())
    assert_right(got, ort_run(model, feeds)[0], 1e-4)


def weights_of(mod: Any) -> list[Any]:
    calls = [value for _, value in bindings_of(mod["main"])]
    return [call.args[1] for call in calls if getattr(getattr(call, "op", None), "name", "") == "relax.nn.conv2d"]


def test_weights_of_a_file_stay_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = saved(path, [*SCALED, FINAL])
    own = OverwritableWeights()
    mod = imported(path, own=own)
    (before,) = weights_of(mod)
    assert list(own) == [before]
    (after,) = weights_of(Prepare(own=own)(mod))
    assert not own and after.same_as(before)
    right(path, model)


@pytest.mark.parametrize("what", READ_TWICE)
def test_weights_that_are_read_twice(what: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", READ_TWICE[what])
    own = OverwritableWeights()
    imported(tmp_path / "m.onnx", own=own)
    assert not own
    right(tmp_path / "m.onnx", model)


@pytest.mark.parametrize("kind", ["initializer", "node"])
def test_copies_of_weights_that_the_caller_has(kind: str, tmp_path: Path) -> None:
    """A `ModelProto` stays as it is; TVM's tensors are copies of its weights."""
    model = saved(tmp_path / "m.onnx", [*SCALED, FINAL])
    if kind == "node":
        (weights,) = [t for t in model.graph.initializer if t.name == "w"]
        model.graph.node.insert(0, node("Constant", [], ["w"], value=weights))
        model.graph.initializer.remove(weights)
    before = model.SerializeToString()
    feeds = random_inputs(model)
    want = ort_run(model, feeds)[0]
    own = OverwritableWeights()
    Prepare(own=own)(imported(model, own=own))
    assert not own
    for _ in range(2):
        assert_right(Runner(compile(model))(*feeds.values()), want, 1e-4)
    assert model.SerializeToString() == before


def test_a_model_without_a_region_keeps_its_weights(tmp_path: Path) -> None:
    """TVM then gets the prepared functions, as it does with a region."""
    model = saved(tmp_path / "m.onnx", [*SCALED, FINAL])
    right(tmp_path / "m.onnx", model, policy=RegionPolicy(max_regions=0))
    right(tmp_path / "m.onnx", model, prepare=False)


def test_a_module_of_the_caller_stays_as_it_is(tmp_path: Path) -> None:
    saved(tmp_path / "m.onnx", [*SCALED, FINAL])
    mod = to_relax(tmp_path / "m.onnx")
    (weights,) = weights_of(mod)
    prepared(mod)
    partition(mod)
    compile(mod)
    np.testing.assert_array_equal(constant_numpy(weights), CONSTANTS["w"])
