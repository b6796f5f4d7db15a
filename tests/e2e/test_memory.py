"""Memory stays flat: over loads of a saved region, over runs, over plans of a symbolic region."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import tvm_ffi

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tvm_byoc_dnnl.core import _native

#: a leak of 4 kB per round shows in each span; malloc's own growth ends, but may come late and be some MB at once
_ROUNDS, _SPANS, _ALLOWED = 1000, 3, 2 << 20


def resident() -> int:
    """Bytes of physical memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def grows(work: Callable[[int], object]) -> int:
    """What so many rounds add, after as many to warm up: the least of some spans, so that only what goes on counts."""

    def span() -> int:
        before = resident()
        for i in range(_ROUNDS):
            work(i)
        return resident() - before

    span()
    return min(span() for _ in range(_SPANS))


def layer(batch: object) -> GraphBuilder:
    """x [batch, 64] -> softmax(relu(x @ w)), with weights that are packed."""
    g = GraphBuilder()
    x, w = g.input((batch, 64)), g.constant(np.linspace(-1, 1, 64 * 48, dtype="float32").reshape(64, 48))
    relu = {"kind": "eltwise", "alg": "relu", "alpha": 0.0, "beta": 0.0}
    y = g.node("matmul", [x, w], (batch, 48), post_ops=[relu])
    g.outputs = [g.node("softmax", [y], (batch, 48), alg="accurate", axis=1)]
    return g


def saved_bytes(g: GraphBuilder) -> bytes:
    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names())
    return bytes(_native.function("tvm_byoc_dnnl.ModuleBytes")(module))


def test_a_thousand_loads_and_runs() -> None:
    g = layer(16)
    saved = saved_bytes(g)
    load = _native.function("ffi.Module.load_from_bytes.dnnl_byoc")
    x, y = np.ones((16, 64), "float32"), np.empty((16, 48), "float32")

    def work(_: int) -> None:
        module = load(saved)
        module[f"__init_{g.name}"]([tvm_ffi.from_dlpack(v) for v in g.values])
        module[g.name](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))

    assert grows(work) < _ALLOWED
    assert_right(y.sum(1), np.ones_like(y[:, 0]), 1e-5)


def test_a_thousand_plans_of_a_symbolic_region() -> None:
    """More sizes than the cache of plans, or the library's cache of primitives, holds."""
    g = layer("n")
    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names())
    module[f"__init_{g.name}"]([tvm_ffi.from_dlpack(v) for v in g.values])
    x, y = np.ones((200, 64), "float32"), np.empty((200, 48), "float32")

    def work(i: int) -> None:
        n = 1 + i % 100
        module[g.name](tvm_ffi.from_dlpack(x[:n]), tvm_ffi.from_dlpack(y[:n]))

    assert grows(work) < _ALLOWED


def test_a_thousand_refusals() -> None:
    """What fails leaves nothing behind either."""
    g = layer(16)
    load = _native.function("ffi.Module.load_from_bytes.dnnl_byoc")
    saved = bytearray(saved_bytes(g))
    saved[-1] ^= 1
    data = bytes(saved)
    refused = 0

    def work(_: int) -> None:
        nonlocal refused
        try:
            load(data)
        except ValueError:
            refused += 1

    assert grows(work) < _ALLOWED
    assert refused == (1 + _SPANS) * _ROUNDS


def open_product(inner: int = 256) -> onnx.ModelProto:
    """x [n, inner] -> relu(x @ w): every n has tensors of its own."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, INNER] x) => (float[N, 256] y) '
        "{ p = MatMul(x, w) y = Relu(p) }".replace("INNER", str(inner))
    )
    weights = np.linspace(-1, 1, inner * 256, dtype="float32").reshape(inner, 256)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def test_closing_gives_back_the_memory_of_all_sizes() -> None:
    """Tensors in TVM's pool, descriptions and code of oneDNN: with them each round would keep some 60 MB."""
    ex = byoc.compile(open_product())

    def rounds() -> int:
        run = byoc.Runner(ex)
        before = resident()
        for rows in range(500, 1000, 10):
            run(np.ones((rows, 256), "float32"))
        run.close()
        del run
        return resident() - before

    rounds()
    assert min(rounds() for _ in range(2)) < 8 << 20


def test_tensors_of_open_sizes_are_not_kept() -> None:
    run = byoc.Runner(byoc.compile(open_product(4), compiler=[]))

    def grown(first: int) -> int:
        before = resident()
        for rows in range(first, first + 200, 4):  # 4 MB each
            run(np.ones((rows, 4), "float32"))
        return resident() - before

    assert min(grown(first) for first in (4000, 4001, 4002)) < 60 << 20
