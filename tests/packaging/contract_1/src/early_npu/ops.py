"""Which calls early_npu takes: elementwise operators on float32 tensors of known shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

import tvm_byoc_dnnl as byoc

__all__ = ["register"]

UNARY = ("relax.abs", "relax.negative", "relax.nn.relu", "relax.sign", "relax.square")
BINARY = ("relax.add", "relax.maximum", "relax.minimum", "relax.multiply", "relax.subtract")


def register(namespace: str) -> None:
    """Register one predicate for each operator."""
    byoc.register_annotate_compiler(namespace, UNARY, takes)
    byoc.register_annotate_compiler(namespace, BINARY, takes)


def takes(attrs: Any, args: Sequence[Any]) -> bool | byoc.Reject:
    """Whether all operands are float32 tensors of one shape; if not, the first thing that is in the way."""
    shapes = []
    for arg in args:
        if not isinstance(arg.ty, relax.TensorType):
            return byoc.Reject(f"an operand of type {arg.ty}; early_npu takes tensors")
        if str(arg.ty.dtype) != "float32":
            return byoc.Reject(f"dtype {arg.ty.dtype}; early_npu computes in float32 only")
        if not isinstance(arg.ty.shape, relax.ShapeExpr) or any(not isinstance(d, int) for d in dims(arg)):
            return byoc.Reject(f"shape {arg.ty.shape}; early_npu needs numbers")
        shapes.append(dims(arg))
    if len(set(shapes)) > 1:
        return byoc.Reject(f"shapes {' and '.join(map(str, shapes))}; early_npu does not broadcast")
    return True


def dims(arg: Any) -> tuple[Any, ...]:
    """The dimensions of a tensor; those that are numbers as numbers."""
    return tuple(getattr(d, "value", d) for d in arg.ty.shape.values)
