"""Products with weights of 8 or 4 bits, which a kernel of ours reads as they are stored.

    x @ permute_dims(reshape(dequantize(q, scale, zero), (N, K)))

`tvm_byoc_dnnl.prepare.compression` writes this form, for the option ``weights`` and for models that store such weights.
Where the source is rounded in the same blocks (`tvm_byoc_dnnl.whole.rounded`), whole numbers are multiplied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, is_tuple, wildcard

from ...vendor import ROUNDED, GraphBuilder, Value, block_of, constant_numpy, pattern_example, register_pattern, require
from .common import Match, product, require_float


def _weights(data: Any, parts: dict[str, Any]) -> Any:
    real = is_op("relax.dequantize")(data, parts["scale"], parts["zero"])
    parts["real"] = real
    return is_op("relax.permute_dims")(is_op("relax.reshape")(real, wildcard()))


def _register(name: str, bits: int) -> None:
    parts = {key: is_const() for key in ("data", "scale", "zero")}
    stored: Any = parts["data"]
    if bits == 4:
        four = parts["four"] = is_const()
        low = is_op("relax.right_shift")(is_op("relax.left_shift")(stored, four), four)
        high = is_op("relax.right_shift")(stored, four)
        stored = is_op("relax.reshape")(is_op("relax.stack")(is_tuple([low, high])), wildcard())
    x = parts["x"] = wildcard()
    source = parts["rounded"] = is_op(ROUNDED)(x)
    pattern = is_op("relax.matmul")(source | x, _weights(stored, parts))

    def lower(g: GraphBuilder, match: Match) -> Value:
        return _lower(g, match, bits)

    def example() -> tvm.IRModule:
        return _example(bits)

    register_pattern("dnnl", name, pattern, annotations=parts, lower=lower, example=example)


def _lower(g: GraphBuilder, match: Match, bits: int) -> Value:
    """The product as a node of its own kind."""
    x, data, scale, zero = (g.value(match[name]) for name in ("x", "data", "scale", "zero"))
    out = g.shape_of(match["root"].ty)
    require_float("relax.matmul", x)
    require(x.dtype == "float32", f"weights of {bits} bits with a source of dtype {x.dtype}; only float32 is taken")
    require(data.dtype == "int8", f"weights of {bits} bits that are stored as {data.dtype}")
    require(int(match["real"].attrs.axis) % 2 == 0 and data.ndim == 2, "scales along another axis than the columns")
    require(bits == 8 or int(constant_numpy(match["four"])) == 4, "shifts by another number than 4")
    (n, k), group = (out[-1], x.shape[-1]), data.shape[1]
    assert isinstance(n, int)
    assert isinstance(k, int)
    assert isinstance(group, int)
    group = group * 8 // bits
    groups = k // group
    require(group % 8 == 0 and groups * group == k, f"groups of {group} weights, which do not divide {k} by eights")
    require(scale.shape == (n * groups,), f"scales of shape {scale.shape} for {n} columns of {groups} groups")
    inputs = [
        g.reshape(x, (product(x.shape[:-1]), k)),
        g.reshape(data, (n, k * bits // 8)),
        g.reshape(scale, (n, groups)),
    ]
    zeros = zero.constant
    if zeros is None or zeros.any():
        require(zero.shape == scale.shape and zero.dtype == "int8", f"zero points of shape {zero.shape}, {zero.dtype}")
        inputs.append(g.reshape(g.emit("reorder", [zero], zero.shape, "float32"), (n, groups)))
    attrs: dict[str, Any] = {"group_size": group}
    if scale.constant is not None and _is_narrow(scale.constant):
        attrs["scale_bits"] = 16  # as zero points are, too
    if (rounded := match.get("rounded")) is not None:
        block = block_of(rounded)
        require(block == group, f"a source that is rounded in blocks of {block}, but groups of {group} weights")
        attrs["alg"] = "int8"
    rows = product(x.shape[:-1])
    return g.reshape(g.emit("compressed_matmul", inputs, (rows, n), **attrs), out)


def _is_narrow(scales: np.ndarray) -> bool:
    """Whether float16 says them exactly, as those of files that store them so."""
    with np.errstate(over="ignore"):
        return np.array_equal(scales, scales.astype("float16"))


def _example(bits: int) -> tvm.IRModule:
    """One product; any bytes are weights of either width."""
    columns, depth, group = 40, 64, 32
    groups = columns * depth // group
    rng = np.random.default_rng(bits)
    stored = relax.const(rng.integers(-128, 128, (groups, group * bits // 8)).astype("int8"))
    scales = relax.const((rng.random(groups) + 0.5).astype("float32"))
    zeros = relax.const(np.zeros(groups, "int8"))

    def product_with(x: Any) -> Any:
        data = stored
        if bits == 4:
            four = relax.const(np.int8(4), "int8")
            low, high = R.right_shift(R.left_shift(data, four), four), R.right_shift(data, four)
            data = R.reshape(R.stack([low, high], -1), (groups, group))
        real = R.dequantize(data, scales, zeros, axis=0, out_dtype="float32")
        return R.matmul(x, R.permute_dims(R.reshape(real, (columns, depth))))

    return pattern_example(product_with, (3, depth))()


_register("compressed_matmul_int8", 8)
_register("compressed_matmul_int4", 4)
