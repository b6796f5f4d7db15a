"""The arithmetic of oneDNN's primitives, out of the layouts in a profile."""

from __future__ import annotations

import math
from collections.abc import Sequence


def primitive_flops(kind: str, layouts: Sequence[str]) -> int:
    """Multiplications and additions of a primitive, from its arguments' dims (sources first, destination last)."""
    dims = [[int(d) for d in text.rpartition(":")[2].split("x") if d] for text in layouts]
    if len(dims) < 2:
        return 0
    result = math.prod(dims[-1])
    if kind == "convolution":
        weights = next((i for i, text in enumerate(layouts) if ":packed:" in text), 1)  # behind what a norm reads
        return 2 * result * math.prod(dims[weights]) // max(dims[-1][1], 1)
    if kind == "deconvolution":
        return 2 * math.prod(dims[0]) * math.prod(dims[1]) // max(dims[0][1], 1)
    if kind == "attention" and len(dims) == 2:  # of its three primitives, the softmax
        return result
    # The other two are products; the first number of rows of a kernel's second operand is that of the keys.
    is_product = kind == "attention" and dims[1][-2] == dims[0][-1] and dims[-1][-1] == dims[1][-1]
    if is_product or kind in ("matmul", "compressed_matmul"):
        return 2 * result * dims[0][-1]
    if kind == "attention":
        return 2 * math.prod(dims[0][:-1]) * dims[1][-2] * (dims[0][-1] + dims[-1][-1])
    if kind == "recurrent":  # of its packed weights, in float32, each one in each step of each sequence
        return 2 * math.prod(dims[0][:2]) * (dims[1][0] // 4)
    return 0 if kind in ("reorder", "concat", "fill", "shuffle", "gather") else max(math.prod(d) for d in dims)
