"""Small graphs that a pattern matches: a vendor registers them with it, and the conformance kit tests it with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax


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
        builder = relax.BlockBuilder()
        with builder.function("main", operands):
            with builder.dataflow():
                result = function(*operands)
                result = builder.emit_output(relax.Tuple(list(result)) if isinstance(result, tuple) else result)
            builder.emit_func_output(result)
        return builder.get()

    return example
