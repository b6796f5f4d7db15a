"""Open sizes: what they cost over fixed ones, what a new size costs, and the same beside ONNX Runtime and OpenVINO.

    python -m bench.dynamic [encoder] [pictures] [decoder] [--small] [--cache FOLDER]

A text encoder of BERT-base's size and ResNet-50, each with open and with fixed sizes, and a decoder of 125 M parameters
with a cache. Run it on a quiet machine; the engines take turns. With a folder for compiled models a second run is
short.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

import tvm_byoc_dnnl as byoc
from bench.weights import session_of
from examples.open_models import decoder, encoder
from tvm_byoc_dnnl.testing.models import light_model

_LENGTH, _NEW_TEXTS = 128, ((1, 96), (1, 64), (1, 120), (1, 31), (2, 128), (3, 20))
_BATCH, _NEW_BATCHES = 4, (1, 2, 8, 3)
_PAST, _STEPS, _ROUNDS = (100, 500), 12, 5
_THREADS = 2


def _milliseconds(call: Callable[[], Any], repeat: int = 7) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def _text(batch: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(batch * length).reshape(batch, length) % 100
    return {"input_ids": ids, "attention_mask": np.ones((batch, length), "int64")}


def _step(model: onnx.ModelProto, past: int) -> dict[str, np.ndarray]:
    feeds = {"input_ids": np.array([[7]]), "attention_mask": np.ones((1, past + 1), "int64")}
    rng = np.random.default_rng(0)
    for value in model.graph.input:
        if value.name.startswith("past"):
            _, heads, _, size = (d.dim_value for d in value.type.tensor_type.shape.dim)
            feeds[value.name] = rng.standard_normal((1, heads, past, size), dtype=np.float32)
    return {**feeds, "position_ids": np.array([[past]])}


class _OpenVino:
    """Results share memory with one of two requests, so that a step reads the cache that the last one wrote."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import openvino as ov

        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": _THREADS,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = ov.Core()
        compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)
        self._requests = itertools.cycle([compiled.create_infer_request() for _ in range(2)])

    def run(self, _: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        results = next(self._requests).infer(feeds, share_inputs=True, share_outputs=True)
        return list(results.values())


def _peers(model: onnx.ModelProto) -> dict[str, Any]:
    peers: dict[str, Any] = {"ONNX Runtime": session_of(model, _THREADS)}
    if importlib.util.find_spec("openvino") is not None:
        peers["OpenVINO"] = _OpenVino(model)
    return peers


def _in_turns(calls: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Milliseconds of each, in rounds; the first round warms up."""
    rounds = [{name: call() for name, call in calls.items()} for _ in range(_ROUNDS + 1)][1:]
    return {name: [r[name] for r in rounds] for name in calls}


def _say(what: str, times: dict[str, list[float]], ours: str) -> None:
    """The medians, and the medians of the rounds' ratios."""
    parts = [f"{ours} {statistics.median(times[ours]):.2f} ms"]
    for name in times.keys() - {ours}:
        ratio = statistics.median(a / b for a, b in zip(times[name], times[ours], strict=True))
        parts.append(f"{name} {statistics.median(times[name]):.2f} ms ({ratio:.3f} times as long)")
    print(f"{what}: {', '.join(parts)}", flush=True)


def _seen_and_new(
    what: str,
    model: onnx.ModelProto,
    feeds: Callable[..., dict[str, np.ndarray]],
    seen: tuple[int, ...],
    new: Sequence[tuple[int, ...]],
    cache: str | None,
) -> None:
    """A seen size beside the fixed model and the peers, and the first call of new sizes."""
    shapes = {name: array.shape for name, array in feeds(*seen).items()}
    fixed = byoc.Runner(byoc.compile(model, shapes=shapes, cache_dir=cache))
    runner, peers = byoc.Runner(byoc.compile(model, cache_dir=cache)), _peers(model)
    tensors, arrays = runner.tensors((), feeds(*seen)), feeds(*seen)
    calls = {
        "open": lambda: _milliseconds(lambda: runner.run_tvm(*tensors), 3),
        "fixed": lambda: _milliseconds(lambda: fixed.run_tvm(*tensors), 3),
    }
    for name, peer in peers.items():
        calls[name] = functools.partial(_milliseconds, functools.partial(peer.run, None, arrays), 3)
    _say(f"{what}, {seen}", _in_turns(calls), "open")
    for size in new:
        tensors = runner.tensors((), feeds(*size))
        first, second = (_milliseconds(lambda: runner.run_tvm(*tensors), 1) for _ in range(2))  # noqa: B023
        later = _milliseconds(lambda: runner.run_tvm(*tensors))  # noqa: B023
        print(
            f"{what}, {size}: the first call takes {first - later:.2f} ms more than later ones, the second "
            f"{second - later:.2f} ms; later {later:.2f} ms",
            flush=True,
        )


def measure_encoder(small: bool, cache: str | None) -> None:
    """A text encoder with open batch and length."""
    model = encoder(2, 64, 4, 100, 128) if small else encoder()
    _seen_and_new("encoder", model, _text, (1, _LENGTH), _NEW_TEXTS, cache)


def measure_pictures(small: bool, cache: str | None) -> None:
    """ResNet-50 with open batch."""
    model = light_model("squeezenet" if small else "resnet50")
    data, *_ = model.graph.input
    data.type.tensor_type.shape.dim[0].dim_param = "N"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    for tensor in model.graph.initializer:  # a reshape to [1, 2048] keeps the batch as it is
        if tensor.data_type == onnx.TensorProto.INT64 and (shape := onnx.numpy_helper.to_array(tensor)).size == 2:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([0, shape[1]]), tensor.name))
    rng = np.random.default_rng(0)

    def pictures(batch: int) -> dict[str, np.ndarray]:
        return {data.name: rng.random((batch, 3, 224, 224), dtype=np.float32)}

    _seen_and_new("ResNet-50", model, pictures, (_BATCH,), [(n,) for n in _NEW_BATCHES], cache)


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


def measure_decoder(small: bool, cache: str | None) -> None:
    """Steps of one token behind a cache, which grows with each."""
    model = decoder(2, 64, 4, 4, 100) if small else decoder()
    runner, peers = byoc.Runner(byoc.compile(model, cache_dir=cache)), _peers(model)
    ours = []
    for past in _PAST:
        feeds = _step(model, past)
        calls = {"this package": lambda: _steps(lambda f: list(runner(f)), feeds)}  # noqa: B023
        for name, peer in peers.items():
            calls[name] = functools.partial(_steps, functools.partial(peer.run, None), feeds)
        times = _in_turns(calls)
        ours.append(statistics.median(times["this package"]))
        _say(f"decoder, 1 token behind {past}", times, "this package")
    rows = sum(int(np.prod(a.shape)) * a.itemsize for n, a in _step(model, 1).items() if n.startswith("past"))
    weights = sum(int(np.prod(t.dims)) * 4 for t in model.graph.initializer)
    bytes_of = [weights + past * rows for past in _PAST]
    more = ours[1] / ours[0] * bytes_of[0] / bytes_of[1] - 1
    print(
        f"decoder: a step behind {_PAST[1]} takes {ours[1] / ours[0]:.3f} times as long as one behind {_PAST[0]}, and "
        f"reads {bytes_of[1] / bytes_of[0]:.3f} times the bytes: {100 * more:.1f} % beyond these"
    )


_PARTS = {"encoder": measure_encoder, "pictures": measure_pictures, "decoder": measure_decoder}


def main() -> None:
    """Measure the parts, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="all of them if none is given")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the command")
    parser.add_argument("--cache", help="folder of compiled models")
    options = parser.parse_args()
    for part in options.parts or _PARTS:
        _PARTS[part](options.small, options.cache)


if __name__ == "__main__":
    main()
