"""Softmax and log-softmax, over any axis."""

from __future__ import annotations

from typing import Any

from ...vendor import GraphBuilder, Value, register_lowering
from .common import require_float

__all__: list[str] = []

_ALGORITHMS = {"relax.nn.softmax": "accurate", "relax.nn.log_softmax": "log"}


@register_lowering("dnnl", list(_ALGORITHMS))
def softmax(g: GraphBuilder, call: Any) -> Value:
    """Softmax along one axis."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    axis = int(call.attrs.axis) % src.ndim
    return g.emit("softmax", [src], src.shape, alg=_ALGORITHMS[call.op.name], axis=axis)
