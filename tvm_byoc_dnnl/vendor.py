"""The second tier of names for vendors: what a backend in the tree uses beyond `tvm_byoc_dnnl` itself.

The backends under ``patterns`` import their parts of the engine from here and from nowhere else, and a vendor's own
package may do the same. This tier changes more often than the names of the package: `VERSION` grows when a name here
is removed or changes its meaning, and the changelog says what to write instead. See docs/vendor_contract.md.
"""

# ruff: noqa: I001 - it would give each name a statement of its own
from __future__ import annotations

from .core import _native
from .core._native import INCLUDE as INCLUDE
from .core.errors import (
    GraphError as GraphError,
    InputError as InputError,
    NativeLibraryError as NativeLibraryError,
    UnsupportedError as UnsupportedError,
)
from .core.verdict import Reject as Reject, require as require
from .graph.builder import GraphBuilder as GraphBuilder, Value as Value
from .graph.graph import (
    Constant as Constant,
    Dim as Dim,
    Input as Input,
    PortableGraph as PortableGraph,
    Tensor as Tensor,
    evaluate as evaluate,
)
from .graph.node_list import Node as Node, NodeList as NodeList, PostOp as PostOp, Scaling as Scaling
from .graph.sizes import trial_sizes as trial_sizes, whole_factor as whole_factor
from .ir.tvm_compat import (
    buffer_loads as buffer_loads,
    buffer_of as buffer_of,
    dtype_of as dtype_of,
    is_constant as is_constant,
)
from .ir.relax_utils import constant_numpy as constant_numpy, make_constant as make_constant
from .ir.relax_utils import shape_dims as shape_dims, static_shape as static_shape
from .prepare.rewrite import Scope as Scope, rewrite_pass as rewrite_pass
from .graph.cost import RegionPolicy as RegionPolicy, Work as Work, is_cheap as is_cheap
from .core.verdict import describe as describe
from .te import TEGraph as TEGraph, schedule_te as schedule_te, translate_to_te as translate_to_te
from .te.legalize import least_sizes as least_sizes
from .vendors.codegen import SourceBuild as SourceBuild
from .vendors.c_source import (
    c_module as c_module,
    generate_c as generate_c,
    lower_tir as lower_tir,
    object_module as object_module,
)
from .vendors.hooks import (
    for_each_region as for_each_region,
    register_target_hooks as register_target_hooks,
)
from .vendors.namespace import (
    Description as Description,
    Examination as Examination,
    Standalone as Standalone,
    remembered as remembered,
)
from .vendors.namespaces import get_target_options as get_target_options
from .vendors.quantization import pattern_example as pattern_example
from .vendors.portable import portable_codegen as portable_codegen
from .vendors.registry import (
    register_annotate_compiler as register_annotate_compiler,
    register_lowering as register_lowering,
    register_namespace as register_namespace,
    register_pattern as register_pattern,
    register_unsupported as register_unsupported,
)
from .whole import (
    RELU_OF_NUMBERS as RELU_OF_NUMBERS,
    ROUNDED as ROUNDED,
    attributes_of as attributes_of,
    block_of as block_of,
    inputs_of as inputs_of,
    wanted_of as wanted_of,
)
from .whole.table import CACHED_ATTENTION as CACHED_ATTENTION
from .whole.recurrent import RECURRENT as RECURRENT, layer_of as layer_of

VERSION = 1
native = _native
