"""Generate text token by token, a batch of prompts of different lengths, beside ONNX Runtime.

    python examples/generate.py                          a small decoder with random weights from a fixed seed
    python examples/generate.py decoder_with_past.onnx   a decoder of yours, whose cache is inputs and outputs

One compiled model serves every length: the batch, the length of the prompt and that of the cache stay open. Without a
tokenizer the text is numbers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

import tvm_byoc_dnnl as byoc

Arrays = dict[str, np.ndarray]
PROMPTS = [[5, 17, 3, 42, 8], [11, 2], [9, 30, 30, 7]]


def generate(
    step: Callable[[Arrays], Arrays], cache: Mapping[str, Sequence[int]], prompts: list[list[int]], count: int
):
    """Append ``count`` tokens to each prompt, always the most likely one.

    Parameters
    ----------
    step : callable
        Runs the model: arrays by the names of the inputs to arrays by the names of the outputs.
    cache : mapping
        Name of each input of the cache → its empty shape.
    prompts : list of list of int
        Shorter ones are filled up in front; the mask hides that.
    count : int
        Tokens to append to each.
    """
    longest = max(map(len, prompts))
    ids = np.array([[0] * (longest - len(p)) + p for p in prompts], "int64")
    mask = np.array([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], "int64")
    past = {name: np.zeros(shape, "float32") for name, shape in cache.items()}
    made: list[np.ndarray] = []
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    for _ in range(count):
        results = step({"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past})
        ids = results["logits"][:, -1].argmax(-1).astype("int64")[:, None]
        made.append(ids)
        present = [value for name, value in results.items() if name.startswith("present")]
        past = dict(zip(past, present, strict=True))
        mask = np.concatenate([mask, np.ones_like(ids)], 1)
        positions = mask.sum(1, keepdims=True) - 1
    return np.concatenate(made, 1)


def empty_cache(inputs: Sequence[tuple[str, Sequence[int | str]]], batch: int) -> dict[str, list[int]]:
    """Shapes of the cache before the first token: the batch, the fixed sizes, and 0 for the length."""
    return {
        name: [batch, *(d if isinstance(d, int) else 0 for d in shape[1:])] for name, shape in inputs if "past" in name
    }


class Timed:
    """A model's calls, with their times: the first reads the prompts, each other one makes a token."""

    def __init__(self, run: Callable[[Arrays], Arrays]) -> None:
        self._run = run
        self._seconds: list[float] = []

    def __call__(self, feeds: Arrays) -> Arrays:
        """The results of a call."""
        start = time.perf_counter()
        results = self._run(feeds)
        self._seconds.append(time.perf_counter() - start)
        return results

    def __str__(self) -> str:
        first, *others = (1e3 * seconds for seconds in self._seconds)
        steps = f", a step {statistics.median(others):.2f} ms" if others else ""
        return f"prompts {first:.2f} ms{steps}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate with both, compare, and print tokens and times."""
    from open_models import decoder  # beside this file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="an ONNX decoder; its inputs are named as those of transformers")
    parser.add_argument("--tokens", type=int, default=20, help="to append to each prompt")
    options = parser.parse_args(arguments)
    model = onnx.load(options.model) if options.model else decoder(4, 128, 8, 2, 1000, 512)

    runner = byoc.Runner(byoc.compile(model))
    cache = empty_cache([(i.name, i.shape or ()) for i in runner.inputs], len(PROMPTS))
    run = Timed(runner.named)
    ours = generate(run, cache, PROMPTS, options.tokens)
    for prompt, tokens in zip(PROMPTS, ours, strict=True):
        print(prompt, "→", *tokens)
    print(f"tvm_byoc_dnnl  {run}")

    try:
        import onnxruntime
    except ImportError:
        print("onnxruntime is not installed: nothing to compare with")
        return
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    run = Timed(lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)))
    theirs = generate(run, cache, PROMPTS, options.tokens)
    print(f"ONNX Runtime   {run}")
    if not np.array_equal(ours, theirs):
        raise SystemExit(f"other tokens than ONNX Runtime: {theirs.tolist()}")
    print("the tokens are equal")


if __name__ == "__main__":
    main()
