"""Steps that a caller forgot: TVM would raise an internal error, or compile everything itself without a message."""

from __future__ import annotations

import functools
import logging
from typing import Any

import tvm

from ..core.errors import ByocError, InputError
from ..ir.relax_utils import codegen_of, composite_of
from ..vendors.namespaces import find_namespace
from .name import PIPELINE

_logger = logging.getLogger("tvm_byoc_dnnl")


def notice_forgotten_steps() -> None:
    """Let ``tvm.compile`` say which step is missing, for modules that have functions of our compilers.

    TVM has no place for such a check: its pipelines take a module as it is. The check does not change the build.
    """
    build = tvm.relax.build
    if hasattr(build, "__wrapped__"):
        return

    @functools.wraps(build)
    def checked_build(mod: Any, *args: Any, **kwargs: Any) -> Any:
        functions = mod.functions.values() if isinstance(mod, tvm.IRModule) else ()
        unfinished = _annotated_only(functions)
        if unfinished:
            _logger.warning("%s", unfinished)
        try:
            return build(mod, *args, **kwargs)
        except ByocError:
            raise
        except Exception as error:
            owners = sorted({owner for f in functions if find_namespace(owner := codegen_of(f))})
            if owners and _name(kwargs.get("relax_pipeline")) != PIPELINE:
                raise InputError(
                    f"the module has regions of {', '.join(owners)}, which this pipeline does not build: use "
                    f'tvm.compile(mod, target, relax_pipeline="{PIPELINE}"), or run relax.transform.RunCodegen() '
                    "before a pipeline of your own"
                ) from error
            if unfinished:  # TVM does not compile every composite function: not those with tensors inside
                raise InputError(unfinished) from error
            raise

    tvm.relax.build = checked_build


def _name(pipeline: Any) -> str:
    return pipeline if isinstance(pipeline, str) else str(getattr(getattr(pipeline, "info", None), "name", ""))


def _annotated_only(functions: Any) -> str:
    """The advice for a module with composite functions of ours, "" for any other."""
    owners = [composite_of(f).partition(".")[0] for f in functions]
    ours = sorted({owner for owner in owners if find_namespace(owner)})
    if not ours:
        return ""
    return (
        f"the module is annotated for {', '.join(ours)}, but not partitioned: all of it stays with TVM; apply "
        "PartitionGraph() behind AnnotateExternalCompiler, or call partition(), which does both"
    )
