"""PyTorch's exported programs, through TVM's importer."""

from __future__ import annotations

from typing import Any

import tvm

from ..errors import UnsupportedError


def import_torch(program: Any) -> tvm.IRModule:
    """A Relax module of a ``torch.export.ExportedProgram``, its parameters as constants."""
    from tvm.relax.frontend.torch import from_exported_program

    try:
        return from_exported_program(program, keep_params_as_input=False)
    except (AssertionError, RuntimeError, ValueError) as err:  # TVM's own errors are RuntimeErrors
        raise UnsupportedError(
            f"TVM's PyTorch importer refuses this program: {_first_line(err)}; "
            "torch.onnx.export(dynamo=True) and the ONNX form often work instead"
        ) from err


def _first_line(err: Exception) -> str:
    return (str(err).strip() or type(err).__name__).splitlines()[0]
