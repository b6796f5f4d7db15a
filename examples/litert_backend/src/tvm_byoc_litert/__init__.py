"""LiteRT as a backend: a region becomes a .tflite model, which is the blob in the library."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc


def _example(x: Any) -> Any:
    weights = np.linspace(-1, 1, 8 * 6 * 9, dtype="float32").reshape(8, 6, 3, 3)
    bias = np.arange(8, dtype="float32").reshape(1, 8, 1, 1)
    return R.add(R.nn.conv2d(x, byoc.make_constant(weights), padding=1), byoc.make_constant(bias))


def register() -> None:
    """Called by the entry point, once, when the backends are first asked for."""
    from . import region
    from .model import OPERATORS

    byoc.register_namespace("litert", api=1, layout="NHWC", weights="OHWI")
    dtypes, check = ("int8", "uint8"), region.is_written
    byoc.register_quantization("litert", activations=dtypes, weights=dtypes, check=check)
    product = is_op("relax.nn.conv2d")(wildcard(), is_const()) | is_op("relax.matmul")(wildcard(), is_const())
    whole, example = is_op("relax.add")(product, is_const()), byoc.pattern_example(_example, (1, 6, 5, 5))
    byoc.register_pattern("litert", "product_with_bias", whole, check=check, example=example)
    for op in (*OPERATORS, "relax.clip", "relax.quantize", "relax.dequantize"):
        byoc.register_annotate_compiler("litert", op, region.takes(op))
    byoc.register_codegen("litert", region.codegen, options=region.OPTIONS)
    byoc.register_blob_runner("litert", region.check, region.load)
