"""LiteRT as a backend: a region becomes a .tflite model, which is the blob in the library.

flatbuffer.py  a model while it is written
operators.py   how each operator of float32 is written
quantised.py   how groups of calls on integers are written
region.py      a region as a model; what cannot be written, or what LiteRT refuses, is not taken
blob.py        how a process loads and runs a model
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc

__all__ = ["register"]


def _example(x: Any) -> Any:
    weights = byoc.make_constant(np.linspace(-1, 1, 8 * 6 * 9, dtype="float32").reshape(8, 6, 3, 3))
    bias = byoc.make_constant(np.arange(8, dtype="float32").reshape(1, 8, 1, 1))
    return relax.op.add(relax.op.nn.conv2d(x, weights, padding=1), bias)


def register() -> None:
    """Called by the entry point, once, when the backends are first asked for."""
    from . import blob
    from .operators import OPERATORS
    from .region import BIAS, check_bias, check_group, takes

    byoc.register_namespace("litert", api=1, layout="NHWC", weights="OHWI")
    byoc.register_quantization("litert", activations=("int8", "uint8"), weights=("int8", "uint8"), check=check_group)
    product = is_op("relax.nn.conv2d")(wildcard(), is_const()) | is_op("relax.matmul")(wildcard(), is_const())
    example = byoc.pattern_example(_example, (1, 6, 5, 5))
    byoc.register_pattern("litert", BIAS, is_op("relax.add")(product, is_const()), check=check_bias, example=example)
    for op in (*OPERATORS, "relax.quantize", "relax.dequantize"):
        byoc.register_annotate_compiler("litert", op, takes(op))
    byoc.register_codegen("litert", blob.codegen, options=blob.OPTIONS)
    byoc.register_blob_runner("litert", blob.check, blob.load)
