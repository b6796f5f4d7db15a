"""The one-call forms: partition and compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from .annotate import AnnotateExternalCompiler
from .frontend import to_relax
from .partition import PartitionGraph
from .pipeline import PIPELINE

__all__ = ["compile", "partition"]


def partition(mod: tvm.IRModule, compiler: str | Sequence[str] | None = "dnnl") -> tvm.IRModule:
    """Prepare, annotate and partition a module.

    Parameters
    ----------
    mod : IRModule
        A Relax module.
    compiler : str or sequence of str
        Namespace, or several in order of priority; ``None`` reads the functions' attribute ``compiler``.

    Returns
    -------
    IRModule
        Regions are functions with the attribute ``Codegen``; compile it with ``relax_pipeline="byoc"``.
    """
    return tvm.transform.Sequential([AnnotateExternalCompiler(compiler), PartitionGraph()])(mod)


def compile(
    model: Any,
    compiler: str | Sequence[str] | None = "dnnl",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: str | tvm.target.Target = "llvm",
) -> Any:
    """Compile a model.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, path or torch.export.ExportedProgram
        The model.
    compiler : str or sequence of str
        Namespace, or several in order of priority.
    shapes : mapping, optional
        Input name → shape, to fix dimensions that an ONNX model leaves open.
    target : str or Target
        TVM's target for what stays with TVM.

    Returns
    -------
    tvm.runtime.Executable
        Runs in ``relax.VirtualMachine`` or `Runner`, and is saved by ``export_library``.

    Raises
    ------
    ValueError
        If ``compiler`` names no registered namespace.
    InputError, UnsupportedError
        If the model cannot be imported.
    """
    mod = partition(to_relax(model, shapes=shapes), compiler)
    return tvm.compile(mod, target=target, relax_pipeline=PIPELINE)
