"""How far results of quantised networks are from exact ones: ``python -m bench.drift [NAME ...] [--inputs N]``.

The reference is ONNX's own evaluator with real numbers in float64: only quantising rounds. Beside this package stands
ONNX Runtime, with its graph optimisations (on integers) and without them (in float32).
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.models import random_inputs

from .int8 import quantized
from .zoo import zoo_model

__all__ = ["main"]

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2")


class DequantizeLinear(OpRun):  # the name is that of the operator
    """ONNX's operator with a result in float64, in which everything behind it is computed too."""

    def _run(self, x: Any, scale: Any, zero: Any = None, axis: int = 1, **_unused: Any) -> tuple[np.ndarray]:
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)] if np.size(scale) > 1 else []
        scale, zero = (
            np.reshape(np.asarray(v, "float64"), shape) for v in (scale, 0 * scale if zero is None else zero)
        )
        return ((x.astype("float64") - zero) * scale,)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (np.asarray(v, "float64").reshape(-1) for v in (a, b))
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def _session(model: onnx.ModelProto, level: str) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)[0]


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--inputs", default=4, help="Inputs of each network; the least cosine of them is shown.")
def main(names: tuple[str, ...], inputs: int) -> None:
    """Compare results; NAMES are networks of `bench.zoo`."""
    pairs = [("byoc", "exact"), ("onnxruntime", "exact"), ("float32", "exact"), ("byoc", "onnxruntime")]
    print(f"{'network':16}", *(f"{a} to {b:14}" for a, b in pairs))
    for name in names or NETWORKS:
        model = quantized(zoo_model(name).model)
        run = byoc.Runner(byoc.compile(model))
        engines = {
            "byoc": lambda feeds, run=run: np.asarray(r[0] if isinstance(r := run(feeds), (list, tuple)) else r),
            "onnxruntime": _session(model, "ORT_ENABLE_ALL"),
            "float32": _session(model, "ORT_DISABLE_ALL"),
            "exact": lambda feeds, model=model: ReferenceEvaluator(model, new_ops=[DequantizeLinear]).run(None, feeds)[
                0
            ],
        }
        least = dict.fromkeys(pairs, 1.0)
        for seed in range(100, 100 + inputs):
            feeds = random_inputs(model, seed)
            results = {engine: call(feeds) for engine, call in engines.items()}
            least = {(a, b): min(c, _cosine(results[a], results[b])) for (a, b), c in least.items()}
        print(f"{name:16}", *(f"{least[a, b]:<{len(a) + 18}.5f}" for a, b in pairs), flush=True)


if __name__ == "__main__":
    main(prog_name="python -m bench.drift")
