"""Models that are nearly all weights, built in code, and what they compute in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from tvm_byoc_dnnl.ir.relax_utils import make_constant

__all__ = ["TOKENS", "weighty_model"]

#: number of tokens that a model takes
TOKENS = 7


def weighty_model(
    width: int, layers: int, rows: int = 0, seed: int = 0
) -> tuple[tvm.IRModule, Callable[[np.ndarray], np.ndarray]]:
    """``layers`` times relu(x @ w) with w [width, width], for a whole model of one region.

    With ``rows`` the input is numbers of rows of a table [rows, width], which the host looks up.
    """
    rng = np.random.default_rng(seed)

    def draw(count: int) -> np.ndarray:
        # Noise once, repeated: drawing gigabytes would take longer than what is tested.
        noise = rng.standard_normal((min(count, 1 << 10), width), "float32") * np.float32(np.sqrt(2 / width))
        return np.resize(noise, (count, width))

    table = draw(rows) * np.float32(np.sqrt(width)) if rows else None
    weights = [draw(width) for _ in range(layers)]
    shape, dtype = ((TOKENS,), "int64") if rows else ((TOKENS, width), "float32")
    x = relax.Var("x", relax.TensorType(shape, dtype))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x if table is None else bb.emit(relax.op.take(make_constant(table), x, axis=0))
            for w in weights:
                y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.matmul(y, make_constant(w)))))
            out = bb.emit_output(y)
        bb.emit_func_output(out)

    def reference(value: np.ndarray) -> np.ndarray:
        y = value if table is None else table[value]
        for w in weights:
            y = np.maximum(y @ w, 0)
        return y

    return bb.get(), reference
