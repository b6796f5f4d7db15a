"""Everything that is public, imported at the first use of any of it (see ``__getattr__`` of the package).

Each name is repeated, which says to type checkers that it is exported. This is the only list of them.
"""

# ruff: noqa: I001 - it would give each name a statement of its own
from __future__ import annotations

from .core.machine import own_version as _own_version
from .api import compile as compile, emit as emit, partition as partition
from .pipeline.byoc import byoc_pipeline as byoc_pipeline
from .pipeline.executable import source_options as source_options
from .core.errors import (
    ArtifactError as ArtifactError,
    ByocError as ByocError,
    ExportError as ExportError,
    GraphError as GraphError,
    InputError as InputError,
    NativeLibraryError as NativeLibraryError,
    UnsupportedError as UnsupportedError,
    VendorError as VendorError,
)
from .core.compilation import read_log as read_log
from .core.verdict import Reject as Reject, Works as Works
from .frontends import to_relax as to_relax
from .frontends.onnx import register_onnx_operator as register_onnx_operator
from .ir.relax_utils import bindings_of as bindings_of
from .core.tensor_info import TensorInfo as TensorInfo
from .vendor import (
    composite_of as composite_of,
    constant_numpy as constant_numpy,
    dtype_of as dtype_of,
    is_constant as is_constant,
    make_constant as make_constant,
    shape_dims as shape_dims,
    static_shape as static_shape,
)
from .partitioning.annotate import AnnotateExternalCompiler as AnnotateExternalCompiler
from .partitioning.trial import get_annotate_compiler as get_annotate_compiler
from .partitioning import PartitionGraph as PartitionGraph
from .prepare import Prepare as Prepare
from .prepare.compression import why_not_compressed as why_not_compressed
from .graph.cost import RegionPolicy as RegionPolicy, Work as Work
from .report import Report as Report, explain as explain
from .report.profile import Profile as Profile, profile as profile
from .report.verify import Verification as Verification, verify as verify
from .runtime import load as load
from .runtime.runner import Runner as Runner
from .te import (
    TEGraph as TEGraph,
    register_te_compute as register_te_compute,
    schedule_te as schedule_te,
    translate_to_te as translate_to_te,
)
from .text.generator import TextGenerator as TextGenerator
from .text.stream import TextStream as TextStream
from .tuning import tune as tune
from .vendors.devices import DeviceMemory as DeviceMemory, TvmMemory as TvmMemory
from .vendors.blobs import (
    blob_module as blob_module,
    layer_times as layer_times,
    register_blob_runner as register_blob_runner,
)
from .vendors.portable import portable_codegen as portable_codegen
from .vendors.c_source import c_source_module as c_source_module, generate_c as generate_c
from .vendors.hooks import register_fused_op as register_fused_op
from .vendors.hooks import (
    InlineComposites as InlineComposites,
    for_each_region as for_each_region,
    refuse_region as refuse_region,
    register_target_hooks as register_target_hooks,
)
from .vendors.namespaces import (
    compilers as compilers,
    supported_ops as supported_ops,
    unregister_compiler as unregister_compiler,
)
from .vendors.quantization import pattern_example as pattern_example
from .vendors.quantised_groups import (
    QuantizedGroup as QuantizedGroup,
    QuantizedTensor as QuantizedTensor,
    quantized as quantized,
)
from .vendors.region_steps import (
    RegionStep as RegionStep,
    RegionSteps as RegionSteps,
    RegionTensor as RegionTensor,
    steps_of as steps_of,
)
from .vendors.quantization import Quantization as Quantization, register_quantization as register_quantization
from .vendors.registry import (
    register_annotate_compiler as register_annotate_compiler,
    register_codegen as register_codegen,
    register_cost as register_cost,
    register_lowering as register_lowering,
    register_namespace as register_namespace,
    register_pattern as register_pattern,
)
from .vendors.namespaces import get_target_options as get_target_options, set_target_options as set_target_options

__version__ = _own_version()
#: the public names
_NAMES = {name: value for name, value in list(globals().items()) if name == "__version__" or name[0] != "_"}
del _NAMES["annotations"]
