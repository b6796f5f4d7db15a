"""What the fusion patterns share: numbers out of constants, how exact they must be, and a graph that each pattern
matches, from which the conformance kit makes its cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import DFPattern, is_const, is_op

from ...vendor import Reject, constant_numpy, dtype_of, is_constant, pattern_example, shape_dims

Match = Mapping[str, Any]
#: the relative error of a constant: the precision of the short types, and of a float32 that exporters print
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}


def constant() -> DFPattern:
    """A pattern for a constant."""
    return is_const()


def times(x: DFPattern, by: DFPattern, over: DFPattern) -> DFPattern:
    """A pattern for ``x · by`` or ``x / over``."""
    return is_op("relax.multiply")(x, by) | is_op("relax.divide")(x, over)


def number(match: Match, name: str, default: float | None = None) -> float:
    """The number that a matched constant holds in every element; ``default`` where that part was not matched.

    Raises
    ------
    Reject
        If it is no constant, or its elements differ.
    """
    expr = match.get(name)
    if expr is None and default is not None:
        return default
    value = getattr(expr, "value", expr)
    if isinstance(value, (int, float)):
        return float(value)
    if not is_constant(expr):
        raise Reject(f"{name} is not a constant")
    values = constant_numpy(expr).reshape(-1)
    if values.size != 1 and (not values.size or (values != values[0]).any()):
        raise Reject(f"{name} is not one number, but {values.size} different ones")
    return float(values[0])


def close(value: float, wanted: float, like: Any) -> bool:
    """Whether a constant of a formula on tensors like ``like`` has the expected value."""
    within = _TOLERANCE.get(dtype_of(like.ty), 2e-6)
    return math.isclose(value, wanted, rel_tol=within, abs_tol=1e-12)


def require_shape(match: Match) -> None:
    """Refuse a match whose result is broadcast by one of its constants."""
    before, after = (shape_dims(match[key].ty) for key in ("x", "root"))
    if before is None or after is None or [str(d) for d in before] != [str(d) for d in after]:
        raise Reject(f"a constant broadcasts {before} to {after}")


_IMAGE = (2, 6, 5, 7)


def _times(x: Any, by: float) -> Any:
    return R.multiply(x, _number(by))


def _number(value: float) -> Any:
    return relax.const(value, "float32")


def _gate(x: Any, factor: float = 0.2, shift: float = 0.5, high: float = 1.0) -> Any:
    inner = R.add(x if factor == 1 else _times(x, factor), _number(shift))
    return R.clip(inner, 0, high)


def _elu(x: Any) -> Any:
    below = R.nn.relu(R.subtract(_number(1.0), R.exp(x)))
    return R.add(_times(below, -0.7), R.nn.relu(x))


def _elu_where(x: Any) -> Any:
    return R.where(R.greater(x, _number(0.0)), x, _times(R.subtract(R.exp(x), _number(1.0)), 0.7))


def _lrn(x: Any) -> Any:
    pool = R.nn.avg_pool3d(R.expand_dims(R.multiply(x, x), 1), (5, 1, 1), padding=(2, 0, 0) * 2, count_include_pad=True)
    scale = R.add(_times(R.squeeze(pool, [1]), 0.01), _number(1.5))
    return R.divide(x, R.power(scale, _number(0.75)))


def _shuffle(x: Any) -> Any:
    n, c, h, w = _IMAGE
    apart = R.permute_dims(R.reshape(x, (n, 3, c // 3, h, w)), (0, 2, 1, 3, 4))
    return R.reshape(apart, _IMAGE)


def _matmul_transposed(x: Any) -> Any:
    weights = np.random.default_rng(0).uniform(-1, 1, (7, 13)).astype("float32")
    return R.matmul(x, R.permute_dims(relax.const(weights)))


def _padded_pool(rank: int) -> Callable[[Any], Any]:
    pool = getattr(R.nn, f"max_pool{rank}d")
    return lambda x: pool(R.nn.pad(x, [0, 0, 0, 0] + [1, 0] * rank, "constant", float("-inf")), (3,) * rank)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "hardswish": lambda x: R.multiply(x, _gate(x, 1 / 6)),
    "hardswish_scaled_last": lambda x: _times(R.multiply(x, _gate(x, 1.0, 3.0, 6.0)), 1 / 6),
    "hardsigmoid_scaled": lambda x: _times(_gate(x, 1.0, 3.0, 6.0), 1 / 6),
    "hardsigmoid": _gate,
    "elu": _elu,
    "elu_where": _elu_where,
    "mish": lambda x: R.multiply(x, R.tanh(R.nn.softplus(x))),
    "swish": lambda x: R.multiply(x, R.sigmoid(_times(x, 1.7))),
    "logsigmoid": lambda x: R.log(R.sigmoid(x)),
    "channel_shuffle": _shuffle,
}

#: pattern → its example
EXAMPLES = {name: pattern_example(function, _IMAGE) for name, function in _FUNCTIONS.items()}
# without AVX-512 oneDNN has it for whole blocks of channels only
EXAMPLES["lrn"] = pattern_example(_lrn, (2, 16, 7, 5))
EXAMPLES["matmul_transposed"] = pattern_example(_matmul_transposed, (3, 13))
EXAMPLES.update(
    {f"padded_max_pool{rank}d": pattern_example(_padded_pool(rank), (2, 3, 7, 5, 6)[: 2 + rank]) for rank in (1, 2, 3)}
)
