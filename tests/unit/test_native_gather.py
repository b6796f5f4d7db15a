"""Slices by index: every meaning of an index, in modules and in emitted source, and no read outside of the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import execute, probe, run_emitted
from tvm_byoc_dnnl.core.errors import GraphError, UnsupportedError

pytestmark = pytest.mark.native

#: shapes of source and indices, axis
SHAPES: dict[str, tuple[tuple, tuple, int]] = {
    "rows": ((5, 7), (4,), 0),
    "columns": ((3, 5, 7), (2, 3), 1),
    "last": ((3, 5), (6,), 1),
    "one": ((5, 3), (), 0),
    "vector": ((9,), (3, 1), 0),
    "nothing": ((5, 3), (0,), 0),
    "wide": ((11, 4099), (40,), 0),
}


def _graph(name: str, alg: str, width: str = "int64", dtype: str = "float32", constant: bool = False) -> tuple:
    shape, of_indices, axis = SHAPES[name]
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    source = rng.integers(0, 100, shape).astype(dtype)
    indices = rng.integers(0 if alg == "checked" else -20, shape[axis] if alg == "checked" else 20, of_indices)
    arguments = [source]
    x, i = g.input(shape, dtype), None
    if constant:
        i = g.constant(np.asarray(indices, width))
    else:
        i = g.input(of_indices, width)
        arguments.append(np.asarray(indices, width))
    out = (*shape[:axis], *of_indices, *shape[axis + 1 :])
    g.outputs = [g.node("gather", [x, i], out, dtype, alg=alg, axis=axis)]
    return g, arguments


@pytest.mark.parametrize("width", ["int32", "int64"])
@pytest.mark.parametrize("alg", ["checked", "from_end", "clip", "wrap"])
@pytest.mark.parametrize("name", SHAPES)
def test_gather(name, alg, width):
    for constant in (False, True):
        g, arguments = _graph(name, alg, width, constant=constant)
        (got,), (want,) = execute(g, arguments), g.evaluate(arguments)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", "int32", "int8", "uint8", "bool"])
def test_dtypes(dtype):
    g, arguments = _graph("columns", "checked", dtype=dtype)
    (got,), (want,) = execute(g, arguments), g.evaluate(arguments)
    np.testing.assert_array_equal(got, want.astype(got.dtype))


@pytest.mark.parametrize("index", [-1, 5, 2**40, -(2**63)])
@pytest.mark.parametrize("form", ["module", "source"])
def test_a_checked_index_that_is_out_of_range(form, index, tmp_path):
    g, (x, indices) = _graph("rows", "checked")
    indices[2] = index
    with pytest.raises(IndexError, match=f"index {index} is out of range, the axis has 5 elements"):
        execute(g, [x, indices]) if form == "module" else run_emitted(g, [x, indices], tmp_path)


@pytest.mark.parametrize("alg", ["checked", "from_end", "wrap"])
def test_emitted_source(alg, tmp_path):
    g, arguments = _graph("columns", alg)
    (got,), (want,) = run_emitted(g, arguments, tmp_path), g.evaluate(arguments)
    np.testing.assert_array_equal(got, want)


def test_between_primitives_with_constants_and_post_ops():
    g = GraphBuilder()
    rng = np.random.default_rng(0)
    table = g.constant(rng.standard_normal((50, 16)).astype("float32"))
    positions = g.constant(np.array([3, 1, 2], "int64"))
    of_positions = g.node("gather", [table, positions], (3, 16), alg="checked", axis=0)  # known when it is loaded
    i = g.input((2, 3), "int32")
    words = g.node("gather", [table, i], (2, 3, 16), alg="checked", axis=0)
    row = g.node("reshape", [of_positions], (1, 3, 16))
    total = g.node("binary", [words, row], (2, 3, 16), alg="add")
    turned = g.node("permute", [total], (2, 16, 3), axes=[0, 2, 1])
    again = g.input((2,), "int64")
    g.outputs = [g.node("gather", [turned, again], (2, 2, 3), alg="from_end", axis=1)]
    arguments = [rng.integers(0, 50, (2, 3)).astype("int32"), np.array([-1, 5], "int64")]
    (got,), (want,) = execute(g, arguments), g.evaluate(arguments)
    assert_right(got, want.astype(got.dtype), 1e-6, elementwise=True)
    assert "gather" in [node["impl"] for node in probe(g)["nodes"]]


def _malformed(**change: Any) -> GraphBuilder:
    g = GraphBuilder()
    x, i = g.input(change.get("source", (5, 3)), "float32"), g.input((2,), change.get("width", "int64"))
    g.outputs = [g.node("gather", [x, i], change.get("out", (2, 3)), alg=change.get("alg", "clip"), axis=0)]
    return g


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": "uint8"}, "expected indices int32 or int64"),
        ({"out": (3, 3)}, r"the shape of the output is \[3, 3\], expected \[2, 3\]"),
        ({"source": (0, 3)}, "axis 0 has no elements to gather"),
        ({"alg": "raise"}, 'unknown alg "raise", expected one of checked from_end clip wrap'),
    ],
)
def test_malformed(change, message):
    with pytest.raises(GraphError, match=message):
        probe(_malformed(**change))


def test_int64_is_for_indices_alone():
    g = GraphBuilder()
    x, i = g.input((5, 3), "int64"), g.input((2,), "int64")
    g.outputs = [g.node("gather", [x, i], (2, 3), "int64", alg="clip", axis=0)]
    with pytest.raises(UnsupportedError, match="oneDNN computes nothing in int64"):
        execute(g, [np.zeros((5, 3), "int64"), np.zeros(2, "int64")])
