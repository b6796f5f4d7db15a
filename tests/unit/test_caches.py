"""Caches that grow: appended in place where that is safe, copied where it is not, and right in each case."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from examples.open_models import decoder
from tests.harness import assert_right
from tests.tvm_version import open_cache
from tvm_byoc_dnnl import Runner, compile, profile
from tvm_byoc_dnnl.testing.models import ort_run

pytestmark = open_cache

HEADS, SIZE = 2, 5
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return decoder(1, HEADS * SIZE, HEADS, HEADS, 31, 300)


@pytest.fixture(scope="module")
def runner(model: onnx.ModelProto) -> Runner:
    return Runner(compile(model), threads=1)  # with more, a plan also looks how fast fewer are


def _feeds(tokens: int, past: Any, batch: int = 1, seed: int = 0) -> Arrays:
    """The inputs of a step behind the results of another one, or behind an empty cache."""
    if past is None:
        past = [None, *[np.zeros((batch, HEADS, 0, SIZE), "float32")] * 2]
    length = past[1].shape[2]
    mask = np.ones((batch, length + tokens), "int64")
    mask[:, : min(batch, length) - 1] = 0
    return {
        "input_ids": np.random.default_rng(seed).integers(0, 31, (batch, tokens)),
        "attention_mask": mask,
        "position_ids": np.arange(length, length + tokens)[None].repeat(batch, 0),
        "past_0_key": past[1],
        "past_0_value": past[2],
    }


def _step(model: onnx.ModelProto, runner: Runner, *args: Any, **kwargs: Any) -> list[np.ndarray]:
    """The results of a step, which are those of ONNX Runtime."""
    feeds = _feeds(*args, **kwargs)
    got = runner(**feeds)
    wanted = ort_run(model, {name: np.ascontiguousarray(value) for name, value in feeds.items()})
    for result, want in zip(got, wanted, strict=True):
        assert_right(result, want, 2e-4, least=1.0, elementwise=True)
    return got


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_narrow_cache_has_rounded_rows_and_is_updated_in_place(dtype: str) -> None:
    """Attention to it is that to the same numbers in float32."""
    narrow, wide = (Runner(compile(_attention(of), strict=True)) for of in (dtype, "float32"))
    rng, length = np.random.default_rng(1), 0
    past = [np.zeros((1, HEADS, 0, 16), dtype)] * 2
    for rows in (5, 1, 30, 1):
        query, *new = (rng.standard_normal((1, rows, HEADS * 16), "float32") for _ in range(3))
        length += rows
        lengths = np.array([length - 1], "int32"), np.array([length], "int32")
        got = narrow(query, *new, *past, *lengths)
        rounded = (x.astype(dtype).astype("float32") for x in new)
        want = wide(query, *rounded, *(np.asarray(x).astype("float32") for x in past), *lengths)
        assert_right(got[0], want[0], 1e-6)
        for cache, rows_of in zip(got[1:], want[1:], strict=True):
            assert cache.dtype == dtype
            np.testing.assert_array_equal(cache.astype("float32"), rows_of)
        assert rows == 5 or np.shares_memory(got[1], past[0])
        past = got[1:]


def _attention(dtype: str) -> onnx.ModelProto:
    """GroupQueryAttention with a cache of this dtype."""
    width = HEADS * 16
    one, cache = ["B", "S", width], ["B", HEADS, "P", 16]
    real, kept = onnx.TensorProto.FLOAT, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [(name, real, one) for name in "qkv"] + [(name, kept, cache) for name in ("past_k", "past_v")]
    inputs += [("last", onnx.TensorProto.INT32, ["B"]), ("total", onnx.TensorProto.INT32, [1])]
    outputs = [("y", real, one), *((name, kept, ["B", HEADS, "T", 16]) for name in ("k_", "v_"))]
    sides = [[onnx.helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs)]
    names = [[value[0] for value in side] for side in (inputs, outputs)]
    node = onnx.helper.make_node(
        "GroupQueryAttention", *names, domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "attention", *sides)
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _plans(runner: Runner) -> int:
    tensors = runner.tensors((), _feeds(1, None))
    (counters,) = profile(runner, tensors, repeat=1, warmup=0).plans.values()
    return counters["made"]


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_are_appended_in_place(model: onnx.ModelProto, runner: Runner, batch: int) -> None:
    """Also across the end of a buffer, from where on there is a larger one."""
    results, addresses = None, []
    for number, tokens in enumerate([7, 1, 1, 0, 3, 47, 1, 13, 1, 1]):
        before = None if results is None else results[1].copy()
        last, results = results, _step(model, runner, tokens, results, batch=batch, seed=number)
        addresses.append(results[1].ctypes.data)
        assert not results[1].flags.writeable
        if last is not None:
            np.testing.assert_array_equal(last[1], before)
    assert addresses == [*[addresses[0]] * 7, *[addresses[7]] * 3]
    assert addresses[0] != addresses[7]


def test_one_plan_serves_all_lengths(model: onnx.ModelProto, runner: Runner) -> None:
    results = _step(model, runner, 3, None)
    results = _step(model, runner, 1, results)
    made = _plans(runner)
    for number in range(5):
        results = _step(model, runner, 1, results, seed=number)
    assert _plans(runner) == made


def test_a_narrow_cache_that_attention_in_float32_reads() -> None:
    """PyTorch decomposes attention of float16 and bfloat16 into casts, and products of float32."""
    of_steps = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[1, 2, S, 4] q, float16[1, 2, S, 4] k, float16[1, 2, P, 4] past)
            => (float[1, 2, S, 4] y, float16[1, 2, T, 4] all) {
            all = Concat <axis = 2> (past, k)
            wide = Cast <to = 1> (all)
            turned = Transpose <perm = [0, 1, 3, 2]> (wide)
            scores = MatMul (q, turned)
            shares = Softmax <axis = -1> (scores)
            y = MatMul (shares, wide)
        }"""
    )
    rng, run = np.random.default_rng(0), Runner(compile(of_steps))
    rows = [np.zeros((1, 2, 0, 4), "float16")]
    for tokens in (5, 1, 1):
        q, k = (rng.standard_normal((1, 2, tokens, 4), dtype="float32") for _ in range(2))
        y, grown = run(q, k.astype("float16"), rows[-1])
        want = np.concatenate([rows[-1], k.astype("float16")], 2)
        shares = np.exp(q.astype("float64") @ want.astype("float64").swapaxes(2, 3))
        wanted = shares / shares.sum(-1, keepdims=True) @ want.astype("float64")
        assert_right(y, wanted.astype("float32"), 1e-5)
        assert np.array_equal(grown, want)
        rows.append(grown)
    assert np.shares_memory(rows[-1], rows[-2])


def test_two_continuations_of_one_cache(model: onnx.ModelProto, runner: Runner) -> None:
    """As in a beam search: the second one copies, and nothing that a caller holds changes."""
    start = _step(model, runner, 5, None)
    first = _step(model, runner, 1, start, seed=1)
    kept = first[1].copy()
    second = _step(model, runner, 1, start, seed=2)
    assert first[1].ctypes.data == start[1].ctypes.data != second[1].ctypes.data
    assert np.abs(second[1] - first[1]).max() > 0.1
    for number in range(3):
        first, second = _step(model, runner, 1, first, seed=number), _step(model, runner, 2, second, seed=number)
    np.testing.assert_array_equal(first[1][:, :, :6], kept)


def test_back_to_a_shorter_cache(model: onnx.ModelProto, runner: Runner) -> None:
    """Slices of a cache are copied, as are arrays of the caller's own, dense or not."""
    results = _step(model, runner, 11, None)
    kept = results[1].copy()
    shorter = _step(model, runner, 1, [None, *(value[:, :, :4] for value in results[1:])], seed=1)
    _step(model, runner, 1, shorter, seed=2)
    _step(model, runner, 2, [None, *(value[:, :, 3:] for value in results[1:])])
    _step(model, runner, 1, [None, *(value.copy() for value in results[1:])])
    _step(model, runner, 1, [None, *(np.asfortranarray(value) for value in results[1:])])
    _step(model, runner, 1, [None, results[1], results[2].copy()])
    np.testing.assert_array_equal(results[1], kept)


def test_several_threads_append_to_one_cache(model: onnx.ModelProto, runner: Runner) -> None:
    start = _step(model, runner, 5, None)
    results: list[Any] = [None] * 4

    def work(number: int) -> None:
        mine = start
        for _ in range(10):
            mine = runner(**_feeds(1, mine, seed=number))
        results[number] = mine

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in enumerate(results):
        expected = start
        for _ in range(10):
            expected = runner(**_feeds(1, [None, *(v.copy() for v in expected[1:])], seed=number))
        for got, want in zip(result, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_call_of_tvm_gets_dense_memory(runner: Runner) -> None:
    """Who reads a tensor without its strides gets what a model without such caches gives."""
    results = runner.run_tvm(*runner.tensors((), _feeds(3, None)))
    assert all(result.is_contiguous() for result in results)


def test_memory_is_freed_with_the_arrays(runner: Runner) -> None:
    past = [None, *[np.ones((1, HEADS, 2**19, SIZE), "float32")] * 2]  # 20 MB each
    feeds = {**_feeds(1, past), "position_ids": np.array([[3]])}
    runner(**feeds)
    before = _resident()
    for _ in range(6):
        runner(**feeds)
    assert _resident() - before < 60 << 20
