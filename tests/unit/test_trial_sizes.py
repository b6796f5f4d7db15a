"""Sizes with which a graph of unknown sizes is tried, and models whose regions can only be tried with such sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.tvm_version import open_cast
from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.graph import PortableGraph, Tensor, evaluate
from tvm_byoc_dnnl.graph.sizes import trial_sizes
from tvm_byoc_dnnl.testing.models import ort_run


def graph(*pairs: tuple[Any, Any], shape: tuple[Any, ...] = ()) -> PortableGraph:
    return PortableGraph("g", [Tensor("float32", (*shape, *(dim for pair in pairs for dim in pair)))], equal=[*pairs])


def plus(a: Any, b: Any) -> Any:
    return ("+", a, b)


def times(a: Any, b: Any) -> Any:
    return ("*", a, b)


CELLS = plus(times(("//", "h", 8), ("//", "w", 8)), times(("//", "h", 16), ("//", "w", 16)))


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([("n", times("h", "w"))], id="one symbol"),
        pytest.param([(plus("n", "m"), times("h", "w"))], id="sum and product"),
        pytest.param([(plus(times("a", "b"), times("c", "d")), CELLS)], id="a sum of products that is small"),
        pytest.param([("n", times("m", 2)), ("m", plus("k", 1)), ("k", times("j", 3))], id="one after the other"),
        pytest.param([("n", plus("m", 5)), (plus("m", 5), "n"), ("n", plus("m", 5))], id="said again"),
        pytest.param([("n", times(("//", "n", 3), 3))], id="a multiple"),
        pytest.param([("n", plus(times(("//", ("-", "n", 1), 2), 2), 1))], id="odd"),
        pytest.param([(7, "n")], id="a number"),
        pytest.param([(times("n", "n"), plus("m", 100))], id="a square"),
        pytest.param([(("max", "n", "m"), plus("k", 70))], id="maximum"),
        pytest.param([(("//", 640, ("-", "n", 64)), "m")], id="division by zero at first"),
    ],
)
def test_dims_that_must_be_equal_are_equal(pairs: list[tuple[Any, Any]]) -> None:
    found = list(trial_sizes(graph(*pairs)))
    assert found
    for sizes in found:
        assert all(size > 0 for size in sizes.values())
        for a, b in pairs:
            assert evaluate(a, sizes) == evaluate(b, sizes)


def test_what_needs_no_other_size_has_the_usual_one() -> None:
    sizes = next(trial_sizes(graph((plus("n", "m"), times("h", "w")), shape=("free",))))
    assert sizes["free"] == 64
    assert sizes["h"] == sizes["w"] == 64 or sizes["n"] == sizes["m"] == 64


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([(times("n", 2), plus(times("m", 2), 1))], id="even and odd"),
        pytest.param([("n", plus("n", 1))], id="itself and one more"),
        pytest.param([("n", "m"), ("m", plus("n", 1))], id="two that contradict"),
    ],
)
def test_nothing_where_they_cannot_be_equal(pairs: list[tuple[Any, Any]]) -> None:
    assert not list(trial_sizes(graph(*pairs)))


def test_no_dim_is_negative() -> None:
    sizes = list(trial_sizes(graph(shape=(("-", "n", 100), "m"))))
    assert [s["n"] for s in sizes] == [224]


def test_without_equal_dims_all_symbols_are_alike() -> None:
    assert list(trial_sizes(graph(shape=("n", times("m", 2))))) == [{"n": s, "m": s} for s in (64, 8, 224, 1)]


@pytest.mark.parametrize(
    "compiler", [pytest.param("dnnl", marks=pytest.mark.native), pytest.param("ccompiler", marks=open_cast)]
)
def test_boxes_of_a_picture_and_rows_of_two_tables(compiler: str) -> None:
    """Sizes that no name says: the cells of a picture, ``h * w``, are as many as the rows of two tables, ``n + m``."""
    nodes = [
        node("Relu", ["picture"], ["bright"]),
        node("Reshape", ["bright", "flat"], ["cells"]),
        node("Concat", ["some", "more"], ["rows"], axis=0),
        node("Sub", ["cells", "rows"], ["apart"]),
        node("Relu", ["apart"], ["above"]),
        node("Concat", ["above", "cells"], ["both"], axis=1),
        node("Mul", ["both", "both"], ["y"]),
    ]
    shapes = {"picture": ("h", "w", 4), "some": ("n", 4), "more": ("m", 4)}
    model = onnx_model(nodes, shapes, {"flat": np.array([-1, 4])})
    if compiler == "dnnl":  # C code has no sizes that it compares when it runs
        report = byoc.explain(model)
        assert len(report.regions) == 1, report.to_text()
        assert {call.compiler for call in report.calls} == {compiler}, report.to_text()
    runner = byoc.Runner(byoc.compile(model, compiler))
    for h, w, n in ((3, 4, 5), (1, 1, 0), (2, 9, 18), (0, 3, 0)):
        feeds = {"picture": rand(h, w, 4), "some": rand(n, 4, seed=1), "more": rand(h * w - n, 4, seed=2)}
        assert_right(runner(**feeds), ort_run(model, feeds)[0], 1e-5, least=1.0, elementwise=True)
    with pytest.raises(InputError):
        runner(picture=rand(2, 3, 4), some=rand(3, 4), more=rand(2, 4))
