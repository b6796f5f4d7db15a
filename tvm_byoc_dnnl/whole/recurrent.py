"""LSTM, GRU and RNN of ONNX, kept whole: what a call means, and its definition as a loop over any number of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..core.errors import InputError, UnsupportedError
from ..ir.relax_utils import shape_dims
from ..ir.tvm_compat import dtype_of
from .recurrent_loop import Curve, Loop, loop, shapes
from .table import Operator, attributes_of, declare, inputs_of

__all__ = ["RECURRENT", "Layer", "layer_of"]

_GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
_USUAL = {"RNN": ["tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}
_DIRECTIONS = {
    "forward": ("forward",),
    "reverse": ("reverse",),
    "bidirectional": ("forward", "reverse"),
}
#: name in ONNX, in lower case → name here, and the defaults of alpha and beta, of those that it has
_CURVES: dict[str, tuple[str, tuple[float, ...]]] = {
    "sigmoid": ("sigmoid", ()),
    "tanh": ("tanh", ()),
    "relu": ("relu", ()),
    "affine": ("affine", (1.0, 0.0)),
    "leakyrelu": ("leaky_relu", (0.01,)),
    "thresholdedrelu": ("thresholded_relu", (1.0,)),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)),
    "elu": ("elu", (1.0,)),
    "softsign": ("softsign", ()),
    "softplus": ("softplus", ()),
}
#: the operators
RECURRENT = tuple(f"onnx.{name}" for name in _GATES)


@dataclass(frozen=True)
class Layer:
    """A call of an LSTM, a GRU or an RNN.

    Attributes
    ----------
    cell : str
        ``"rnn"``, ``"lstm"``, ``"coupled_lstm"``, ``"gru"``, or ``"lbr_gru"``, in which the reset gate multiplies the
        product with the recurrent weights.
    directions : tuple of str
        ``"forward"``, ``"reverse"``.
    curves : tuple of Curve
        The activations f, g and h, as many as the cell has, for one direction after the other.
    clip : float
        The sums of the gates are limited to [-clip, clip]; infinity for no limit.
    batch_major : bool
        Whether the batch is the first axis of the source and of the states.
    inputs : dict of str to Expr
        ``"source"`` (steps, batch, input), ``"weights"`` (directions, gates·hidden, input) and ``"recurrent"``
        (directions, gates·hidden, hidden); where there are such, ``"bias"`` (directions, 2·gates·hidden), ``"lengths"``
        (batch,), ``"state"`` and ``"cell"`` (directions, batch, hidden), ``"peepholes"`` (directions, 3·hidden).
    """

    cell: str
    directions: tuple[str, ...]
    curves: tuple[Curve, ...]
    clip: float
    batch_major: bool
    inputs: Mapping[str, Any]


_ROLES = ("source", "weights", "recurrent", "bias", "lengths", "state", "cell", "peepholes")


def layer_of(call: Any) -> Layer:
    """What a call of one of `RECURRENT` computes; an `InputError` for attributes that the standard does not have."""
    op = call.op.name.removeprefix("onnx.")
    attributes = attributes_of(call)
    direction = str(attributes["direction"]).lower()
    if direction not in _DIRECTIONS:
        raise InputError(f"{op} has the direction {direction!r}; expected one of {', '.join(_DIRECTIONS)}")
    directions = _DIRECTIONS[direction]
    cell = op.lower()
    if op == "GRU" and attributes["linear_before_reset"]:
        cell = "lbr_gru"
    if op == "LSTM" and attributes["input_forget"]:
        cell = "coupled_lstm"
    inputs = dict(zip(_ROLES, inputs_of(call), strict=False))
    clip = attributes.get("clip")
    return Layer(
        cell,
        directions,
        _curves(op, len(directions), attributes),
        math.inf if clip is None else float(clip),
        bool(attributes["layout"]),
        {role: value for role, value in inputs.items() if value is not None},
    )


def _curves(op: str, directions: int, attributes: Mapping[str, Any]) -> tuple[Curve, ...]:
    """The activations. Each takes the next alpha and the next beta, if it has such."""
    names = [str(name).lower() for name in attributes.get("activations") or ()] or _USUAL[op] * directions
    if len(names) != len(_USUAL[op]) * directions:
        raise InputError(
            f"{op} has {len(names)} activations; expected {len(_USUAL[op])} for each of {directions} direction"
            f"{'s' if directions > 1 else ''}"
        )
    given = [iter(attributes.get(f"activation_{which}") or ()) for which in ("alpha", "beta")]
    curves = []
    for name in names:
        if name not in _CURVES:
            raise InputError(f"{op} has the activation {name!r}; expected one of {', '.join(_CURVES)}")
        own, defaults = _CURVES[name]
        numbers = [float(next(values, default)) for values, default in zip(given, defaults, strict=False)]
        curves.append(Curve(own, *numbers))
    return tuple(curves)


def _dims(layer: Layer) -> tuple[Any, Any, Any, str]:
    """Steps, batch, hidden size and dtype."""
    source, recurrent = (layer.inputs[role] for role in ("source", "recurrent"))
    dims, sizes = shape_dims(source.ty), shape_dims(recurrent.ty)
    if dims is None or sizes is None or len(dims) != 3 or len(sizes) != 3:
        kind = UnsupportedError if dims is None or sizes is None else InputError
        raise kind(f"has the source {source.ty} and the weights {recurrent.ty}; expected shapes of rank 3")
    steps, batch = dims[:2] if not layer.batch_major else (dims[1], dims[0])
    return steps, batch, sizes[2], dtype_of(source.ty)


def _check(layer: Layer, op: str, attributes: Mapping[str, Any]) -> None:
    """Compare the sizes that are numbers; those that are open are compared where they are known."""
    _, batch, hidden, _ = _dims(layer)
    size, count = (shape_dims(layer.inputs["source"].ty) or [None])[-1], len(layer.directions)
    expected = shapes(count, _GATES[op], batch, size, hidden)
    if layer.batch_major:
        expected["state"] = expected["cell"] = [batch, count, hidden]
    for role in filter(layer.inputs.__contains__, expected):
        got = shape_dims(layer.inputs[role].ty) or []
        pairs = list(zip(got, expected[role], strict=False))
        fits = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
        if not fits or len(got) != len(expected[role]):
            shown = [", ".join(map(str, dims)) for dims in (got, expected[role])]
            raise InputError(f"{op} has {role} of shape ({shown[0]}); expected ({shown[1]})")
    given = attributes.get("hidden_size")
    if given is not None and isinstance(hidden, int) and given != hidden:
        raise InputError(f"{op} has the hidden_size {given}; expected that of its weights, {hidden}")


def _types(call: Any) -> list[Any]:
    layer = layer_of(call)
    steps, batch, hidden, dtype = _dims(layer)
    _check(layer, call.op.name.removeprefix("onnx."), attributes_of(call))
    count = len(layer.directions)
    every, last = [steps, count, batch, hidden], [count, batch, hidden]
    if layer.batch_major:
        every, last = [batch, steps, count, hidden], [batch, count, hidden]
    results = [every, last] + ([last] if layer.cell.endswith("lstm") else [])
    return [relax.TensorType(shape, dtype) for shape in results]


def _build(bb: relax.BlockBuilder, call: Any, _node: str) -> Sequence[Any]:
    """The definition: one loop over all steps, in a function of its own."""
    layer = layer_of(call)
    values = dict(layer.inputs)
    if layer.batch_major:
        for role in filter(values.__contains__, ("source", "state", "cell")):
            values[role] = bb.emit(relax.op.permute_dims(values[role], [1, 0, 2]))
    gates = _GATES[call.op.name.removeprefix("onnx.")]
    done = loop(bb, Loop(layer.cell, gates, layer.directions, layer.curves, layer.clip), values)
    results = [bb.emit(relax.TupleGetItem(done, i)) for i in range(3 if layer.cell.endswith("lstm") else 2)]
    if layer.batch_major:
        axes = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
        results = [bb.emit(relax.op.permute_dims(r, a)) for r, a in zip(results, axes, strict=False)]
    return results


def _declare() -> None:
    common = {
        "activations": None, "activation_alpha": None, "activation_beta": None, "clip": None, "direction": "forward",
        "hidden_size": None, "layout": 0, "output_sequence": None,
    }  # fmt: skip
    own = {"LSTM": {"input_forget": 0}, "GRU": {"linear_before_reset": 0}, "RNN": {}}
    for name in _GATES:
        declare(Operator("", name, build=_build, infer=_types, attributes={**common, **own[name]}))


_declare()
