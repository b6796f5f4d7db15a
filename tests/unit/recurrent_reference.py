"""Recurrent layers by ONNX's definition, in NumPy and float64: one sequence after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

GATES = {"rnn": 1, "lstm": 4, "coupled_lstm": 4, "gru": 3, "lbr_gru": 3}

#: name → the function of x, alpha and beta
CURVES: dict[str, Any] = {
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}


def layer(
    cell: str,
    source: np.ndarray,
    weights: np.ndarray,
    recurrent: np.ndarray,
    *,
    directions: Sequence[str],
    curves: Sequence[tuple[str, float, float]],
    bias: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    state: np.ndarray | None = None,
    memory: np.ndarray | None = None,
    peepholes: np.ndarray | None = None,
    clip: float = np.inf,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The states of all steps (T, D, B, H), and the last states and cells (D, B, H).

    ``curves`` are the activations of all directions, each with its alpha and beta.
    """
    steps, batch, _ = source.shape
    count, _, hidden = recurrent.shape
    gates, each = GATES[cell], len(curves) // len(directions)
    every = np.zeros((steps, count, batch, hidden))
    last = np.zeros((count, batch, hidden)) if state is None else state.astype(float)
    cells = np.zeros((count, batch, hidden)) if memory is None else memory.astype(float)
    for d in range(count):
        w, r = (m[d].reshape(gates, hidden, -1).astype(float) for m in (weights, recurrent))
        bw, br = np.zeros((2, gates, hidden)) if bias is None else bias[d].reshape(2, gates, hidden).astype(float)
        p = np.zeros((3, hidden)) if peepholes is None else peepholes[d].reshape(3, hidden).astype(float)

        def act(which: int, x: np.ndarray, d: int = d) -> np.ndarray:
            name, alpha, beta = curves[d * each + which]
            limit = np.inf if which == 2 else clip  # a cell is not a sum of a gate
            return CURVES[name](np.clip(x, -limit, limit), alpha, beta)

        for b in range(batch):
            length = steps if lengths is None else int(lengths[b])
            h, c = last[d, b], cells[d, b]
            if length == 0:  # as in ONNX Runtime; the standard does not say
                h, c = np.zeros((2, hidden))
            for step in range(length):
                time = length - 1 - step if directions[d] == "reverse" else step
                xs = w @ source[time, b].astype(float) + bw
                hs = r @ h + br
                if cell == "rnn":
                    h = act(0, xs[0] + hs[0])
                elif cell.endswith("lstm"):
                    i = act(0, xs[0] + hs[0] + p[0] * c)
                    f = 1 - i if cell == "coupled_lstm" else act(0, xs[2] + hs[2] + p[2] * c)
                    c = f * c + i * act(1, xs[3] + hs[3])
                    h = act(0, xs[1] + hs[1] + p[1] * c) * act(2, c)
                else:
                    z, reset = act(0, xs[0] + hs[0]), act(0, xs[1] + hs[1])
                    inner = reset * hs[2] if cell == "lbr_gru" else r[2] @ (reset * h) + br[2]
                    h = (1 - z) * act(1, xs[2] + inner) + z * h
                every[time, d, b] = h
            last[d, b], cells[d, b] = h, c
    return every, last, cells


def recurrent(inputs: list, a: dict, shape: Any) -> np.ndarray:
    """The node kind: the wanted results, in the order of its rows."""
    source, weights, recurrent, *others = inputs
    given = dict(zip(a["roles"], others, strict=True))
    if (scales := given.pop("scales", None)) is not None:
        of_source, of_states = np.split(scales, 2, axis=1)
        weights, recurrent = weights * of_source[..., None], recurrent * of_states[..., None]
    every, last, cells = layer(
        a["alg"],
        source,
        weights,
        recurrent,
        directions=a["directions"],
        curves=list(zip(a["activations"], a["alphas"], a["betas"], strict=True)),
        memory=given.pop("cell", None),
        clip=float(a["clip"]),
        **given,
    )
    rows = {"state": last[None], "cell": cells[None], "all": every}
    return np.concatenate([rows[name] for name in a["results"]])
