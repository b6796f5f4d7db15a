"""Threads on one module: side by side, with every result checked, while plans of other shapes come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.weights_models import TOKENS, weighty_model
from tvm_byoc_dnnl.ir.relax_utils import make_constant

THREADS = 8
#: more than a region keeps plans for
SHAPES = range(1, 31)


def dynamic_model() -> tuple[tvm.IRModule, Callable[[np.ndarray], np.ndarray]]:
    """[n, 3, 20] -> softmax(relu(x @ w) @ v)."""
    rng = np.random.default_rng(4)
    w, v = (rng.standard_normal(shape).astype("float32") / 4 for shape in ((20, 30), (30, 10)))
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 3, 20), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.matmul(x, make_constant(w)))))
            y = bb.emit_output(relax.op.nn.softmax(bb.emit(relax.op.matmul(y, make_constant(v)))))
        bb.emit_func_output(y)

    def reference(value: np.ndarray) -> np.ndarray:
        y = np.maximum(value @ w, 0) @ v
        e = np.exp(y - y.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return bb.get(), reference


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(two runners of one loaded module, its inputs, the results for them), static and dynamic."""
    rng = np.random.default_rng(5)
    static, dynamic = weighty_model(96, 4), dynamic_model()
    inputs = (
        [rng.standard_normal((TOKENS, 96), "float32") for _ in SHAPES],
        [rng.standard_normal((n, 3, 20), "float32") for n in SHAPES],
    )
    found = []
    for i, ((mod, reference), arrays) in enumerate(zip((static, dynamic), inputs, strict=True)):
        path = tmp_path_factory.mktemp("stress") / f"{i}.so"
        byoc.compile(mod).export_library(path)
        first = byoc.load(path)
        found.append(((first, byoc.Runner(first.module)), arrays, [reference(a) for a in arrays]))
    return found


def stress(models, seconds: float) -> int:
    """Calls made; raises the first thread's error."""
    end = time.monotonic() + seconds
    calls, failures = [0] * THREADS, []

    def work(thread: int) -> None:
        rng = np.random.default_rng(thread)
        try:
            while time.monotonic() < end and not failures:
                runners, inputs, results = models[rng.integers(len(models))]
                i = rng.integers(len(inputs))
                got = runners[rng.integers(len(runners))](inputs[i])
                assert_right(got, results[i])
                calls[thread] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert all(calls), calls
    return sum(calls)


def test_eight_threads_for_three_seconds(models):
    stress(models, 3)


@pytest.mark.stress
def test_eight_threads_for_a_minute(models):
    print(f"{stress(models, 60)} calls")


def test_calls_run_side_by_side(models):
    """While one call takes its time, others on the same module start and end."""
    (run, _), inputs, results = models[1]
    large = np.zeros((400_000, 3, 20), "float32")
    run(large)  # plans made
    run(inputs[0])
    spans: list[float] = []

    def long_call() -> None:
        spans.append(time.monotonic())
        run(large)
        spans.append(time.monotonic())

    thread = threading.Thread(target=long_call)
    within: list[float] = []
    thread.start()
    while thread.is_alive():
        start = time.monotonic()
        assert_right(run(inputs[0]), results[0])
        within += [start, time.monotonic()]
    thread.join()
    begin, end = spans
    whole = [pair for pair in zip(within[::2], within[1::2], strict=True) if begin < pair[0] and pair[1] < end]
    assert len(whole) >= 2, (spans, within)
