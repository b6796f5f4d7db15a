"""Inputs of an ONNX model: their types, and the shapes and values that a caller gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ...core.errors import InputError
from ...core.tensor_info import TensorInfo, shape_options
from .nodes import is_standard

__all__ = [
    *(
        "advice_on_inputs",
        "deciding_inputs",
        "fix_shapes",
        "fix_values",
        "fixed_inputs",
        "given_inputs",
        "model_inputs",
    ),
    "with_constants",
]

Shapes = Mapping[str, Sequence["int | str"]]


_ANY = "?"  # an open dim that no other one is equal to


def model_inputs(model: onnx.ModelProto) -> list[TensorInfo]:
    """Name, dtype and shape of each input, in the model's own words; a dim that has no name is ``?``."""
    return [_info(value) for value in given_inputs(model)]


def given_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller gives: some models repeat their weights as inputs."""
    constants = {t.name for t in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _info(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else ""
    if not tensor.HasField("shape"):
        return TensorInfo(value.name, dtype, None)
    dims = tensor.shape.dim
    return TensorInfo(value.name, dtype, tuple(d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in dims))


def advice_on_inputs(model: onnx.ModelProto, shapes: Shapes) -> str:
    """Advice when a model cannot be imported: its inputs, and the options that can still be given; may be empty."""
    tensors = [value for value in fixed_inputs(given_inputs(model), shapes) if value.type.HasField("tensor_type")]
    inputs = [_info(value) for value in tensors]
    open_ones = [i for i in inputs if not i.is_static]
    deciding = deciding_inputs(model)
    if not open_ones and not deciding:
        return ""
    parts = [f". Its inputs are {'; '.join(map(str, inputs))}"]
    if open_ones:
        parts.append(f"fix the open dims, with sizes of your own: {shape_options(inputs)}")
    if deciding:
        options = " ".join(f"--value {name}=NUMBERS" for name in deciding)
        parts.append(f"compile in the values that decide shapes or axes: {options}")
    return "; ".join(parts)


def fix_values(model: onnx.ModelProto, values: Mapping[str, Sequence[float]]) -> onnx.ModelProto:
    """A copy of a model with inputs turned into constants."""
    infos = {i.name: i for i in model_inputs(model)}
    tensors = {}
    for name, value in values.items():
        info = infos.get(name)
        if info is None:
            raise InputError(f"no input {name!r} to give a value; the model's inputs are {', '.join(infos) or 'none'}")
        try:
            array = np.array(value).astype(info.dtype or "float32")
            scalar = info.shape == () and array.size == 1
            array = array.reshape(()) if scalar else array
        except (ValueError, TypeError) as error:
            raise InputError(f"the value of {name!r} does not fit {info}: {error}") from error
        if not _takes(info, array):
            raise InputError(f"the value of {name!r} has {array.size} numbers, expected {info}")
        tensors[name] = numpy_helper.from_array(array, name)
    return with_constants(model, tensors) if tensors else model


def _takes(info: TensorInfo, array: np.ndarray) -> bool:
    if info.shape is None:
        return True
    return len(info.shape) == array.ndim and all(
        want == dim for want, dim in zip(info.shape, array.shape, strict=True) if isinstance(want, int)
    )


def fix_shapes(model: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    fixed = {i.name: i for i in fixed_inputs(given_inputs(model), shapes)}
    for value in copy.graph.input:
        if value.name in fixed:
            value.CopyFrom(fixed[value.name])
    return copy


def fixed_inputs(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> list[onnx.ValueInfoProto]:
    """Inputs with the shapes that a caller wants: a number fixes a dim, a name leaves it open under this name."""
    known = {i.name: i for i in inputs}
    have = ", ".join(f"`{name}` {_dims_text(value)}" for name, value in known.items())
    fixed: dict[str, onnx.ValueInfoProto] = {}
    renamed: dict[str, set[str]] = {}
    for name, shape in shapes.items():
        if name not in known:
            raise InputError(f"`shapes` names `{name}`, which is no input of the model; its inputs are {have}")
        tensor = known[name].type.tensor_type
        given = tensor.shape.dim
        wanted = [_checked_dim(d, name) for d in shape]
        text = f"({', '.join(map(str, wanted))}{',' if len(wanted) == 1 else ''})"
        if any(d <= 0 for d in wanted if isinstance(d, int)) or (
            tensor.HasField("shape") and len(given) != len(wanted)
        ):
            raise InputError(
                f"`shapes` gives {text} for `{name}`, which is {_dims_text(known[name])}; "
                "give one positive number per dimension, or a name where it stays open"
            )
        pairs = list(zip(given, wanted, strict=False))
        if any(d.dim_value > 0 and d.dim_value != want for d, want in pairs):
            raise InputError(
                f"`shapes` gives {text} for `{name}`, which the model fixes to {_dims_text(known[name])}; "
                "only open dimensions can be given"
            )
        for dim, want in pairs:
            if dim.dim_param and isinstance(want, str) and want != _ANY:
                renamed.setdefault(dim.dim_param, set()).add(want)
        fixed[name] = helper.make_tensor_value_info(name, tensor.elem_type, wanted)
    return [fixed.get(i.name) or _renamed(i, renamed) for i in inputs]


def _checked_dim(dim: Any, name: str) -> int | str:
    if not isinstance(dim, str):
        return int(dim)
    if not dim.isidentifier() and dim != _ANY:
        raise InputError(
            f"`shapes` gives {dim!r} for a dim of `{name}`; expected a positive number, a name such as N, which leaves "
            f"the dim open, or {_ANY!r}, which leaves it open without a name"
        )
    return dim


def _renamed(value: onnx.ValueInfoProto, names: Mapping[str, set[str]]) -> onnx.ValueInfoProto:
    """An input whose open dims have the names that another input's dims of the same name were given."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    for dim in copy.type.tensor_type.shape.dim:
        if len(names.get(dim.dim_param, ())) == 1:
            (dim.dim_param,) = names[dim.dim_param]
    return copy


def _dims_text(value: onnx.ValueInfoProto) -> str:
    shape = _info(value).shape
    return "of any shape" if shape is None else f"({', '.join(map(str, shape))})"


# ---- inputs whose values decide shapes or axes of the compiled model --------------------------------------
#
# ONNX lets a caller give them at run time. TVM wants them while it compiles, so a model that has such inputs is
# compiled for the values of a call.


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

# Operator -> the inputs that decide its result's shape, or which elements it takes.
_DECIDING: dict[str, tuple[int, ...]] = {
    **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS},
    **dict.fromkeys(("Expand", "Reshape", "Tile", "Unsqueeze", "Squeeze", "Split", "SplitToSequence"), (1,)),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "CumProd", "CumSum", "OneHot", "TopK", "Trilu", "Upsample"), (1,)),
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(("Col2Im", "DFT", "Dropout"), (1, 2)),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
}
# Operators whose results are never dims: the values that they read decide nothing.
_END = frozenset({"Shape", "Size"})


def deciding_inputs(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs of a model whose values decide shapes or axes, in the model's order."""
    graph = model.graph
    known = {t.name for t in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    found: set[str] = set()
    pending = [
        node.input[i]
        for node in graph.node
        if is_standard(node)
        for i in _DECIDING.get(node.op_type, ())
        if i < len(node.input) and node.input[i]
    ]
    while pending:
        name = pending.pop()
        if name in found or name in known:
            continue
        found.add(name)
        maker = makers.get(name)
        if maker is not None and maker.op_type not in _END:
            pending.extend(i for i in maker.input if i)
    return [i.name for i in graph.input if i.name in found and i.type.HasField("tensor_type")]


def with_constants(model: onnx.ModelProto, values: dict[str, onnx.TensorProto]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [i for i in copy.graph.input if i.name not in values]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    copy.graph.initializer.extend(values.values())
    return copy
