"""The one-call forms: partition and compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from .annotate.passes import AnnotateExternalCompiler
from .codegen.executable import ByocExecutable
from .codegen.pipeline import PIPELINE
from .frontend import to_relax
from .partitioning.passes import PartitionGraph
from .partitioning.policy import RegionPolicy
from .target_options import with_options

__all__ = ["DEFAULT_COMPILER", "compile", "partition"]

DEFAULT_COMPILER = "dnnl"


def partition(
    mod: tvm.IRModule,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    *,
    policy: RegionPolicy | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    strict: bool = False,
) -> tvm.IRModule:
    """Prepare, annotate and partition a module.

    Parameters
    ----------
    mod : IRModule
        A Relax module.
    compiler : str or sequence of str
        Namespace, or several in order of priority; ``None`` reads the functions' attribute ``compiler``.
    policy : RegionPolicy, optional
        What is worth a region; by default each namespace's own policy.
    options : mapping, optional
        Namespace → option → value, for target hooks and codegens: ``{"ccompiler": {"march": "native"}}``.
    strict : bool
        Raise where something fails, instead of leaving it with the next compiler or TVM.

    Returns
    -------
    IRModule
        Regions are functions with the attribute ``Codegen``; compile it with ``relax_pipeline="byoc"``.

    Raises
    ------
    InputError
        If a namespace has no such option, or the value another type.
    UnsupportedError
        With ``strict``: lists every call that failed, with the reason.
    """
    passes = [AnnotateExternalCompiler(compiler), PartitionGraph(policy=policy, strict=strict)]
    return tvm.transform.Sequential(passes)(with_options(mod, options))


def compile(
    model: Any,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: str | tvm.target.Target = "llvm",
    policy: RegionPolicy | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    strict: bool = False,
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
    policy : RegionPolicy, optional
        What is worth a region; by default each namespace's own policy.
    options : mapping, optional
        Namespace → option → value, for target hooks and codegens: ``{"ccompiler": {"march": "native"}}``.
    strict : bool
        Raise where something fails, instead of leaving it with the next compiler or TVM.

    Returns
    -------
    tvm.runtime.Executable
        Runs in ``relax.VirtualMachine`` or `Runner`, and is saved by ``export_library``.

    Raises
    ------
    ValueError
        If ``compiler`` names no registered namespace.
    InputError, UnsupportedError
        If the model cannot be imported, or an option is wrong; the second also with ``strict``, listing every call
        that failed.
    """
    mod = partition(to_relax(model, shapes=shapes), compiler, policy=policy, options=options, strict=strict)
    built = tvm.compile(mod, target=target, relax_pipeline=relax.get_pipeline(PIPELINE, strict=strict))
    return ByocExecutable(built.mod)
