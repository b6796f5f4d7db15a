"""Bring-your-own-codegen for stock Apache TVM: vendors' libraries beside TVM's own code."""

# ruff: noqa: F405
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .core.machine import few_spins

with few_spins():  # tvm imports PyTorch where that is installed, and PyTorch loads libgomp
    import tvm
    from tvm import relax

    from .core import errors_in_tvm as _errors_in_tvm  # noqa: F401
    from .pipeline import PIPELINE

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
    from ._version import __version__

__all__ = [
    "AnnotateExternalCompiler",
    "ArtifactError",
    "ByocError",
    "DeviceMemory",
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
    "TextGenerator",
    "TextStream",
    "TvmMemory",
    "UnsupportedError",
    "VendorError",
    "Verification",
    "Work",
    "Works",
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
    "layer_times",
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


@relax.register_pipeline(PIPELINE)
def _pipeline(**options: Any) -> tvm.transform.Pass:
    from .pipeline.byoc import byoc_pipeline

    return byoc_pipeline(**options)


def _attribute(name: str) -> Any:
    # `import tvm` imports this package to load the native library, in every process that uses TVM: the rest waits
    # until it is used.
    if name in __all__:
        from . import _public

        globals().update({n: getattr(_public, n) for n in __all__})
        return globals()[name]
    folder_or_file = f"{__name__}.{name}"
    try:
        return importlib.import_module(folder_or_file)
    except ModuleNotFoundError as error:
        if error.name != folder_or_file:
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # a checker would take any name for one of the package
    __getattr__ = _attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
