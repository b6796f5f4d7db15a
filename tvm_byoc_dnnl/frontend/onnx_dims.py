"""Dims of a model's inputs in the spelling that TVM's importer understands.

It takes a 0 for a symbol without a name, and gives all symbols without a name the same value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx

from ..errors import UnsupportedError

__all__ = ["refuse_sequences", "spell_dims"]


def refuse_sequences(inputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Name the inputs that are lists of tensors: TVM's importer takes them for tensors."""
    for value in inputs:
        kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
        if kind.HasField("sequence_type") or kind.HasField("map_type"):
            what = "sequence" if kind.HasField("sequence_type") else "map"
            raise UnsupportedError(
                f"no Relax equivalent for the input `{value.name}`, which is a {what}; make its tensors inputs"
            )


def spell_dims(model: onnx.ModelProto) -> None:
    """Write zeros as text, and name the open dims that have no name; changes ``model``."""
    taken = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value == 0:
                dim.dim_param = "0"
            elif not dim.dim_param and dim.dim_value <= 0:
                dim.dim_param = _fresh(f"{re.sub(r'[^0-9A-Za-z_]', '_', value.name)}_dim{axis}", taken)


def _fresh(hint: str, taken: set[str]) -> str:
    name = hint if hint[:1].isalpha() else f"input_{hint}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
