"""Operators of this package that are kept whole.

Attention over a cache: the importer of ONNX declares its meaning.

Sources of products that are rounded to 8 bits: each block of a row by a scale of its own, found at run time.

    y = x / scale, rounded to whole numbers, times scale;   scale = the largest magnitude of the block / 127

A compiler that takes it together with the product behind it multiplies the whole numbers. So does ONNX Runtime for
``MatMulNBits`` with ``accuracy_level`` 4. A block with a number that is not finite has no finite number in its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ..ir.relax_utils import make_constant, shape_dims
from .table import Operator, declare, reserve

DOMAIN, NAME = "tvm_byoc_dnnl", "CachedAttention"
#: the Relax operator
CACHED_ATTENTION = reserve(DOMAIN, NAME)
#: those that the importer declares with its first model, before which vendors are registered: domain → names
DECLARED_LATER = {
    DOMAIN: (NAME,),
    "": ("Attention", "RMSNormalization", "RotaryEmbedding", "SimplifiedLayerNormalization"),
    "com.microsoft": (
        *("Attention", "CausalConvWithState", "EmbedLayerNormalization", "GatherBlockQuantized", "GroupNorm"),
        *("GroupQueryAttention", "MatMulBnb4", "MatMulNBits", "MoE", "MultiHeadAttention", "QAttention", "QMoE"),
        *("RotaryEmbedding", "SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    ),
}
for _domain, _names in DECLARED_LATER.items():
    for _name in _names:
        reserve(_domain, _name)

_LEAST = np.finfo("float32").tiny  # as a scale: its inverse is finite


def rounded(x: Any, block: int) -> relax.Call:
    """A float32 tensor whose rows, along its last axis, are rounded in blocks that divide them."""
    return _OPERATOR.call([x], {"block": block}, [True], "")


def block_of(call: Any) -> int:
    return int(call.attrs["block"])


def _built(bb: relax.BlockBuilder, call: Any, _node: str) -> Any:
    x, block = call.args[0], block_of(call)
    dims = shape_dims(x.ty) or []
    blocks = bb.emit(R.reshape(x, [*dims[:-1], int(dims[-1]) // block, block]))
    largest = bb.emit(R.max(bb.emit(R.abs(blocks)), axis=-1, keepdims=True))
    unit = bb.emit(R.divide(largest, make_constant(np.float32(127))))
    scale = bb.emit(R.maximum(unit, make_constant(np.float32(_LEAST))))
    inverse = bb.emit(R.divide(make_constant(np.float32(1)), scale))
    whole = bb.emit(R.round(bb.emit(R.multiply(blocks, inverse))))
    return bb.emit(R.reshape(bb.emit(R.multiply(whole, scale)), dims))


_OPERATOR = Operator("tvm_byoc_dnnl", "RoundedBlocks", _built, lambda call: [call.args[0].ty])
declare(_OPERATOR)
#: the Relax operator
ROUNDED = _OPERATOR.relax_name
