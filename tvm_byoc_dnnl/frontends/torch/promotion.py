"""Arithmetic of PyTorch on integers whose result is floating: TVM's importer keeps the integers' type.

``1.0 - mask`` and ``positions / 2`` of integer tensors would be cut to integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...ir.tvm_compat import dtype_of

__all__ = ["CONVERTERS"]

_OPERATORS = {
    "add.Tensor": relax.op.add,
    "div.Tensor": relax.op.divide,
    "mul.Tensor": relax.op.multiply,
    "reciprocal.default": lambda a: relax.op.divide(relax.const(1, dtype_of(a.ty)), a),
    "pow.Scalar": relax.op.power,
    "pow.Tensor_Scalar": relax.op.power,
    "pow.Tensor_Tensor": relax.op.power,
    "rsub.Scalar": lambda a, b: relax.op.subtract(b, a),
    "rsub.Tensor": lambda a, b: relax.op.subtract(b, a),
    "sub.Tensor": relax.op.subtract,
}


def _promoting(overload: str, operator: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        bb, operands = importer.block_builder, importer.retrieve_args(node)[:2]
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        if "float" not in dtype or not any(map(_is_integral, operands)):
            return importer.create_convert_map()[overload](node)
        floating = [bb.normalize(_as(bb, operand, dtype)) for operand in operands]
        if (alpha := node.kwargs.get("alpha", 1)) != 1:
            floating[1] = bb.emit(relax.op.multiply(floating[1], relax.const(alpha, dtype)))
        return bb.emit(operator(*floating))

    return convert


def _is_tensor(value: Any) -> bool:
    return isinstance(getattr(value, "ty", None), relax.TensorType)


def _is_integral(value: Any) -> bool:
    return _is_tensor(value) and "float" not in dtype_of(value.ty)


def _as(bb: relax.BlockBuilder, value: Any, dtype: str) -> Any:
    if not _is_tensor(value):
        return relax.const(value, dtype)
    return value if dtype_of(value.ty) == dtype else bb.emit(relax.op.astype(value, dtype))


#: in place of the importer's own, by the name of the overload
CONVERTERS = {overload: _promoting(overload, operator) for overload, operator in _OPERATORS.items()}
