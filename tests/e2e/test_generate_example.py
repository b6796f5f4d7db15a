"""`examples/generate.py` gives the tokens of ONNX Runtime, in a batch as for each prompt by itself."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.open_models import decoder
from tests.tvm_version import open_cache
from tvm_byoc_dnnl import Runner, compile

PATH = Path(__file__).parents[2] / "examples" / "generate.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("generate_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@open_cache
def test_the_batch_gives_the_tokens_of_each_prompt_and_of_onnx_runtime(example: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = decoder(1, 32, 4, 4, 50, 32)
    runner = Runner(compile(model))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def tokens(step: Any, prompts: list[list[int]]) -> Any:
        cache = example.empty_cache([(i.name, i.shape or ()) for i in runner.inputs], len(prompts))
        return example.generate(step, cache, prompts, 4)

    ours = tokens(runner.named, example.PROMPTS)
    theirs = tokens(lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)), example.PROMPTS)
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(ours)) > 2
    alone = np.concatenate([tokens(runner.named, [prompt]) for prompt in example.PROMPTS])
    np.testing.assert_array_equal(ours, alone)
