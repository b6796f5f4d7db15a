"""oneDNN: predicates, lowerings and fusion patterns, one file per family of operators.

An operator's default predicate is its lowering plus a probe of the library, so most files hold lowerings only.
"""

from __future__ import annotations

from ...vendor import portable_codegen, register_namespace
from . import (
    activations,
    attention,
    bfloat16,
    common,
    compressed,
    conv,
    elementwise,
    lrn,
    matmul,
    norm,
    pool,
    quantize,
    quantized,
    recurrent,
    reduce,
    resize,
    shape,
    shuffle,
    softmax,
    unsupported,
)
from .examination import EXAMINATION
from .flops import primitive_flops
from .nan import FINITE_MATH, KEEP_NAN
from .native import create_module, describe, measure_candidates, probe, probe_many
from .policy import DnnlPolicy
from .post_ops import fuse_post_ops
from .program import write_program
from .source import create_source, emit, source_build
from .tables import TakeTables

__all__ = [
    "activations",
    "attention",
    "compressed",
    "conv",
    "elementwise",
    "lrn",
    "matmul",
    "norm",
    "pool",
    "quantize",
    "quantized",
    "recurrent",
    "reduce",
    "resize",
    "shape",
    "shuffle",
    "softmax",
    "unsupported",
]

_OPTIONS = {
    FINITE_MATH: False,
    KEEP_NAN: False,
    **conv.OPTIONS,
    **common.OPTIONS,
    **compressed.OPTIONS,
    **bfloat16.OPTIONS,
    **quantized.OPTIONS,
}

register_namespace(
    "dnnl",
    codegen=portable_codegen(
        "dnnl", create_module, create_source, source_build, _OPTIONS, measure_candidates=measure_candidates
    ),
    probe=probe,
    probe_many=probe_many,
    describe=describe,
    emit=emit,
    write_program=write_program,
    optimize=fuse_post_ops,
    primitive_flops=primitive_flops,
    doctor=EXAMINATION,
    prepare=[attention.CausalMasks, TakeTables],
    policy=DnnlPolicy(cheap_beside_host=False),
)
