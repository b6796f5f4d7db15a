"""Small graphs that a pattern matches, quantised groups among them: a vendor registers them with it, and the
conformance kit tests it with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R

from ..ir.relax_utils import make_constant, module_of


def pattern_example(
    function: Callable[..., Any], *shapes: Sequence[int], dtype: str | Sequence[str] = "float32"
) -> Callable[[], tvm.IRModule]:
    """Make the argument ``example`` of `register_pattern` from an expression.

    Parameters
    ----------
    function : callable
        ``function(*operands)`` returns a Relax expression, or a tuple of them.
    shapes : sequence of sequence of int
        One per operand.
    dtype : str or sequence of str
        Of all operands, or one per operand.

    Returns
    -------
    callable
        Makes an IRModule of which ``main`` computes the expression.

    Examples
    --------
    >>> pattern_example(lambda a, b, c: R.add(R.multiply(a, b), c), (3, 5), (3, 5), (5,))
    """

    def example() -> tvm.IRModule:
        dtypes = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
        types = [relax.TensorType(list(shape), own) for shape, own in zip(shapes, dtypes, strict=True)]
        operands = [relax.Var(f"x{i}", own) for i, own in enumerate(types)]
        return module_of(operands, lambda _builder: function(*operands))

    return example


_STEP = 0.25  # scales are powers of two: no result lies near a half


def examples(spec: Any) -> dict[str, Callable[[], tvm.IRModule]]:
    """Name of a pattern → what makes its example, for a `Quantization`."""
    dtype, zero = spec.activations[0], 0 if spec.symmetric_activations else 3

    def dq(x: Any, scale: float = _STEP) -> Any:
        return R.dequantize(x, relax.const(np.float32(scale)), _zero(dtype, zero), axis=0, out_dtype="float32")

    def q(x: Any, scale: float = _STEP) -> Any:
        return R.quantize(x, relax.const(np.float32(scale)), _zero(dtype, zero), axis=0, out_dtype=dtype)

    def weights(*shape: int) -> Any:
        return _weights(spec.weights[0], shape, spec.per_channel)

    def group(function: Callable[..., Any], *shapes: Sequence[int]) -> Callable[[], tvm.IRModule]:
        return pattern_example(lambda *given: q(function(*map(dq, given))), *shapes, dtype=dtype)

    bias = make_constant(np.arange(8, dtype="float32").reshape(1, 8, 1, 1))
    found = {
        "conv": group(
            lambda x: R.nn.relu(R.add(R.nn.conv2d(x, weights(8, 6, 3, 3), padding=(1, 1)), bias)), (1, 6, 5, 5)
        ),
        "matmul": group(lambda x: R.matmul(x, R.permute_dims(weights(5, 16))), (1, 16)),
        "add": group(R.add, (1, 6, 5, 5), (1, 6, 5, 5)),
        "pool": group(lambda x: R.nn.max_pool2d(x, (2, 2), (2, 2)), (1, 6, 6, 6)),
        "relu": group(R.nn.relu, (1, 6, 5, 5)),
        "resize": group(lambda x: R.image.resize2d(x, (8, 8), method="nearest_neighbor"), (1, 6, 4, 4)),
        "reshape": group(lambda x: R.reshape(x, (1, 24)), (1, 6, 2, 2)),
    }
    for count in range(2, 9):
        found[f"concat_{count}"] = group(lambda *parts: R.concat(list(parts), axis=1), *[(1, 2, 3, 3)] * count)
    return found


def _zero(dtype: str, value: int) -> Any:
    return make_constant(np.array(value, dtype))


def _weights(dtype: str, shape: Sequence[int], per_channel: bool) -> Any:
    random = np.random.default_rng(0)
    info = np.iinfo(dtype)
    numbers = random.integers(max(info.min + 1, -127), min(info.max, 127) + 1, shape).astype(dtype)
    count = shape[0] if per_channel else 1
    scales = (2.0 ** random.integers(-9, -6, count)).astype("float32")
    zeros = np.zeros(count, dtype)
    given = [make_constant(part if per_channel else part.reshape(())) for part in (scales, zeros)]
    return R.dequantize(make_constant(numbers), *given, axis=0, out_dtype="float32")
