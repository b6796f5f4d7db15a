"""Matrix products."""

from __future__ import annotations

from typing import Any

from ...lower.builder import GraphBuilder, Value
from ...registry import register_lowering
from .common import product, require_float

__all__: list[str] = []


@register_lowering("dnnl", "relax.matmul")
def matmul(g: GraphBuilder, call: Any) -> Value:
    """NumPy's matmul: operands of rank 1 and batch axes that broadcast included."""
    a, b = g.value(call.args[0]), g.value(call.args[1])
    require_float("relax.matmul", a, b)
    out_shape, dtype = g.shape_of(call.ty), str(call.ty.dtype)
    if a.ndim == 1:
        a = g.reshape(a, (1, *a.shape))
    if b.ndim == 1:
        b = g.reshape(b, (*b.shape, 1))
    m, n = a.shape[-2], b.shape[-1]
    if b.ndim == 2 and a.ndim > 2:
        # one tall product instead of a batch of small ones
        out = g.emit(
            "matmul",
            [g.reshape(a, (product(a.shape[:-1]), a.shape[-1])), b],
            (product(a.shape[:-1]), n),
            dtype,
        )
        return g.reshape(out, out_shape)
    rank = max(a.ndim, b.ndim)
    a, b = (g.reshape(v, (1,) * (rank - v.ndim) + v.shape) for v in (a, b))
    batch = [y if x == 1 else x for x, y in zip(a.shape[:-2], b.shape[:-2], strict=True)]
    return g.reshape(g.emit("matmul", [a, b], (*batch, m, n), dtype), out_shape)
