"""How far results of quantised networks are from others': ``python -m bench.drift [NAME ...] [--inputs N]``.

The reference is ONNX Runtime, on a CPU with VNNI, where its integer sums are exact. Beside this package stands ONNX
Runtime without its optimiser, which computes the same model in float32 between the roundings: it shows how far two
right results are from each other. ``--exact N`` adds, for N inputs, ONNX's own evaluator with real numbers in float64.

Networks with random weights have outputs in which many classes are nearly equal. Therefore the class is compared in
two ways: as it is, and as right where the reference gives it at most one quantisation step less than its own choice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core._native import engine_info
from tvm_byoc_dnnl.testing.models import random_inputs

from .int8 import NETWORKS, quantized
from .zoo import ZooModel, zoo_model
from .zoo.inputs import picture

__all__ = ["main"]

#: trained networks, which PyPI packages contain, and the axis of their classes
TRAINED = {"page_orientation": -1, "ocr_direction": -1}
_CLASS_AXIS = {"unet": 1, **TRAINED}

Feeds = dict[str, np.ndarray]


class DequantizeLinear(OpRun):  # the name is that of the operator
    """ONNX's operator with a result in float64, in which everything behind it is computed too."""

    def _run(self, x: Any, scale: Any, zero: Any = None, axis: int = 1, **_unused: Any) -> tuple[np.ndarray]:
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)] if np.size(scale) > 1 else []
        scale, zero = (
            np.reshape(np.asarray(v, "float64"), shape) for v in (scale, 0 * scale if zero is None else zero)
        )
        return ((x.astype("float64") - zero) * scale,)


def _feeds(network: ZooModel, seed: int) -> Feeds:
    """Noise for random weights; for trained ones a page of text, turned by a quarter for each seed."""
    if network.name not in TRAINED:
        return random_inputs(network.model, seed)
    ((name, shape),) = network.shapes.items()
    turns = seed % 4 if shape[2] == shape[3] else 2 * (seed % 2)
    page = picture(np.random.default_rng(seed), shape)
    return {name: np.ascontiguousarray(np.rot90(page, turns, axes=(2, 3)))}


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (np.asarray(v, "float64").reshape(-1) for v in (a, b))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _classes(got: np.ndarray, want: np.ndarray, axis: int) -> tuple[float, float]:
    """Shares of classes that are the same: as they are, and up to one quantisation step of ``want``."""
    mine = np.expand_dims(got.argmax(axis), axis)
    best = want.max(axis, keepdims=True)
    values = np.unique(want)
    step = np.diff(values).min() * 1.001 if values.size > 1 else 0
    same = mine == np.expand_dims(want.argmax(axis), axis)
    return float(same.mean()), float((np.take_along_axis(want, mine, axis) >= best - step).mean())


def _session(model: onnx.ModelProto, level: str) -> Callable[[Feeds], np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


def _evaluator(model: onnx.ModelProto) -> Callable[[Feeds], np.ndarray]:
    evaluator = ReferenceEvaluator(model, new_ops=[DequantizeLinear])
    return lambda feeds: evaluator.run(None, feeds)[0]


def _byoc(network: ZooModel, model: onnx.ModelProto) -> Callable[[Feeds], np.ndarray]:
    run = byoc.Runner(byoc.compile(model, shapes=dict(network.shapes) or None))
    return lambda feeds: np.asarray(r[0] if isinstance(r := run(feeds), (list, tuple)) else r)


def _line(name: str, pair: str, cosines: list[float], classes: list[tuple[float, float]]) -> str:
    same, near = np.mean(classes, axis=0) * 100
    return (
        f"{name:18} {pair:28} {len(cosines):5}  {min(cosines):.5f}  {np.median(cosines):.5f}  {same:7.2f} %  "
        f"{near:7.2f} %"
    )


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--inputs", default=1000, help="Seeded inputs of each network.")
@click.option("--float32", "floats", default=100, help="Of these, how many are also computed between the roundings.")
@click.option("--exact", default=0, help="Of these, how many are also computed by exact arithmetic; seconds for each.")
def main(names: tuple[str, ...], inputs: int, floats: int, exact: int) -> None:
    """Compare results; NAMES are networks of `bench.zoo`."""
    click.echo(f"oneDNN's instruction set here: {engine_info('dnnl')['isa']}")
    click.echo(f"{'network':18} {'results':28} inputs  cosine: least, median  same class, up to a step")
    for name in names or (*NETWORKS, *TRAINED):
        network = zoo_model(name)
        model = quantized(network.model, inputs=partial(_feeds, network))
        engines = {
            "byoc": _byoc(network, model),
            "onnxruntime": _session(model, "ORT_ENABLE_ALL"),
            "float32": _session(model, "ORT_DISABLE_ALL"),
            "exact": _evaluator(model),
        }
        used = {"byoc": inputs, "onnxruntime": inputs, "float32": floats, "exact": exact}
        pairs = [("byoc", "onnxruntime"), ("float32", "onnxruntime"), ("byoc", "float32")]
        pairs += [(engine, "exact") for engine in ("byoc", "onnxruntime", "float32")] if exact else []
        cosines: dict[tuple[str, str], list[float]] = {pair: [] for pair in pairs}
        classes: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in pairs}
        for count in range(inputs):
            feeds = _feeds(network, 100 + count)
            results = {engine: call(feeds) for engine, call in engines.items() if count < used[engine]}
            for got, want in pairs:
                if got in results and want in results:
                    cosines[got, want].append(_cosine(results[got], results[want]))
                    classes[got, want].append(_classes(results[got], results[want], _CLASS_AXIS.get(name, -1)))
        for got, want in pairs:
            click.echo(_line(name, f"{got} to {want}", cosines[got, want], classes[got, want]))


if __name__ == "__main__":
    main(prog_name="python -m bench.drift")
