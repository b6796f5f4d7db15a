"""Inputs that an output is written over: a cache that is updated where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import execute, probe, run_emitted
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import GraphError, InputError

pytestmark = pytest.mark.native

TANH = {"alg": "tanh", "alpha": 0.0, "beta": 0.0}


def _elementwise(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("eltwise", [x], (6, 6), **TANH)]


def _product_with_itself(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("matmul", [x, x], (6, 6))]


def _read_before(g: GraphBuilder, x: int) -> list[int]:
    """Another output is computed from the old values, by a node that stands before the one that writes."""
    old = g.node("softmax", [x], (6, 6), alg="accurate", axis=1)
    return [g.node("binary", [x, old], (6, 6), alg="add"), old]


def _turned(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("permute", [g.node("eltwise", [x], (6, 6), **TANH)], (6, 6), axes=[1, 0])]


def _turned_source(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("eltwise", [g.node("permute", [x], (6, 6), axes=[1, 0])], (6, 6), **TANH)]


def _early_result(g: GraphBuilder, x: int) -> list[int]:
    """The output is computed, as a view, before the last node that reads the input."""
    first = g.node("eltwise", [g.constant(np.ones((6, 6), "float32"))], (6, 6), **TANH)
    early = g.node("binary", [x, first], (6, 6), alg="mul")
    late = g.node("matmul", [x, early], (6, 6))
    return [g.node("reshape", [early], (6, 6)), late]


def _rolled(g: GraphBuilder, x: int) -> list[int]:
    """A window that moves on by one row."""
    kept = g.node("slice", [x], (5, 6), begin=[1, 0], steps=[1, 1])
    row = g.input((1, 6))
    return [g.node("concat", [kept, row], (6, 6), axis=0)]


def _scratch(g: GraphBuilder, x: int) -> list[int]:
    """The second output must not be computed over the memory of the first."""
    first = g.node("eltwise", [g.node("reshape", [x], (36,))], (36,), **TANH)
    second = g.node("eltwise", [x], (6, 6), alg="abs", alpha=0.0, beta=0.0)
    return [g.node("reshape", [first], (6, 6)), second]


def _itself(g: GraphBuilder, x: int) -> list[int]:
    return [x, g.node("eltwise", [x], (6, 6), **TANH)]


CASES = [
    _elementwise,
    _product_with_itself,
    _read_before,
    _turned,
    _turned_source,
    _early_result,
    _rolled,
    _scratch,
    _itself,
]


def _graph(make: Any) -> tuple[GraphBuilder, list[np.ndarray]]:
    g = GraphBuilder()
    x = g.input((6, 6))
    g.inputs[0]["alias"] = 0
    g.outputs = make(g, x)
    rng = np.random.default_rng(0)
    shapes = [g.tensors[i["tensor"]]["shape"] for i in g.inputs]
    return g, [rng.standard_normal(shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("form", ["module", "source"])
def test_the_input_holds_the_output(make, form, tmp_path):
    g, arguments = _graph(make)
    want = g.evaluate([a.copy() for a in arguments])
    got = execute(g, arguments) if form == "module" else run_emitted(g, arguments, tmp_path)
    assert got[0] is arguments[0]
    for a, b in zip(got, want, strict=True):
        assert_right(a, b.astype(a.dtype), 1e-4, least=0.1, elementwise=True)


def test_an_elementwise_update_copies_nothing():
    g, _ = _graph(_elementwise)
    report = probe(g)
    assert report["ok"]
    assert report["reorders"] == 0


def test_calls_go_on_from_the_state():
    g, arguments = _graph(_rolled)
    import tvm_ffi

    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names())
    module[f"__init_{g.name}"]([])
    cache, want = arguments[0], arguments[0].copy()
    for step in range(10):
        row = np.full((1, 6), step, "float32")
        module[g.name](*map(tvm_ffi.from_dlpack, (cache, row, cache)))
        want = np.concatenate([want[1:], row])
        np.testing.assert_array_equal(cache, want)


def test_other_memory_is_refused():
    import tvm_ffi

    g, (x,) = _graph(_elementwise)
    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names())
    module[f"__init_{g.name}"]([])
    with pytest.raises(InputError, match=r'argument 0 "t0" is updated in place, but output 0 is other memory'):
        module[g.name](*map(tvm_ffi.from_dlpack, (x, np.empty_like(x))))


def _late_reader(g: GraphBuilder, x: int) -> list[int]:
    y = g.node("eltwise", [x], (6, 6), **TANH)
    return [y, g.node("softmax", [x], (6, 6), alg="accurate", axis=1)]


def _late_reader_of_a_view(g: GraphBuilder, x: int) -> list[int]:
    view = g.node("reshape", [x], (36,))
    y = g.node("eltwise", [x], (6, 6), **TANH)
    return [y, g.node("eltwise", [view], (36,), **TANH)]


def _also_an_output(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("eltwise", [x], (6, 6), **TANH), g.node("reshape", [x], (36,))]


def _other_shape(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("reshape", [g.node("eltwise", [x], (6, 6), **TANH)], (36,))]


def _other_dtype(g: GraphBuilder, x: int) -> list[int]:
    return [g.node("reorder", [x], (6, 6), "int32")]


def _another_input(g: GraphBuilder, x: int) -> list[int]:
    return [g.input((6, 6))]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_late_reader, r"node 1 \(softmax\) reads it after output 0 has been written over it"),
        (_late_reader_of_a_view, r"node 2 \(eltwise\) reads it after output 0"),
        (_also_an_output, "output 1 reads it after output 0 has been written over it"),
        (_other_shape, r"output 0, which is float32\[36\], expected float32\[6, 6\]"),
        (_other_dtype, r"output 0, which is int32\[6, 6\], expected float32\[6, 6\]"),
        (_another_input, "is another input or a constant"),
        (lambda g, x: g.inputs[0].update(alias=1) or [g.node("eltwise", [x], (6, 6), **TANH)], "out of range"),
        (lambda g, x: g.inputs.append({"tensor": g.tensor((6, 6)), "alias": 0}) or [x], "another input or a constant"),
    ],
)
def test_what_contradicts_an_alias(make, message):
    g, _ = _graph(make)
    with pytest.raises(GraphError, match=message):
        probe(g)


def test_two_inputs_under_one_output():
    g, _ = _graph(lambda g, x: [g.node("binary", [x, g.input((6, 6))], (6, 6), alg="add")])
    g.inputs[1]["alias"] = 0
    with pytest.raises(GraphError, match="output 0 is written over another input already"):
        probe(g)
