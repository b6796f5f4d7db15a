"""Language models of ONNX Runtime's exporter: the same tokens as ONNX Runtime, compiled once for all lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_byoc_dnnl as byoc

from .language_model import LanguageModel

MODELS = {
    "Llama": LanguageModel(),
    "Llama, int4": LanguageModel(bits=4, seed=1),
    "Llama, int8": LanguageModel(bits=8, seed=2),
    "Qwen2, int4": LanguageModel(bits=4, bias=True, seed=3),
    "Qwen3": LanguageModel(head_norms=True, seed=4),
    "window and softcap": LanguageModel(window=4, softcap=5.0, seed=5),
    "sinks": LanguageModel(window=4, sinks=True, seed=6),
    "a cache that slides": LanguageModel(window=4, slides=True, sinks=True, seed=7),
    "a cache that slides, int4": LanguageModel(bits=4, window=4, slides=True, seed=8),
}
Step = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def generated(step: Step, of: LanguageModel, prompts: np.ndarray, lengths: list[int], count: int) -> tuple[list, list]:
    """Tokens of the greatest logits, and those logits; prompts are padded on the right."""
    batch, longest = prompts.shape
    names = [f"past_key_values.{i}.{n}" for n in ("key", "value") for i in range(of.layers)]
    pasts = [np.zeros((batch, of.kv_heads, 6 if of.slides else 0, of.width), "float32") for _ in names]
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype("int64")
    ids, tokens, rows = prompts, [], []
    for _ in range(count):
        feeds = {"input_ids": ids, "attention_mask": mask, **dict(zip(names, pasts, strict=True))}
        logits, *pasts = step(feeds)
        last = np.array(lengths) - 1 if ids.shape[1] > 1 else np.zeros(batch, int)
        best = logits[np.arange(batch), last]
        tokens.append(best.argmax(-1))
        rows.append(best)
        ids = tokens[-1][:, None].astype("int64")
        lengths = [n + 1 for n in lengths]
        mask = (np.arange(mask.shape[1] + 1) < np.array(lengths)[:, None]).astype("int64")
    return tokens, rows


def runtime(of: LanguageModel) -> Step:
    """ONNX Runtime without its optimiser."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    data = of.model().SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))


@pytest.mark.native
@pytest.mark.parametrize("of", MODELS.values(), ids=MODELS)
def test_tokens_are_those_of_onnx_runtime(of: LanguageModel) -> None:
    runner = byoc.Runner(byoc.compile(of.model()))

    def ours(feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(a) for a in runner(**feeds)]

    rng = np.random.default_rng(7)
    padded = () if of.slides else ((2, 5, [5, 3]),)  # ONNX Runtime refuses a cache that slides there
    for batch, longest, lengths in ((1, 1, [1]), (1, 7, [7]), *padded):
        prompts = rng.integers(0, of.vocabulary, (batch, longest)).astype("int64")
        theirs, logits = generated(runtime(of), of, prompts, lengths, 6)
        tokens, mine = generated(ours, of, prompts, lengths, 6)
        np.testing.assert_array_equal(tokens, theirs)
        np.testing.assert_allclose(mine, logits, rtol=1e-3, atol=1e-3)


@pytest.mark.native
def test_the_products_and_the_attention_are_offloaded() -> None:
    report = byoc.explain(LanguageModel(bits=4, bias=True).model())
    products = [call for call in report.calls if call.op == "relax.matmul"]
    assert len(products) == 2 * 5 + 1  # five products with weights in each layer, and the head
    assert {call.compiler for call in products} == {"dnnl"}
    attention = [call for call in report.calls if call.op == "onnx.tvm_byoc_dnnl.CachedAttention"]
    assert len(attention) == 2
    assert {call.compiler for call in [*attention, *(c for c in report.calls if c.op == "relax.nn.rms_norm")]} == {
        "dnnl"
    }
    assert all("GroupQueryAttention" in str(call.onnx_node) for call in attention)
    assert len(report.regions) == 1


# ---------------------------------------------------------------- caches in place
def _named(of: LanguageModel, ids: np.ndarray, total: int, lengths: list[int], pasts: list) -> dict[str, np.ndarray]:
    """The inputs of a step behind which the sequences have these lengths."""
    names = [f"past_key_values.{i}.{n}" for n in ("key", "value") for i in range(of.layers)]
    mask = (np.arange(total) < np.array(lengths)[:, None]).astype("int64")
    return {"input_ids": ids, "attention_mask": mask, **dict(zip(names, pasts, strict=True))}


class _Steps:
    """Steps of a model of one layer, each compared with ONNX Runtime."""

    def __init__(self, of: LanguageModel) -> None:
        self._of, self._ours, self._theirs = of, byoc.Runner(byoc.compile(of.model()), threads=1), runtime(of)
        self._rng = np.random.default_rng(3)

    def __call__(self, rows: int, total: int, lengths: list[int], pasts: list) -> list[np.ndarray]:
        """The cache behind a step; rows behind the own end of a sequence may have any numbers."""
        ids = self._rng.integers(0, self._of.vocabulary, (len(lengths), rows)).astype("int64")
        feeds = _named(self._of, ids, total, lengths, pasts)
        logits, *presents = self._ours(**feeds)
        want, *caches = self._theirs({name: np.ascontiguousarray(value) for name, value in feeds.items()})
        for b, length in enumerate(lengths):
            valid = min(rows, length)
            np.testing.assert_allclose(logits[b, :valid], want[b, :valid], rtol=1e-3, atol=1e-3)
            for present, cache in zip(presents, caches, strict=True):
                assert present.shape == cache.shape
                np.testing.assert_allclose(present[b, :, :length], cache[b, :, :length], rtol=1e-4, atol=1e-4)
        return list(presents)

    def empty(self, batch: int, rows: int = 0) -> list[np.ndarray]:
        """The cache before the first step."""
        return [np.zeros((batch, self._of.kv_heads, rows, self._of.width), "float32")] * 2


@pytest.fixture(scope="module")
def steps() -> _Steps:
    return _Steps(LanguageModel(layers=1, seed=9))


def _addresses(caches: list[np.ndarray]) -> list[int]:
    return [cache.ctypes.data for cache in caches]


@pytest.mark.native
@pytest.mark.parametrize("lengths", [[7], [7, 4, 1]], ids=["one sequence", "unequal lengths"])
def test_a_step_writes_its_rows_into_the_cache(steps: _Steps, lengths: list[int]) -> None:
    pasts = steps(7, 7, lengths, steps.empty(len(lengths)))
    where = _addresses(pasts)
    for total in range(8, 12):
        lengths = [n + 1 for n in lengths]
        before = [past.copy() for past in pasts]
        now = steps(1, total, lengths, pasts)
        for past, old in zip(pasts, before, strict=True):
            for b, length in enumerate(lengths):
                np.testing.assert_array_equal(past[b, :, : length - 1], old[b, :, : length - 1])
        assert _addresses(now) == where
        pasts = now


@pytest.mark.native
def test_a_cache_of_a_fixed_size_is_written_in_place_from_the_first_result_on(steps: _Steps) -> None:
    pasts = steps(5, 5, [5, 3], steps.empty(2, rows=20))
    where = _addresses(pasts)
    for total in range(6, 10):
        pasts = steps(1, total, [total, total - 2], pasts)
        assert _addresses(pasts) == where
        assert pasts[0].shape[2] == 20


@pytest.mark.native
@pytest.mark.parametrize("room", [0, 20], ids=["grows", "of a fixed size"])
def test_other_continuations_do_not_disturb(steps: _Steps, room: int) -> None:
    """Two from one cache, as in a beam search, one that goes back, and one from arrays of the caller's own."""
    start = steps(5, 5, [5], steps.empty(1, room))
    first = steps(1, 6, [6], start)
    second = steps(1, 6, [6], start)
    assert _addresses(first) != _addresses(second)
    kept = [value.copy() for value in first]
    back = steps(1, 4, [4], first)  # the row 3 again, of a cache that has 6
    assert _addresses(back) != _addresses(first)
    own = steps(1, 7, [7], [value.copy() for value in first])
    for value, old in zip(first, kept, strict=True):
        np.testing.assert_array_equal(value[:, :, :6], old[:, :, :6])
    for caches in (first, second, own):
        steps(1, 8, [8], steps(1, 7, [7], caches) if caches is not own else caches)


# ---------------------------------------------------------------- written by hand
def _written_by_hand(keep: Callable[[list[str]], list[str]]) -> onnx.ModelProto:
    """A model of one CachedAttention of which only some inputs are given."""
    value = helper.make_tensor_value_info
    sizes = {"query": (1, 4, 3, 16), **dict.fromkeys(("key", "value"), (1, 2, 3, 16))}
    sizes |= dict.fromkeys(("past_key", "past_value"), (1, 2, 5, 16))
    inputs = [value(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    inputs += [value(name, TensorProto.INT64, [1]) for name in ("start", "ends")]
    total = helper.make_tensor("total", TensorProto.INT64, [1], [8])
    outputs = ["out", "present_key", "present_value"]
    operands = keep([*(i.name for i in inputs), "total"])
    node = helper.make_node("CachedAttention", operands, outputs, domain="tvm_byoc_dnnl")
    results = [value(name, TensorProto.FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("tvm_byoc_dnnl", 1)]
    return helper.make_model(helper.make_graph([node], "g", inputs, results, [total]), opset_imports=opsets)


@pytest.mark.native
def test_attention_written_by_hand_is_taken() -> None:
    model = _written_by_hand(lambda names: names)
    assert byoc.explain(model).calls[0].compiler == "dnnl"
    rng = np.random.default_rng(0)
    runners = [byoc.Runner(byoc.compile(model, compiler)) for compiler in ("dnnl", None)]
    feeds = {i.name: rng.standard_normal(i.shape).astype(i.dtype) for i in runners[0].inputs}
    feeds |= {"start": np.array([5]), "ends": np.array([8])}
    for got, want in zip(*(runner(**feeds) for runner in runners), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        *((lambda names, n=n: names[:n], f"has no input {n if n < 3 else max(n, 5)}; ") for n in range(8)),
        (lambda names: [*names[:7], ""], "has no input 7; "),
        (lambda names: [*names[:3], "", *names[4:]], "a cache of keys or of values alone"),
        (lambda names: [*names, "", "", "query"], "has 11 inputs; expected at most 10"),
        (lambda names: [*names[:7], "axes"], "has 2 numbers as its total length, input 7; expected one"),
    ],
)
def test_attention_written_by_hand_without_inputs(keep: Callable[[list[str]], list[str]], message: str) -> None:
    model = _written_by_hand(keep)
    model.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [2], [8, 8]))
    with pytest.raises(byoc.InputError, match=message):
        byoc.compile(model)
