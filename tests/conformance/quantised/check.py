"""Compile sequences, run them, and say which lie outside of what their definition allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.models import ort_run

from .sequence import Reals, Sequential, model

__all__ = ["by_onnx_runtime", "by_this_package", "problems", "width"]


def by_this_package(sequences: Sequence[Sequential], is_open: bool = False) -> list[np.ndarray]:
    """The results of all sequences, compiled as one model."""
    run = byoc.Runner(byoc.compile(model(sequences, is_open)))
    got = run(*(x for s in sequences for x in s.feeds.values()))
    return [np.asarray(a) for a in got] if isinstance(got, (list, tuple)) else [np.asarray(got)]


def by_onnx_runtime(sequences: Sequence[Sequential]) -> list[np.ndarray]:
    """The same by ONNX Runtime, without its optimiser."""
    return ort_run(model(sequences), {name: x for s in sequences for name, x in s.feeds.items()})


def problems(sequences: Sequence[Sequential], results: Sequence[np.ndarray]) -> dict[int, str]:
    """Position of each sequence with a result that its definition does not allow, and what is wrong there."""
    found: dict[int, str] = {}
    left = iter(results)
    for place, s in enumerate(sequences):
        for result in s.results:
            got, bounds = next(left), result.bounds
            if got.shape != bounds.low.shape:
                found[place] = f"{result.name} has shape {got.shape}, expected {bounds.low.shape}"
                continue
            room = 1e-6 * np.abs(bounds.high) if isinstance(result, Reals) else 0
            wrong = ~((got >= bounds.low - room) & (got <= bounds.high + room))
            if wrong.any():
                first = tuple(int(i) for i in np.argwhere(wrong)[0])
                found[place] = (
                    f"{result.name}: {wrong.sum()} of {wrong.size} are wrong, first {first}: got {got[first]}, "
                    f"allowed {bounds.low[first]} to {bounds.high[first]}"
                )
    return found


def width(sequences: Sequence[Sequential]) -> float:
    """The share of integers for which more than one value is allowed."""
    open_ = [result.bounds.low != result.bounds.high for s in sequences for result in s.results]
    return float(np.mean(np.concatenate([o.reshape(-1) for o in open_])))


def explain(s: Sequential, run: Callable[[Sequence[Sequential]], list[np.ndarray]]) -> str:
    """A failing sequence, alone: its nodes, and what is wrong."""
    nodes = "\n".join(f"  {n.op_type}({', '.join(n.input)}) -> {n.output[0]}" for n in s.nodes)
    values = "\n".join(f"  {n} = {v.reshape(-1)[:4]} {v.dtype}{list(v.shape)}" for n, v in s.constants.items())
    alone = problems([s], run([s])) or {0: "right when it is alone in a model"}
    return f"{alone[0]}\n{nodes}\n{values}"
