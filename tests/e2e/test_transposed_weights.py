"""Products whose large weights are stored transposed: right for odd shapes, as module, as source, and from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import onnx_model, rand
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.prepare import constants

#: rows, columns, depth
SHAPES = [(1, 521, 509), (3, 521, 509), (17, 37, 331), (150, 33, 47), (1, 1, 1009), (5, 1009, 1), (2, 3, 10007)]


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights are large here."""
    monkeypatch.setattr(constants, "_TRANSPOSED", 0)


def model(rows: int, columns: int, depth: int, alpha: float = 1.0) -> onnx.ModelProto:
    """relu(alpha · x @ wᵀ + b)"""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1, alpha=alpha),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    weights = rand(columns, depth) / np.float32(np.sqrt(depth))
    return onnx_model(nodes, {"x": (rows, depth)}, {"w": weights, "b": rand(columns, seed=2)})


def expected(made: onnx.ModelProto, x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    w, b = (numpy_helper.to_array(t).astype("float64") for t in made.graph.initializer)
    return np.maximum(alpha * (x @ w.T) + b, 0).astype("float32")


@pytest.mark.parametrize(
    ("shape", "output"),
    [
        *((shape, "module") for shape in SHAPES),
        (SHAPES[0], "source"),
        *(pytest.param(shape, "source", marks=pytest.mark.sweep) for shape in SHAPES[1:]),
    ],
    ids=str,
)
def test_odd_shapes(shape: tuple[int, int, int], output: str) -> None:
    made, x = model(*shape), rand(shape[0], shape[2], seed=3)
    assert_right(byoc.Runner(byoc.compile(made, output=output))(x), expected(made, x), 1e-4)


@pytest.mark.parametrize("weights", [None, "int8"])
def test_scaled_and_compressed(weights: str | None) -> None:
    made, x = model(3, 521, 512, 0.25), rand(3, 512, seed=3)
    error = 3e-6 if weights is None else 2e-2
    assert_right(byoc.Runner(byoc.compile(made, weights=weights))(x), expected(made, x, 0.25), error)


def test_weights_of_many_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    made, x = model(1, 2053, 2053), rand(1, 2053, seed=3)
    mod = byoc.partition(to_relax(made))
    assert "permute_dims" in mod.script(show_meta=False)
    assert_right(byoc.Runner(byoc.compile(mod, compiler=None))(x), expected(made, x), 1e-4)


def test_from_a_file_and_exported(tmp_path: Path) -> None:
    """The same bits as the model in memory; the exported file has the weights once."""
    made, x = model(2, 521, 509), rand(2, 509, seed=3)
    onnx.save(made, tmp_path / "m.onnx")
    ex = byoc.compile(tmp_path / "m.onnx")
    ex.export_library(str(tmp_path / "m.so"))
    assert (tmp_path / "m.so").stat().st_size < 1.5 * 521 * 509 * 4
    result = byoc.Runner(byoc.compile(made))(x)
    np.testing.assert_array_equal(byoc.Runner(ex)(x), result)
    np.testing.assert_array_equal(byoc.load(tmp_path / "m.so")(x), result)


def test_weights_that_are_read_both_ways_are_there_once(tmp_path: Path) -> None:
    """Rows of a table, and their products with the whole table, as in a language model."""
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["x"]),
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
    ]
    table, i = rand(521, 509), np.array([3, 0, 520], "int64")
    made = onnx_model(nodes, {"i": (3,)}, {"w": table}, dtypes={"i": onnx.TensorProto.INT64})
    ex = byoc.compile(made)
    ex.export_library(str(tmp_path / "m.so"))
    assert (tmp_path / "m.so").stat().st_size < 1.5 * table.nbytes
    assert_right(byoc.load(tmp_path / "m.so")(i), (table[i].astype("float64") @ table.T).astype("float32"), 3e-6)
