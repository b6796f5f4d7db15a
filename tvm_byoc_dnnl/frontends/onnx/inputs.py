"""Inputs of an ONNX model: their types, the shapes and values that a caller gives them, and their dims in TVM."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import tirx

from ...core.errors import InputError, UnsupportedError
from ...core.tensor_info import TensorInfo, shape_options
from ...ir.relax_utils import straight_line
from .structure import REDUCED, graphs_of, is_standard, nodes_in

Shapes = Mapping[str, Sequence["int | str"]]


_ANY = "?"  # an open dim that no other one is equal to


def model_inputs(model: onnx.ModelProto) -> list[TensorInfo]:
    """Name, dtype and shape of each input, in the model's own words; a dim that has no name is ``?``."""
    return [described(value) for value in given_inputs(model)]


def given_inputs(model: onnx.ModelProto, shapes: Shapes | None = None) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller gives. Those that have a value in the model are among them where ``shapes`` names them:
    some models repeat all their weights as inputs.
    """
    graph = model.graph
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in constants or value.name in (shapes or {})]


def described(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else ""
    if not tensor.HasField("shape"):
        return TensorInfo(value.name, dtype, None)
    dims = tensor.shape.dim
    return TensorInfo(value.name, dtype, tuple(d.dim_value if d.dim_value > 0 else d.dim_param or "?" for d in dims))


def contents(model: onnx.ModelProto) -> dict[str, Any]:
    """What a model is made of: its opsets, the number of nodes of each operator, and its weights."""
    nodes = nodes_in(model.graph)
    weights = [t for graph in (model.graph, *(g for n in nodes for g in graphs_of(n))) for t in graph.initializer]
    weights += [a.t for n in nodes if n.op_type == "Constant" for a in n.attribute if a.name == "value"]
    sizes = [math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in weights]
    return {
        "opset": {o.domain: o.version for o in model.opset_import},
        "nodes": dict(Counter(n.op_type for n in nodes if n.op_type != "Constant").most_common()),
        "weights": {"tensors": len(weights), "bytes": sum(sizes)},
    }


def advice_on_inputs(model: onnx.ModelProto, shapes: Shapes) -> str:
    """Advice when a model cannot be imported: its inputs, and the options that can still be given; may be empty."""
    fixed = fixed_inputs(given_inputs(model, shapes), shapes)
    inputs = [described(value) for value in fixed if value.type.HasField("tensor_type")]
    is_open, deciding = any(not i.is_static for i in inputs), deciding_inputs(model)
    if not is_open and not deciding:
        return ""
    parts = [f". Its inputs are {'; '.join(map(str, inputs))}"]
    if is_open:
        parts.append(f"fix the open dims, with sizes of your own: {shape_options(inputs)}")
    if deciding:
        options = " ".join(f"--value {name}=NUMBERS" for name in deciding)
        parts.append(f"compile in the values that decide shapes or axes: {options}")
    return "; ".join(parts)


def fix_values(model: onnx.ModelProto, values: Mapping[str, Sequence[float]]) -> onnx.ModelProto:
    """A copy of a model with inputs turned into constants."""
    infos = {i.name: described(i) for i in model.graph.input}
    tensors = {}
    for name, value in values.items():
        info = infos.get(name)
        if info is None:
            raise InputError(f"no input {name!r} to give a value; the model's inputs are {', '.join(infos) or 'none'}")
        try:
            array = np.array(value).astype(info.dtype or "float32")
            array = array.reshape(()) if info.shape == () and array.size == 1 else array
        except (ValueError, TypeError) as error:
            raise InputError(f"the value of {name!r} does not fit {info}: {error}") from error
        pairs = zip(info.shape or (), array.shape)
        if info.shape is not None and (
            len(info.shape) != array.ndim or any(isinstance(want, int) and want != dim for want, dim in pairs)
        ):
            raise InputError(f"the value of {name!r} has {array.size} numbers, expected {info}")
        tensors[name] = numpy_helper.from_array(array, name)
    return with_constants(model, tensors) if tensors else model


def fix_shapes(model: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    fixed = {i.name: i for i in fixed_inputs(given_inputs(model, shapes), shapes)}
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
    shape = described(value).shape
    return "of any shape" if shape is None else f"({', '.join(map(str, shape))})"


# ---- inputs whose values decide shapes or axes of the compiled model --------------------------------------
#
# ONNX lets a caller give them at run time. TVM wants them while it compiles, so a model that has such inputs is
# compiled for the values of a call.


# Operator -> the inputs that decide its result's shape, or which elements it takes.
_DECIDING: dict[str, tuple[int, ...]] = {
    **{f"Reduce{kind}": (1,) for kind in REDUCED},
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
    for constants in (copy.graph.initializer, copy.graph.sparse_initializer):
        others = [t for t in constants if getattr(t, "values", t).name not in values]
        del constants[:]
        constants.extend(others)
    copy.graph.initializer.extend(values.values())
    return copy


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of dims, which are integers
    ast.FloorDiv: operator.floordiv,
}
#: names that exporters write for "not known"; in ONNX two dims of one name would be equal
_UNKNOWN = frozenset({"none", "unk", "unknown"})


def refuse_sequences(inputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Name the inputs that are lists of tensors: TVM's importer takes them for tensors."""
    for value in inputs:
        kind = value.type.optional_type.elem_type if value.type.HasField("optional_type") else value.type
        if kind.HasField("sequence_type") or kind.HasField("map_type"):
            what = "sequence" if kind.HasField("sequence_type") else "map"
            raise UnsupportedError(
                f"no Relax equivalent for the input `{value.name}`, which is a {what}; make its tensors inputs"
            )


def name_dims(values: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
    """Copies of a model's inputs and outputs whose open dims are named by identifiers, or sums and products of such.

    The dims that an exporter did not name, or named ``?``, are different symbols.
    """
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in values]
    dims = [dim for value in copies for dim in value.type.tensor_type.shape.dim]
    taken = {dim.dim_param for dim in dims}
    new_names: dict[str, str] = {}
    for value in copies:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param.strip().isdecimal():
                dim.dim_value = int(dim.dim_param)
            elif dim.HasField("dim_value") and dim.dim_value >= 0:
                continue
            elif not re.search(r"[^\W\d]", dim.dim_param) or dim.dim_param.lower() in _UNKNOWN:
                dim.dim_param = _fresh(f"{value.name}_dim{axis}", taken)
            elif _expression(dim.dim_param) is None:
                old = dim.dim_param
                dim.dim_param = new_names[old] = new_names.get(old) or _fresh(old, taken)
    return copies


@dataclass
class OpenInputs:
    """Shapes of inputs in Relax's dims; a dim ``2*h`` of which no input has ``h`` itself is a symbol of its own."""

    shapes: dict[str, list[Any]]  # as the function declares them
    inner: dict[str, list[Any]]  # that the body computes with, where they differ: `2*h` itself
    solved: list[tuple[tirx.Var, Any]]  # symbols that no input has, in those before: `h` is half of the dim
    names: dict[str, str]  # symbol that stands for `2*h` → the dim's text in the model


def relax_shapes(values: Iterable[onnx.ValueInfoProto]) -> OpenInputs:
    """Shapes of inputs as `name_dims` returned them; equal names are one symbol.

    A sum or product is computed where every name in it is a dim by itself, or follows from other dims.
    """
    shapes = {v.name: v.type.tensor_type.shape.dim for v in values if v.type.tensor_type.HasField("shape")}
    names = sorted({dim.dim_param for dims in shapes.values() for dim in dims if dim.dim_param})
    symbols = {name: tirx.Var(name, "int64") for name in names if name.isidentifier()}
    compound = {n: tirx.Var(_fresh(n, {*names}), "int64") for n in names if not _names_in(n) <= symbols.keys()}
    solved = _solve(compound, symbols)

    def dim_of(dim: Any, opaque: Mapping[str, Any]) -> Any:
        if not dim.dim_param:
            return dim.dim_value
        text = dim.dim_param
        return opaque[text] if text in opaque else _evaluate(_expression(text), symbols)

    unsolved = {n: s for n, s in compound.items() if not _names_in(n) <= symbols.keys()}
    declared = {name: [dim_of(dim, compound) for dim in dims] for name, dims in shapes.items()}
    inner = {name: [dim_of(dim, unsolved) for dim in dims] for name, dims in shapes.items()}
    differ = {n: dims for n, dims in inner.items() if any(d.dim_param in compound.keys() - unsolved for d in shapes[n])}
    return OpenInputs(declared, differ, solved, {s.name: " ".join(n.split()) for n, s in compound.items()})


def _solve(compound: Mapping[str, Any], symbols: dict[str, Any]) -> list[tuple[tirx.Var, Any]]:
    """Add the symbols that follow from dims such as ``2*h``, where one name of a dim is unknown and linear."""
    solved: list[tuple[tirx.Var, Any]] = []
    for text, whole in compound.items():
        unknown = _names_in(text) - symbols.keys()
        if len(unknown) != 1:
            continue
        (name,) = unknown
        line = straight_line(partial(_with, _expression(text), symbols, name))
        if line is not None:
            start, step = line
            symbols[name] = tirx.Var(name, "int64")
            solved.append((symbols[name], tirx.floordiv(whole - start, step)))
    return solved


def _with(tree: Any, symbols: Mapping[str, Any], name: str, value: Any) -> Any:
    return _evaluate(tree, {**symbols, name: value})


def _expression(text: str) -> ast.expr | None:
    """The sum or product that a dim's name says, as the syntax tree of Python; ``None`` if it is none."""
    if re.search(r"(?<!\w)\d+_", text):  # the name `0_1`, which is a number for Python
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return tree if all(n.isascii() for n in _names(tree)) else None
    except (SyntaxError, ValueError):
        return None


def _names(tree: ast.expr) -> list[str]:
    if isinstance(tree, ast.Name):
        return [tree.id]
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return []
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _names(tree.left) + _names(tree.right)
    raise ValueError(f"{ast.unparse(tree)} is neither a name nor a number, sum or product")


def _names_in(text: str) -> set[str]:
    tree = _expression(text)
    return set() if tree is None else set(_names(tree))


def _evaluate(tree: Any, symbols: Mapping[str, Any]) -> Any:
    if isinstance(tree, ast.Name):
        return symbols[tree.id]
    if isinstance(tree, ast.Constant):
        return tree.value
    return _OPERATORS[type(tree.op)](_evaluate(tree.left, symbols), _evaluate(tree.right, symbols))


def _fresh(hint: str, taken: set[str]) -> str:
    """An unused identifier that looks like ``hint``."""
    name = re.sub(r"[^0-9A-Za-z_]+", "_", hint)
    name = name if name[:1].isalpha() else f"input_{name}"
    while name in taken:
        name += "_"
    taken.add(name)
    return name
