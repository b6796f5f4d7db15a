"""Bring-your-own-codegen for stock Apache TVM: oneDNN on CPUs, and any vendor's library beside it."""

from __future__ import annotations

from ._version import __version__
from .annotate.passes import AnnotateExternalCompiler
from .annotate.trial import get_annotate_compiler
from .api import compile, partition
from .emit import emit
from .errors import ArtifactError, ByocError, ExportError, GraphError, InputError, NativeLibraryError, UnsupportedError
from .frontend import to_relax
from .hooks.c_source import generate_c
from .hooks.fused_op import register_fused_op
from .hooks.registration import for_each_region, register_target_hooks
from .partitioning.passes import PartitionGraph
from .pattern_example import pattern_example
from .pipeline.byoc import byoc_pipeline
from .pipeline.source_executable import source_options
from .prepare import Prepare
from .regions.policy import RegionPolicy
from .registry import (
    compilers,
    register_annotate_compiler,
    register_codegen,
    register_lowering,
    register_namespace,
    register_pattern,
    supported_ops,
    unregister_compiler,
)
from .report import Report, explain
from .report.profile import Profile, profile
from .report.verify import Verification, verify
from .runner import Runner, load
from .target_options import get_target_options, set_target_options
from .te import TEGraph, register_te_compute, schedule_te, translate_to_te
from .verdict import Reject

__all__ = [
    "AnnotateExternalCompiler",
    "ArtifactError",
    "ByocError",
    "ExportError",
    "GraphError",
    "InputError",
    "NativeLibraryError",
    "PartitionGraph",
    "Prepare",
    "Profile",
    "RegionPolicy",
    "Reject",
    "Report",
    "Runner",
    "TEGraph",
    "UnsupportedError",
    "Verification",
    "__version__",
    "byoc_pipeline",
    "compile",
    "compilers",
    "emit",
    "explain",
    "for_each_region",
    "generate_c",
    "get_annotate_compiler",
    "get_target_options",
    "load",
    "partition",
    "pattern_example",
    "profile",
    "register_annotate_compiler",
    "register_codegen",
    "register_fused_op",
    "register_lowering",
    "register_namespace",
    "register_pattern",
    "register_target_hooks",
    "register_te_compute",
    "schedule_te",
    "set_target_options",
    "source_options",
    "supported_ops",
    "to_relax",
    "translate_to_te",
    "unregister_compiler",
    "verify",
]
