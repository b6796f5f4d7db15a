"""Questions to the library about graphs, one by one and many at once."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.unit.graph_reference import GraphBuilder
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import GraphError, UnsupportedError

pytestmark = pytest.mark.native


def question(channels: int) -> str:
    g = GraphBuilder("g")
    g.outputs = [g.node("eltwise", [g.input((2, channels))], (2, channels), alg="relu", alpha=0.0, beta=0.0)]
    return g.json()


def answers(*documents: str) -> list[str]:
    return [str(answer) for answer in _native.function("tvm_byoc_dnnl.Probe")("dnnl", documents)]


def expected_answer(document: str) -> dict:
    return json.loads(_native.function("tvm_byoc_dnnl.Probe")("dnnl", [document])[0])


@pytest.mark.parametrize("count", [0, 1, 2, 19])
def test_many_answers_are_those_to_each_question(count: int) -> None:
    documents = [question(channels) for channels in range(1, count + 1)]
    assert [json.loads(answer) for answer in answers(*documents)] == [expected_answer(d) for d in documents]


def test_a_wrong_question_has_no_answer_and_disturbs_no_other() -> None:
    first, wrong, last = answers(question(3), "{", question(5))
    assert wrong == ""
    assert json.loads(first) == expected_answer(question(3)) and json.loads(last) == expected_answer(question(5))
    with pytest.raises(GraphError):
        expected_answer("{")


def test_a_graph_of_unknown_sizes_is_refused() -> None:
    g = GraphBuilder("g")
    g.outputs = [g.node("eltwise", [g.input(("n", 3))], ("n", 3), alg="relu", alpha=0.0, beta=0.0)]
    with pytest.raises(UnsupportedError, match=r"g: shapes depend on \[n\], expected values for them"):
        expected_answer(g.json())


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(("kind", "size"), [("convolution", 7), ("deconvolution", 9)])
def test_the_verdict_on_a_convolution_is_that_of_its_plan(kind: str, size: int, dtype: str) -> None:
    window: dict[str, list[int]] = {name: [1, 1] for name in ("strides", "dilations")}
    window |= {name: [0, 0] for name in ("pad_begin", "pad_end")}
    g = GraphBuilder("g")
    stored = g.constant(np.zeros((3, 16, 2, 2), dtype))
    weights = g.node("permute", [stored], (16, 3, 2, 2), dtype, axes=[1, 0, 2, 3])
    g.outputs = [g.node(kind, [g.input((1, 3, 8, 8), dtype), weights], (1, 16, size, size), dtype, **window)]
    answer = expected_answer(g.json())
    assert answer["ok"] == (dtype == "float32") != bool(answer["reason"])
    assert [node["post_ops"] for node in answer["nodes"]] == ([0, 0] if answer["ok"] else [])
