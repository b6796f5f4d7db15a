"""Open sizes: what they cost over fixed ones, what a new size costs, and the same beside ONNX Runtime.

    python -m bench.dynamic [--small]

Compiles a text encoder of BERT-base's size with open and with fixed sizes, and a decoder of 125 M parameters with a
cache. Run it on a quiet machine; the parts take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tvm_byoc_dnnl as byoc
from examples.open_models import decoder, encoder

_SEEN, _NEW = 128, (96, 64, 120, 31)
_PAST, _STEPS = (100, 500), 12


def _milliseconds(call: Callable[[], Any], repeat: int = 7) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def _text(length: int) -> dict[str, np.ndarray]:
    return {"input_ids": np.arange(length)[None] % 100, "attention_mask": np.ones((1, length), "int64")}


def _step(model: onnx.ModelProto, past: int) -> dict[str, np.ndarray]:
    feeds = {"input_ids": np.array([[7]]), "attention_mask": np.ones((1, past + 1), "int64")}
    rng = np.random.default_rng(0)
    for value in model.graph.input:
        if value.name.startswith("past"):
            _, heads, _, size = (d.dim_value for d in value.type.tensor_type.shape.dim)
            feeds[value.name] = rng.standard_normal((1, heads, past, size), dtype=np.float32)
    return {**feeds, "position_ids": np.array([[past]])}


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def measure_encoder(small: bool) -> None:
    """A seen size beside the fixed model and ONNX Runtime, and the first call of new sizes."""
    model = encoder(2, 64, 4, 100, 128) if small else encoder()
    fixed = byoc.Runner(byoc.compile(model, shapes=dict.fromkeys(_text(1), (1, _SEEN))))
    runner, session = byoc.Runner(byoc.compile(model)), _session(model)
    feeds = runner.tensors((), _text(_SEEN))
    rounds = []
    for _ in range(5):
        calls = (lambda: fixed.run_tvm(*feeds), lambda: runner.run_tvm(*feeds), lambda: session.run(None, _text(_SEEN)))
        rounds.append([_milliseconds(call, 3) for call in calls])
    of_fixed, seen, theirs = (statistics.median(times) for times in zip(*rounds))
    ratio = statistics.median(r[1] / r[0] for r in rounds)
    print(f"encoder, {_SEEN} tokens: fixed {of_fixed:.2f} ms, open {seen:.2f} ms, ratio {ratio:.3f}")
    print(f"encoder, {_SEEN} tokens: ONNX Runtime {theirs:.2f} ms")
    for length in _NEW:
        tensors = runner.tensors((), _text(length))
        first = _milliseconds(lambda: runner.run_tvm(*tensors), 1)  # noqa: B023
        later = _milliseconds(lambda: runner.run_tvm(*tensors))  # noqa: B023
        print(f"encoder, {length} tokens: first call {first:.2f} ms, later {later:.2f} ms, {first - later:.2f} ms more")


def _steps(step: Callable[[dict[str, np.ndarray]], list[np.ndarray]], feeds: dict[str, np.ndarray]) -> float:
    """Milliseconds of a step, each of which gets the cache that the step before it returned."""
    names = [name for name in feeds if name.startswith("past")]
    times = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        _, *cache = step(feeds)
        times.append(1e3 * (time.perf_counter() - start))
        past = cache[0].shape[2]
        feeds = {**feeds, "attention_mask": np.ones((1, past + 1), "int64"), "position_ids": np.array([[past]])}
        feeds.update(zip(names, cache, strict=True))
    return statistics.median(times)


def measure_decoder(small: bool) -> None:
    """Steps of one token behind a cache, which grows with each, beside ONNX Runtime."""
    model = decoder(2, 64, 4, 4, 100) if small else decoder()
    runner, session = byoc.Runner(byoc.compile(model)), _session(model)
    for past in _PAST:
        feeds = _step(model, past)
        rounds = [
            (_steps(lambda f: list(runner(f)), feeds), _steps(lambda f: session.run(None, f), feeds)) for _ in range(3)
        ]
        ours, theirs = (statistics.median(times) for times in zip(*rounds, strict=True))
        print(f"decoder, 1 token behind {past}: {ours:.2f} ms a step, ONNX Runtime {theirs:.2f} ms")


def main() -> None:
    """Measure both, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny models, to try the command")
    options = parser.parse_args()
    measure_encoder(options.small)
    measure_decoder(options.small)


if __name__ == "__main__":
    main()
