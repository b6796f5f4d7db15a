"""Bring-your-own-codegen for stock Apache TVM: oneDNN on CPUs, and any vendor's library beside it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from .annotate import AnnotateExternalCompiler
from .api import compile, partition
from .errors import ArtifactError, ByocError, GraphError, InputError, NativeLibraryError, UnsupportedError
from .frontend import to_relax
from .fused_op import register_fused_op
from .hooks import register_target_hooks, set_target_options
from .partition import PartitionGraph
from .pipeline import byoc_pipeline
from .prepare import Prepare
from .registry import (
    compilers,
    get_annotate_compiler,
    register_annotate_compiler,
    register_codegen,
    register_lowering,
    register_namespace,
    register_pattern,
    supported_ops,
    unregister_compiler,
)
from .runner import Runner, load
from .verdict import Reject

try:
    __version__ = version("tvm-byoc-dnnl")
except PackageNotFoundError:  # a source tree on PYTHONPATH
    __version__ = "0.0.0+source"

__all__ = [
    "AnnotateExternalCompiler",
    "ArtifactError",
    "ByocError",
    "GraphError",
    "InputError",
    "NativeLibraryError",
    "PartitionGraph",
    "Prepare",
    "Reject",
    "Runner",
    "UnsupportedError",
    "__version__",
    "byoc_pipeline",
    "compile",
    "compilers",
    "get_annotate_compiler",
    "load",
    "partition",
    "register_annotate_compiler",
    "register_codegen",
    "register_fused_op",
    "register_lowering",
    "register_namespace",
    "register_pattern",
    "register_target_hooks",
    "set_target_options",
    "supported_ops",
    "to_relax",
    "unregister_compiler",
]
