"""LSTM, GRU and RNN: one node each, whatever the number of steps.

    source (T, B, I) ─┐                          ┌─ slice ── last states (D, B, H)
    weights ──────────┴─ recurrent (2+T, D, B, H)┼─ slice ── last cells (D, B, H)
                                                 └─ slice ── states of all steps (T, D, B, H)

Nodes have one result, so it has a row for each result of the call; a slice of rows is a view.
"""

from __future__ import annotations

from typing import Any

from ...vendor import (
    RECURRENT,
    Dim,
    GraphBuilder,
    Value,
    layer_of,
    register_lowering,
    require,
    wanted_of,
)
from .common import product
from .quantize import is_dequantize

_ROLES = ("bias", "peepholes", "state", "cell", "lengths", "scales")
_WEIGHTS = ("weights", "recurrent")
#: the node's results in the order of its rows, and where the call has them
_RESULTS = {"state": 1, "cell": 2, "all": 0}


@register_lowering("dnnl", list(RECURRENT))
def recurrent(g: GraphBuilder, call: Any) -> Value | tuple[Value, ...]:
    """Of any length, in float32, with all options and activations of ONNX; weights of 8 bits as they are stored."""
    layer = layer_of(call)
    values = {role: g.value(expr) for role, expr in layer.inputs.items()}
    for role, value in values.items():
        expected = "int32" if role == "lengths" else "float32"
        require(value.dtype == expected, f"{role} of dtype {value.dtype}; expected {expected}")
    if layer.batch_major:
        values |= {r: g.permute(values[r], (1, 0, 2)) for r in ("source", "state", "cell") if r in values}
    values |= _stored(g, values)
    source, hidden = values["source"], values["recurrent"].shape[2]
    roles = [role for role in _ROLES if role in values]
    wanted = wanted_of(call)
    results = [name for name, place in _RESULTS.items() if place < len(wanted) and wanted[place]]
    last = (len(layer.directions), source.shape[1], hidden)
    first = len([name for name in results if name != "all"])
    out = g.emit(
        "recurrent",
        [values[role] for role in ("source", "weights", "recurrent", *roles)],
        (_sum(source.shape[0], first) if "all" in results else first, *last),
        alg=layer.cell,
        roles=roles,
        results=results,
        directions=list(layer.directions),
        activations=[curve.name for curve in layer.curves],
        alphas=[curve.alpha for curve in layer.curves],
        betas=[curve.beta for curve in layer.curves],
        clip=layer.clip,
    )
    found = {}
    for row, name in enumerate(results):
        shape = (source.shape[0] if name == "all" else 1, *last)
        part = out if len(results) == 1 else g.emit("slice", [out], shape, begin=[row, 0, 0, 0], steps=[1] * 4)
        found[name] = part if name == "all" else g.reshape(part, last)
        if layer.batch_major:
            found[name] = g.permute(found[name], (2, 0, 1, 3) if name == "all" else (1, 0, 2))
    ordered = tuple(found[name] for name in sorted(results, key=_RESULTS.__getitem__))
    return ordered[0] if len(ordered) == 1 else ordered


def _stored(g: GraphBuilder, values: dict[str, Value]) -> dict[str, Value]:
    """The weights as bytes, and their scales, where both have one for each row: reshape(dequantize(rows, scales))."""
    rows, scales = [], []
    for value in (values[role] for role in _WEIGHTS):
        node = g.graph.nodes.producer(value.id)
        while node is not None and node.kind == "reshape":
            node = g.graph.nodes.producer(node.inputs[0])
        if not is_dequantize(node) or node is None:
            return {}
        scaling, stored = node.scalings[0], g.graph.tensors[node.inputs[0]]
        count = value.shape[0], value.shape[1]
        is_by_row = scaling.axis == 0 and scaling.zero_point is None and scaling.scale is not None
        if stored.dtype != "int8" or not is_by_row or stored.shape != (product(count), value.shape[2]):
            return {}
        assert scaling.scale is not None
        rows.append(g.reshape(Value(node.inputs[0], "int8", stored.shape), value.shape))
        scale = g.graph.tensors[scaling.scale]
        scales.append(g.reshape(Value(scaling.scale, "float32", scale.shape), count))
    wide = scales[0].shape[0], product((2, scales[0].shape[1]))
    return dict(zip(_WEIGHTS, rows, strict=True)) | {"scales": g.emit("concat", scales, wide, axis=1)}


def _sum(dim: Dim, number: int) -> Dim:
    return dim + number if isinstance(dim, int) else ("+", dim, number) if number else dim
