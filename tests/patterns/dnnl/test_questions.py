"""oneDNN is asked once for each different call, however deep the network is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tvm_ffi
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, const, data
from tvm_byoc_dnnl.core.verdict import Reject
from tvm_byoc_dnnl.graph import PortableGraph
from tvm_byoc_dnnl.patterns.dnnl import library
from tvm_byoc_dnnl.vendors.namespaces import namespace

pytestmark = pytest.mark.native

#: of one layer below: three products, a transposition, gelu, softmax, an addition and a norm
CALLS = 8


def questions(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Questions that partitioning a network of equal layers asks the library."""

    def network(x, w, gamma, beta):
        for _ in range(layers):
            hidden = relax.op.nn.gelu(relax.op.matmul(x, w))
            attention = relax.op.nn.softmax(relax.op.matmul(hidden, relax.op.permute_dims(hidden)))
            x = relax.op.nn.layer_norm(relax.op.add(x, relax.op.matmul(attention, hidden)), gamma, beta, axes=[-1])
        return x

    module = Case(network, (data(16, 32), const(32, 32), const(32), const(32))).module
    asked: list[str] = []

    def call(name: str, *arguments: Any) -> Any:
        asked.extend(arguments[0] if name == "Probe" else ())
        return library_call(name, *arguments)

    library_call = library.call
    with monkeypatch.context() as patched:
        patched.setattr(library, "call", call)
        byoc.partition(module)
    assert len(asked) == len(set(asked))
    return len(asked)


def test_equal_layers_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = questions(2, monkeypatch), questions(6, monkeypatch)
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
        return library.probe_many(graphs)

    partitioned = []
    for way in (probe_many, None):
        monkeypatch.setattr(namespace("dnnl").functions, "probe_many", way)
        partitioned.append(byoc.partition(module))
    assert tvm_ffi.structural_equal(*partitioned)
    assert len(asked) == len(set(asked)) >= 2


def test_a_crash_that_comes_ahead_is_a_refusal_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: PortableGraph) -> PortableGraph:
        raise ValueError("no such pass")

    monkeypatch.setattr(namespace("dnnl").functions, "optimize", broken)
    module = byoc.AnnotateExternalCompiler("dnnl")(Case(relax.op.nn.relu, (data(3, 5),)).module)
    (entry,) = byoc.read_log(module)
    assert entry.stage == "annotate" and "no such pass" in entry.reason
