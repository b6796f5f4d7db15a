"""The second tier of names for vendors: what a backend in the tree uses beyond `tvm_byoc_dnnl` itself.

The backends under ``patterns`` import their parts of the engine from here and from nowhere else, and a vendor's own
package may do the same. This tier changes more often than the names of the package: `VERSION` grows when a name here
is removed or changes its meaning, and the changelog says what to write instead. See docs/vendor_contract.md.
"""

from __future__ import annotations

from .core import _native as native
from .core._native import INCLUDE
from .core.errors import GraphError, InputError, NativeLibraryError, UnsupportedError
from .core.verdict import Reject, require
from .graph.builder import GraphBuilder, Value
from .graph.graph import Dim, Input, PortableGraph, Tensor, evaluate
from .graph.node_list import Node, PostOp, Scaling
from .graph.sizes import trial_sizes, whole_factor
from .ir.tvm_compat import (
    buffer_loads,
    buffer_of,
    constant_numpy,
    dtype_of,
    is_constant,
    make_constant,
    shape_dims,
    static_shape,
)
from .prepare.rewrite import Scope, rewrite_pass
from .regions.cost import RegionPolicy, Work, is_cheap
from .regions.failure import describe
from .te import TEGraph, schedule_te, translate_to_te
from .te.computes import least_sizes
from .vendors.codegen import SourceBuild
from .vendors.hooks.c_source import c_module, generate_c, lower_tir, object_module
from .vendors.hooks.registration import for_each_region, register_target_hooks
from .vendors.namespace import Description, Examination, Standalone, remembered
from .vendors.namespaces import get_target_options
from .vendors.pattern_example import pattern_example
from .vendors.portable import portable_codegen
from .vendors.registry import (
    register_annotate_compiler,
    register_lowering,
    register_namespace,
    register_pattern,
    register_unsupported,
)
from .whole import ROUNDED, attributes_of, block_of, inputs_of, wanted_of
from .whole.cached_attention import CACHED_ATTENTION
from .whole.recurrent import RECURRENT, layer_of

VERSION = 1

__all__ = [
    "CACHED_ATTENTION",
    "INCLUDE",
    "RECURRENT",
    "ROUNDED",
    "VERSION",
    "Description",
    "Dim",
    "Examination",
    "GraphBuilder",
    "GraphError",
    "Input",
    "InputError",
    "NativeLibraryError",
    "Node",
    "PortableGraph",
    "PostOp",
    "RegionPolicy",
    "Reject",
    "Scaling",
    "Scope",
    "SourceBuild",
    "Standalone",
    "TEGraph",
    "Tensor",
    "UnsupportedError",
    "Value",
    "Work",
    "attributes_of",
    "block_of",
    "buffer_loads",
    "buffer_of",
    "c_module",
    "constant_numpy",
    "describe",
    "dtype_of",
    "evaluate",
    "for_each_region",
    "generate_c",
    "get_target_options",
    "inputs_of",
    "is_cheap",
    "is_constant",
    "layer_of",
    "least_sizes",
    "lower_tir",
    "make_constant",
    "native",
    "object_module",
    "pattern_example",
    "portable_codegen",
    "register_annotate_compiler",
    "register_lowering",
    "register_namespace",
    "register_pattern",
    "register_target_hooks",
    "register_unsupported",
    "remembered",
    "require",
    "rewrite_pass",
    "schedule_te",
    "shape_dims",
    "static_shape",
    "translate_to_te",
    "trial_sizes",
    "wanted_of",
    "whole_factor",
]
