"""oneDNN is asked once for each different call, however deep the network is."""

from __future__ import annotations

import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, const, data
from tvm_byoc_dnnl.patterns.dnnl import library, native

pytestmark = pytest.mark.native

#: of one layer below: three products, a transposition, gelu, softmax, an addition and a norm
CALLS = 8


def questions(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Questions that partitioning a network of equal layers asks the library, with nothing remembered."""

    def network(x, w, gamma, beta):
        for _ in range(layers):
            hidden = relax.op.nn.gelu(relax.op.matmul(x, w))
            attention = relax.op.nn.softmax(relax.op.matmul(hidden, relax.op.permute_dims(hidden)))
            x = relax.op.nn.layer_norm(relax.op.add(x, relax.op.matmul(attention, hidden)), gamma, beta, axes=[-1])
        return x

    module = Case(network, (data(16, 32), const(32, 32), const(32), const(32))).module
    asked = []
    real = library.call

    def call(name, *arguments):
        asked.append(name)
        return real(name, *arguments)

    native._probe.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(library, "call", call)
        byoc.partition(module)
    return asked.count("ProbeNodes")


def test_equal_layers_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    questions(2, monkeypatch)  # what is asked once
    few, many = questions(2, monkeypatch), questions(6, monkeypatch)
    assert 0 < few <= 3 * CALLS
    assert many == few
