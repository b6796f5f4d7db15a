"""Narrow floats of PyTorch, as in a model in bfloat16 or under autocast.

TVM's importer gives products and convolutions of them a result in float32, and takes no norm whose data are narrower
than its parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

from ...ir.tvm_compat import dtype_of

__all__ = ["CONVERTERS"]

_OVERLOADS = (
    "addmm.default",
    "baddbmm.default",
    "bmm.default",
    "conv1d.default",
    "conv2d.default",
    "conv3d.default",
    "conv_transpose1d.default",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution.default",
    "linear.default",
    "matmul.default",
    "mm.default",
)
_NARROW = ("bfloat16", "float16")


def _converter(overload: str) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        usual = importer.create_convert_map()[overload]
        if str(node.meta["val"].dtype).removeprefix("torch.") not in _NARROW:
            return usual(node)
        builder = importer.block_builder
        importer.block_builder = _OwnDtype(builder)
        try:
            return usual(node)
        finally:
            importer.block_builder = builder

    return convert


def _widened(overload: str) -> Callable[[Any, Any], Any]:
    """A norm whose parameters are wider than its data: computed as they are, as PyTorch does."""

    def convert(node: Any, importer: Any) -> Any:
        usual, builder = importer.create_convert_map()[overload], importer.block_builder
        data, *parameters = [importer.env[a] for a in node.args if a in importer.env]
        narrow, wide = dtype_of(data.ty), {dtype_of(p.ty) for p in parameters}
        if not wide or wide == {narrow}:
            return usual(node)
        importer.env[node.args[0]] = builder.emit(relax.op.astype(data, wide.pop()))
        try:
            return builder.emit(relax.op.astype(usual(node), narrow))
        finally:
            importer.env[node.args[0]] = data

    return convert


class _OwnDtype:
    """A block builder whose products have the dtype of their operands."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, expr: Any, *names: str) -> Any:
        return self._builder.emit(self._own(expr), *names)

    def _own(self, expr: Any) -> Any:
        if not isinstance(expr, relax.Call):
            return expr
        args = [self._builder.normalize(self._own(arg)) for arg in expr.args]
        attrs = expr.attrs
        if str(getattr(attrs, "out_dtype", "") or "") == "float32" and dtype_of(args[0].ty) in _NARROW:
            about = type(attrs).__tvm_ffi_type_info__
            fields = {field.name: getattr(attrs, field.name) for field in about.fields}
            attrs = tvm.ir.make_node(about.type_key, **{**fields, "out_dtype": dtype_of(args[0].ty)})
        return relax.Call(expr.op, args, attrs, expr.ty_args)


#: in place of the importer's own, by the name of the overload
CONVERTERS = {overload: _converter(overload) for overload in _OVERLOADS} | {
    overload: _widened(overload) for overload in ("_native_batch_norm_legit_no_training.default",)
}
