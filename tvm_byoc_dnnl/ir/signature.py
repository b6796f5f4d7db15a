"""Inputs and outputs of a model: name, dtype and shape of each tensor, under the names that its author gave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax, tirx

from ..core.tensor_info import TensorInfo
from .relax_utils import shape_dims
from .tvm_compat import dtype_of, var_name

#: attribute of ``main``: symbol -> the dim that it stands for, such as ``2*h``
DIMS_ATTR = "open_dims"
#: attribute of ``main``: dims of each output as the model says them; Relax forgets those of which no input has a symbol
OUTPUTS_ATTR = "output_dims"
#: attribute of ``main``: output name → the strings whose indices it gives
LABELS_ATTR = "string_labels"
#: attribute of ``main``: symbol -> the size that the model is optimised for
USUAL_SIZES_ATTR = "usual_sizes"
#: attribute of ``main``: variable -> name of the ONNX node that it is made of
NODES_ATTR = "onnx_nodes"


def inputs_of(func: relax.Function) -> list[TensorInfo]:
    """The inputs of a Relax function."""
    names = _names(func, "input_names")
    symbols = _Symbols(func)
    return [_info(n, p.ty, symbols) for n, p in zip([*names, *map(var_name, func.params[len(names) :])], func.params)]


def outputs_of(func: relax.Function) -> list[TensorInfo]:
    """The outputs of a Relax function; a tuple inside of a tuple is one output without a type."""
    types = list(func.ret_ty.fields) if isinstance(func.ret_ty, relax.TupleType) else [func.ret_ty]
    names = _names(func, "output_names")
    if len(names) != len(types):
        names = [f"output_{i}" for i in range(len(types))]
    symbols = _Symbols(func)
    infos = [_info(name, ty, symbols) for name, ty in zip(names, types, strict=True)]
    said = list((func.attrs or {}).get(OUTPUTS_ATTR, ()))
    return [_said(info, dims) for info, dims in zip(infos, said, strict=True)] if len(said) == len(infos) else infos


def _names(func: relax.Function, attribute: str) -> Sequence[str]:
    return [str(name) for name in (func.attrs or {}).get(attribute, ())]


def _said(info: TensorInfo, dims: Sequence[Any]) -> TensorInfo:
    if not dims or (info.shape is not None and all(isinstance(d, int) or d.isidentifier() for d in info.shape)):
        return info
    return replace(info, shape=tuple(int(d) if str(d).isdecimal() else str(d) for d in dims))


def _info(name: str, ty: Any, symbols: _Symbols) -> TensorInfo:
    if not isinstance(ty, relax.TensorType):
        return TensorInfo(name, "", None)
    dims = shape_dims(ty)
    shape = None if dims is None else tuple(d if isinstance(d, int) else symbols.text(d) for d in dims)
    return TensorInfo(name, dtype_of(ty), shape)


_INT64 = re.compile(r"T\.int64\((-?\d+)\)")  # as TVM's script writes numbers


class _Symbols:
    """Names of a function's open dims; two symbols of one name get different ones."""

    def __init__(self, func: relax.Function) -> None:
        self._given = {str(k): str(v) for k, v in (func.attrs or {}).get(DIMS_ATTR, {}).items()}
        self._names: dict[Any, str] = {}

    def text(self, dim: Any) -> str:
        if not isinstance(dim, tirx.Var):
            return _INT64.sub(r"\1", str(dim))
        if dim not in self._names:
            same = sum(other.name == dim.name for other in self._names)
            self._names[dim] = f"{dim.name}_{same}" if same else self._given.get(str(dim.name), str(dim.name))
        return self._names[dim]
