"""The ``byoc`` pipeline: regions by their codegens, the rest by TVM's CPU lowering."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te
from tvm.relax.backend.cpu_generic import pipeline as cpu

from .codegen import install_codegen
from .metadata import attach_metadata
from .registry import namespace
from .relax_utils import codegen_of

__all__ = ["PIPELINE", "byoc_pipeline"]

PIPELINE = "byoc"
_HOST_FUNCTION = "byoc_host_anchor"


@tvm.transform.module_pass(opt_level=0, name="AnchorHostCode")
def _anchor_host_code(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    # Without any PrimFunc TVM links an empty C source instead of LLVM code, and then needs a C++ compiler and
    # seconds to load the model. One empty function keeps fully offloaded models loadable at once.
    if any(isinstance(f, tvm.tirx.PrimFunc) for f in mod.functions.values()):
        return mod
    x = te.placeholder((1,), "float32", name="x")
    func = te.create_prim_func([x, te.compute((1,), lambda i: x[i], name="y")])
    mod = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    mod[_HOST_FUNCTION] = func.with_attr("global_symbol", _HOST_FUNCTION)
    return mod


@tvm.transform.module_pass(opt_level=0, name="AttachMetadata")
def _attach_metadata(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    return attach_metadata(mod)


@tvm.transform.module_pass(opt_level=0, name="InstallCodegens")
def _install_codegens(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    for compiler in sorted({codegen_of(f) for f in mod.functions.values()} - {""}):
        install_codegen(namespace(compiler))
    return mod


@relax.register_pipeline(PIPELINE)
def byoc_pipeline() -> tvm.transform.Pass:
    """The pipeline behind ``tvm.compile(mod, "llvm", relax_pipeline="byoc")``."""

    @tvm.transform.module_pass(opt_level=0, name="byoc")
    def pipeline(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        return tvm.transform.Sequential(
            [
                _attach_metadata,
                _install_codegens,
                relax.transform.RunCodegen(),
                *cpu.library_dispatch_passes(target),
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
                _anchor_host_code,
                *cpu.dataflow_lower_passes(target),
                *cpu.finalize_passes(target),
            ]
        )(mod)

    return pipeline
