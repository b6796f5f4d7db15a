"""The second tier of names for vendors: what a backend in the tree uses beyond `tvm_byoc_dnnl` itself.

The backends under ``patterns`` import their parts of the engine from here and from nowhere else, and a vendor's own
package may do the same. This tier changes more often than the names of the package: `VERSION` grows when a name here
is removed or changes its meaning, and the changelog says what to write instead. See docs/vendor_contract.md.
"""

# ruff: noqa: I001 - it would give each name a statement of its own
from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from .whole import table as _whole
from .core import _native
from .core._native import INCLUDE as INCLUDE
from .core.errors import (
    GraphError as GraphError,
    InputError as InputError,
    NativeLibraryError as NativeLibraryError,
    UnsupportedError as UnsupportedError,
    takes as _takes,
)
from .core.own_process import Worker as Worker, WorkerError as WorkerError
from .core.verdict import Reject as Reject, require as require
from .graph.builder import GraphBuilder as GraphBuilder, Value as Value
from .graph import (
    Constant as Constant,
    Dim as Dim,
    Input as Input,
    PortableGraph as PortableGraph,
    Tensor as Tensor,
    evaluate as evaluate,
)
from .graph.node_list import Node as Node, NodeList as NodeList, PostOp as PostOp, Scaling as Scaling
from .graph.sizes import trial_sizes as trial_sizes, whole_factor as whole_factor
from .graph import cost as _cost
from .ir import relax_utils as _relax_utils, tvm_compat as _tvm_compat
from .ir.tvm_compat import buffer_loads as buffer_loads, is_constant as is_constant
from .prepare.rewrite import Scope as Scope, rewrite_pass as rewrite_pass
from .graph.cost import RegionPolicy as RegionPolicy, Work as Work
from .core.verdict import describe as describe
from .te import TEGraph as TEGraph, schedule_te as schedule_te, translate_to_te as translate_to_te
from .te import legalize as _legalize
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
from .vendors import (
    Description as Description,
    Examination as Examination,
    Standalone as Standalone,
    remembered as remembered,
)
from .prepare.compression import ACTIVATIONS as ACTIVATIONS
from .vendors.namespaces import (
    INT8 as INT8,
    PRECISIONS as PRECISIONS,
    WEIGHTS as WEIGHTS,
    get_target_options as get_target_options,
)
from .vendors.quantization import pattern_example as pattern_example
from .vendors.portable import portable_codegen as portable_codegen
from .vendors.registry import (
    register_annotate_compiler as register_annotate_compiler,
    register_lowering as register_lowering,
    register_namespace as register_namespace,
    register_pattern as register_pattern,
    register_unsupported as register_unsupported,
)
from .whole.table import RELU_OF_NUMBERS as RELU_OF_NUMBERS, ROUNDED as ROUNDED
from .whole.table import CACHED_ATTENTION as CACHED_ATTENTION
from .whole.recurrent import RECURRENT as RECURRENT
from .whole import recurrent as _recurrent

VERSION = 1
native = _native

# What the compiler itself calls for each expression is wrapped here, not where it is written.
buffer_of = _takes(access=(tirx.BufferLoad, tirx.BufferStore))(_tvm_compat.buffer_of)
dtype_of = _takes(ty=tvm.ir.Type)(_tvm_compat.dtype_of)
shape_dims = _takes(ty=relax.TensorType)(_relax_utils.shape_dims)
static_shape = _takes(ty=relax.TensorType)(_relax_utils.static_shape)
constant_numpy = _takes(expr=_tvm_compat.CONSTANT)(_relax_utils.constant_numpy)
make_constant = _takes(array=np.ndarray)(_relax_utils.make_constant)
composite_of = _takes(func=relax.Function)(_relax_utils.composite_of)
is_cheap = _takes(call=relax.Call)(_cost.is_cheap)
least_sizes = _takes(attrs=tvm.ir.Attrs)(_legalize.least_sizes)
inputs_of = _takes(call=relax.Call)(_whole.inputs_of)
attributes_of = _takes(call=relax.Call)(_whole.attributes_of)
wanted_of = _takes(call=relax.Call)(_whole.wanted_of)
block_of = _takes(call=relax.Call)(_whole.block_of)
layer_of = _takes(call=relax.Call)(_recurrent.layer_of)
