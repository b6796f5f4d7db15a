"""From what users have (Relax, ONNX, PyTorch) to a Relax module.

Nothing here imports onnx or torch before a model of that kind arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm

from ..errors import InputError

__all__ = ["to_relax"]


def to_relax(model: Any, shapes: Mapping[str, Sequence[int | str]] | None = None) -> tvm.IRModule:
    """Import a model.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path of an .onnx file or torch.export.ExportedProgram
        An IRModule is returned as it is. Nothing is changed in the model itself.
    shapes : mapping, optional
        Input name to shape, for dimensions that an ONNX model leaves open: numbers fix them, and a name, such as
        ``"N"``, leaves a dimension open; equal names are equal sizes.

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
    if isinstance(model, tvm.IRModule):
        _no_shapes(shapes, "an IRModule")
        return model
    if isinstance(model, (str, Path)):
        from .onnx_import import load_onnx

        model = load_onnx(Path(model))
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if kind.startswith("onnx.") and kind.endswith(".ModelProto"):
        from .onnx_import import import_onnx

        return import_onnx(model, shapes)
    if kind.startswith("torch.export.") and kind.endswith(".ExportedProgram"):
        from .torch_import import import_torch

        _no_shapes(shapes, "an ExportedProgram")
        return import_torch(model)
    raise InputError(
        f"cannot import a {kind}; give an IRModule, an onnx.ModelProto, the path of an .onnx file or a "
        "torch.export.ExportedProgram"
    )


def _no_shapes(shapes: Mapping[str, Sequence[int | str]] | None, kind: str) -> None:
    if shapes:
        raise InputError(f"`shapes` fixes the inputs of an ONNX model; {kind} carries its own: leave it out")
