"""Language models of ONNX Runtime's exporter: the same tokens as ONNX Runtime, compiled once for all lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc

from .language_model import LanguageModel

MODELS = {
    "Llama": LanguageModel(),
    "Llama, int4": LanguageModel(bits=4, seed=1),
    "Llama, int8": LanguageModel(bits=8, seed=2),
    "Qwen2, int4": LanguageModel(bits=4, bias=True, seed=3),
    "Qwen3": LanguageModel(head_norms=True, seed=4),
    "window and softcap": LanguageModel(window=4, softcap=5.0, seed=5),
}
Step = Callable[[dict[str, np.ndarray]], list[np.ndarray]]


def generated(step: Step, of: LanguageModel, prompts: np.ndarray, lengths: list[int], count: int) -> tuple[list, list]:
    """Tokens of the greatest logits, and those logits; prompts are padded on the right."""
    batch, longest = prompts.shape
    names = [f"past_key_values.{i}.{n}" for n in ("key", "value") for i in range(of.layers)]
    pasts = [np.zeros((batch, of.kv_heads, 0, of.width), "float32") for _ in names]
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
    for batch, longest, lengths in ((1, 1, [1]), (1, 7, [7]), (2, 5, [5, 3])):
        prompts = rng.integers(0, of.vocabulary, (batch, longest)).astype("int64")
        theirs, logits = generated(runtime(of), of, prompts, lengths, 6)
        tokens, mine = generated(ours, of, prompts, lengths, 6)
        np.testing.assert_array_equal(tokens, theirs)
        np.testing.assert_allclose(mine, logits, rtol=1e-3, atol=1e-3)


@pytest.mark.native
def test_the_products_and_the_attention_are_offloaded() -> None:
    report = byoc.explain(LanguageModel(bits=4, bias=True).model())
    products = [call for call in report.calls if call.op == "relax.matmul"]
    assert len(products) == 2 * 7 + 1  # five products with weights and two of attention in each layer, and the head
    assert {call.compiler for call in products} == {"dnnl"}
    assert {call.compiler for call in report.calls if call.op in ("relax.nn.softmax", "relax.nn.rms_norm")} == {"dnnl"}
    assert all("GroupQueryAttention" in str(call.onnx_node) for call in report.calls if call.op == "relax.nn.softmax")
