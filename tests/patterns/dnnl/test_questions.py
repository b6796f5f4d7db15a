"""oneDNN is asked once for each different call, however deep the network is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tvm_ffi
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, const, data
from tvm_byoc_dnnl.lower.graph import PortableGraph
from tvm_byoc_dnnl.namespaces import namespace
from tvm_byoc_dnnl.patterns.dnnl import native
from tvm_byoc_dnnl.verdict import Reject

pytestmark = pytest.mark.native

#: of one layer below: three products, a transposition, gelu, softmax, an addition and a norm
CALLS = 8


def questions(layers: int) -> int:
    """Questions that partitioning a network of equal layers asks the library, with nothing remembered."""

    def network(x, w, gamma, beta):
        for _ in range(layers):
            hidden = relax.op.nn.gelu(relax.op.matmul(x, w))
            attention = relax.op.nn.softmax(relax.op.matmul(hidden, relax.op.permute_dims(hidden)))
            x = relax.op.nn.layer_norm(relax.op.add(x, relax.op.matmul(attention, hidden)), gamma, beta, axes=[-1])
        return x

    module = Case(network, (data(16, 32), const(32, 32), const(32), const(32))).module
    native._ANSWERS.clear()
    byoc.partition(module)
    return len(native._ANSWERS)


def test_equal_layers_are_asked_about_once() -> None:
    few, many = questions(2), questions(6)
    assert 0 < few <= 3 * CALLS
    assert many == few


def test_what_is_asked_at_once_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(x, w, numbers):
        for _ in range(2):
            x = relax.op.nn.relu(relax.op.matmul(x, w))
            numbers = relax.op.add(numbers, relax.op.bitwise_xor(numbers, numbers))  # which oneDNN does not have
        return x, numbers

    module = Case(network, (data(16, 32), const(32, 32), data(5, dtype="int64"))).module
    asked: list[str] = []

    def probe_many(graphs: Sequence[PortableGraph]) -> list[Reject | None]:
        asked.extend(graph.to_json(anonymous=True) for graph in graphs)
        return native.probe_many(graphs)

    partitioned = []
    for way in (probe_many, None):
        monkeypatch.setattr(namespace("dnnl"), "probe_many", way)
        native._ANSWERS.clear()
        partitioned.append(byoc.partition(module))
    assert tvm_ffi.structural_equal(*partitioned)
    assert len(asked) == len(set(asked)) >= 2


def test_a_crash_that_comes_ahead_is_a_refusal_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: PortableGraph) -> PortableGraph:
        raise ValueError("no such pass")

    monkeypatch.setattr(namespace("dnnl"), "optimize", broken)
    module = byoc.AnnotateExternalCompiler("dnnl")(Case(relax.op.nn.relu, (data(3, 5),)).module)
    (entry,) = byoc.read_log(module)
    assert entry.stage == "annotate" and "no such pass" in entry.reason
