"""Imports models (Relax, ONNX, PyTorch) as a Relax module.

Nothing here imports onnx or torch before a model of that kind arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import tvm

from ..core.compilation import OverwritableWeights, stage
from ..core.errors import InputError, MissingFileError, first_line
from ..core.tensor_info import checked_shapes
from ..ir.relax_utils import USUAL_SIZES_ATTR, is_host_function
from ..pipeline.executable import is_library

#: suffixes of the files that torch.export.save writes
_EXPORTED = (".pt2",)

__all__ = ["DecoderFile", "split_usual_sizes", "to_relax"]


@dataclass(frozen=True)
class DecoderFile(PathLike[str]):
    """The file of a decoder whose output ``logits`` [batch, rows, columns] needs to have its last row only.

    Its caches of keys and values are stored in ``cache_dtype``, or as the file says.
    """

    path: Path
    logits: str
    cache_dtype: str | None = None

    def __fspath__(self) -> str:
        return str(self.path)


def to_relax(
    model: Any, shapes: Mapping[str, Sequence[int | str]] | None = None, *, string_labels: bool = False
) -> tvm.IRModule:
    """Import a model.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto or its bytes, path of an .onnx, .gguf or .pt2 file or torch.export.ExportedProgram
        An IRModule is returned as it is. Nothing is changed in the model itself.
    shapes : mapping, optional
        Input name to shape, for dimensions that an ONNX model leaves open: numbers fix them, and a name, such as
        ``"N"``, leaves a dimension open; equal names are equal sizes. ``"N:8"`` leaves it open and says that the model
        is best optimised for 8. An input that has a value in the ONNX model keeps it, unless it is named here.
    string_labels : bool
        Whether an ONNX model may have results that are strings, such as the labels of a classifier. They are given back
        as their indices, int64, in the tables that the attribute ``string_labels`` of ``main`` has by output name.

    Returns
    -------
    IRModule
        Function ``main``. For ONNX its attributes ``input_names`` and ``output_names`` keep the model's own
        names; the parameters' names are these made into identifiers.

    Raises
    ------
    InputError
        If the model is of no known kind or cannot be read, or ``shapes`` does not fit it.
    UnsupportedError
        If the importer has no equivalent for an operator.
    """
    return imported(model, shapes, string_labels=string_labels)


def imported(
    model: Any,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    *,
    string_labels: bool = False,
    own: OverwritableWeights | None = None,
) -> tvm.IRModule:
    """See `to_relax`; ``own`` gets the weights of an ONNX model that `Prepare` may overwrite, if nobody else keeps the
    module.
    """
    if isinstance(model, tvm.IRModule):
        _no_shapes(shapes, "an IRModule")
        functions = list(model.functions.values())
        if functions and not any(is_host_function(f) and f.attrs and "global_symbol" in f.attrs for f in functions):
            raise InputError("the IRModule has no public Relax function; expected one to call, such as `main`")
        return model
    shapes = None if shapes is None else checked_shapes(shapes)
    weights = None
    decoder = model if isinstance(model, DecoderFile) else None
    if isinstance(model, PathLike):
        model = Path(model)
    if isinstance(model, (str, Path)) and Path(model).suffix in _EXPORTED:
        model = _program(Path(model))
    if isinstance(model, (str, Path)) and is_library(Path(model)):
        raise InputError(f"`{model}` is a compiled library; give what it was compiled from, or load it")
    if isinstance(model, (str, Path)):
        from .onnx.importer import keep_last_row, load_apart, store_caches

        with stage("read"):
            model, weights = load_apart(Path(model))
            if decoder is not None:
                keep_last_row(model, decoder.logits, weights)
                store_caches(model, decoder.cache_dtype)
    if isinstance(model, bytes):
        from .onnx.importer import parsed

        model = parsed(model)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if kind.startswith("onnx.") and kind.endswith(".ModelProto"):
        from .onnx.file import Weights
        from .onnx.importer import import_onnx

        shapes, usual = split_usual_sizes(shapes or {})
        weights = weights or Weights({})
        weights.own = own
        with stage("import"):
            mod = import_onnx(model, shapes, weights, string_labels=string_labels)
        if usual:
            mod["main"] = mod["main"].with_attr(USUAL_SIZES_ATTR, usual)
        return mod
    if isinstance(model, (tvm.runtime.Executable, tvm.runtime.Module)) or hasattr(type(model), "warm_up"):
        raise InputError(f"the model is a {kind}, which is compiled already; give what it was compiled from")
    if kind.startswith("torch.export.") and kind.endswith(".ExportedProgram"):
        from .torch.importer import import_torch

        _no_shapes(shapes, "an ExportedProgram")
        return import_torch(model)
    raise InputError(
        f"cannot import a {kind}; give an IRModule, an onnx.ModelProto or its bytes, the path of an .onnx, .gguf or "
        ".pt2 file, or the ExportedProgram that torch.export.export makes of a torch.nn.Module"
    )


def _program(path: Path) -> Any:
    """What ``torch.export.save`` has written."""
    import torch

    if not path.is_file():
        raise MissingFileError(f"no file `{path}`; give the path of an .onnx or .pt2 file")
    try:
        return torch.export.load(path)
    except Exception as error:
        why = first_line(error)
        raise InputError(f"cannot read `{path}` as a program of torch.export.save: {why}") from error


def split_usual_sizes(shapes: Mapping[str, Sequence[int | str]]) -> tuple[dict[str, list[int | str]], dict[str, int]]:
    """Shapes with ``"N"`` for ``"N:8"``, and the size of each such name."""
    usual: dict[str, int] = {}

    def name_of(dim: int | str) -> int | str:
        if not isinstance(dim, str) or ":" not in dim:
            return dim
        name, _, size = dim.partition(":")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise InputError(f"`shapes` gives {dim!r}; expected a name and a positive number, such as N:8")
        if usual.setdefault(name, int(size)) != int(size):
            raise InputError(f"`shapes` optimises {name!r} for {usual[name]} and for {size}; give one size")
        return name

    return {name: [name_of(dim) for dim in dims] for name, dims in shapes.items()}, usual


def _no_shapes(shapes: Mapping[str, Sequence[int | str]] | None, kind: str) -> None:
    if shapes:
        raise InputError(f"`shapes` fixes the inputs of an ONNX model; {kind} carries its own: leave it out")
