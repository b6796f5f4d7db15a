"""Everything that is public, imported at the first use of any of it (see ``__getattr__`` of the package)."""

from __future__ import annotations

from ._compat import constant_numpy, dtype_of, is_constant, make_constant, shape_dims, static_shape
from ._version import __version__
from .annotate.passes import AnnotateExternalCompiler
from .annotate.trial import get_annotate_compiler
from .api import compile, partition
from .blobs import blob_module
from .codegen.extern import portable_codegen
from .errors import (
    ArtifactError,
    ByocError,
    ExportError,
    GraphError,
    InputError,
    NativeLibraryError,
    UnsupportedError,
    VendorError,
)
from .frontend import to_relax
from .frontend.onnx.own_operators import register_onnx_operator
from .hooks.c_source import c_source_module, generate_c
from .hooks.fused_op import register_fused_op
from .hooks.registration import InlineComposites, for_each_region, refuse_region, register_target_hooks
from .ledger import read_log
from .namespaces import compilers, supported_ops, unregister_compiler
from .partitioning.passes import PartitionGraph
from .pattern_example import pattern_example
from .pipeline.byoc import byoc_pipeline
from .pipeline.source_executable import source_options
from .prepare import Prepare
from .prepare.compression import why_not_compressed
from .quantised_groups import QuantizedGroup, QuantizedTensor, quantized
from .quantization import Quantization, register_quantization
from .regions.policy import RegionPolicy, Work
from .registry import (
    register_annotate_compiler,
    register_blob_runner,
    register_codegen,
    register_cost,
    register_lowering,
    register_namespace,
    register_pattern,
)
from .relax_utils import bindings_of, composite_of
from .report import Report, explain
from .report.profile import Profile, profile
from .report.verify import Verification, verify
from .runner import Runner, load
from .signature import TensorInfo
from .standalone import emit
from .target_options import get_target_options, set_target_options
from .te import TEGraph, register_te_compute, schedule_te, translate_to_te
from .tuning.tune import tune
from .verdict import Reject

# The same list as in __init__.py, for type checkers.
__all__ = [
    "AnnotateExternalCompiler",
    "ArtifactError",
    "ByocError",
    "ExportError",
    "GraphError",
    "InlineComposites",
    "InputError",
    "NativeLibraryError",
    "PartitionGraph",
    "Prepare",
    "Profile",
    "Quantization",
    "QuantizedGroup",
    "QuantizedTensor",
    "RegionPolicy",
    "Reject",
    "Report",
    "Runner",
    "TEGraph",
    "TensorInfo",
    "UnsupportedError",
    "VendorError",
    "Verification",
    "Work",
    "__version__",
    "bindings_of",
    "blob_module",
    "byoc_pipeline",
    "c_source_module",
    "compile",
    "compilers",
    "composite_of",
    "constant_numpy",
    "dtype_of",
    "emit",
    "explain",
    "for_each_region",
    "generate_c",
    "get_annotate_compiler",
    "get_target_options",
    "is_constant",
    "load",
    "make_constant",
    "partition",
    "pattern_example",
    "portable_codegen",
    "profile",
    "quantized",
    "read_log",
    "refuse_region",
    "register_annotate_compiler",
    "register_blob_runner",
    "register_codegen",
    "register_cost",
    "register_fused_op",
    "register_lowering",
    "register_namespace",
    "register_onnx_operator",
    "register_pattern",
    "register_quantization",
    "register_target_hooks",
    "register_te_compute",
    "schedule_te",
    "set_target_options",
    "shape_dims",
    "source_options",
    "static_shape",
    "supported_ops",
    "to_relax",
    "translate_to_te",
    "tune",
    "unregister_compiler",
    "verify",
    "why_not_compressed",
]
