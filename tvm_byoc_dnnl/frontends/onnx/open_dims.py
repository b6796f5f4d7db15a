"""Dims of a model's inputs: symbols, named as the exporter named them, and shapes for TVM's importer."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from tvm import tirx

from ...core.errors import UnsupportedError
from ...ir.tvm_compat import analyzer

__all__ = ["OpenInputs", "name_dims", "refuse_sequences", "relax_shapes"]

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
        tree = _expression(text)
        at = [_evaluate(tree, {**symbols, name: value}) for value in (0, 1, 2)]
        step = _number(at[1] - at[0])
        if step is None or step < 1 or _number(at[2] - at[1]) != step or "//" in text or "/" in text:
            continue
        symbols[name] = tirx.Var(name, "int64")
        solved.append((symbols[name], tirx.floordiv(whole - at[0], step)))
    return solved


def _number(size: Any) -> int | None:
    size = size if isinstance(size, int) else analyzer().simplify(size)
    return int(size) if isinstance(size, (int, tirx.IntImm)) else None


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
