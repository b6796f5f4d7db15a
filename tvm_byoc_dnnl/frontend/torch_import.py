"""PyTorch's exported programs, through TVM's importer."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .._compat import shape_dims
from ..errors import UnsupportedError


def import_torch(program: Any) -> tvm.IRModule:
    """A Relax module of a ``torch.export.ExportedProgram``, its parameters as constants."""
    from tvm.relax.frontend.torch import from_exported_program

    try:
        return from_exported_program(program, keep_params_as_input=False, custom_convert_map=CONVERTERS)
    except (AssertionError, RuntimeError, ValueError) as err:  # TVM's own errors are RuntimeErrors
        raise UnsupportedError(
            f"TVM's PyTorch importer refuses this program: {_first_line(err)}; "
            "torch.onnx.export(dynamo=True) and the ONNX form often work instead"
        ) from err


def _cat(node: Any, importer: Any) -> Any:
    """PyTorch leaves out operands of shape (0,), whatever the rank of the others: a cache before its first word."""
    tensors = importer.retrieve_args(node)[0]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    full = [t for t in tensors if shape_dims(t.ty) != [0]] or tensors[:1]
    if len(full) == 1:
        return full[0]
    return importer.block_builder.emit(relax.op.concat(full, axis=axis))


#: in place of the importer's own, by the name of the overload
CONVERTERS = {"cat.default": _cat}


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
