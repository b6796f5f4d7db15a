"""Activations, and the limits of a Clip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..emit import Emit
from ..table import definition, operator
from ..value import Node, Value
from .casts import wide_float

definition("Swish", since=24)


@operator("Clip")
def _clip(e: Emit, x: Value, low: Value | None = None, high: Value | None = None) -> Any:
    """NaN in the data stays; a limit that is NaN is none."""
    for bound, call, none in ((low, e.maximum, -math.inf), (high, e.minimum, math.inf)):
        if bound is None:
            continue
        limit = e.reshape(bound, []) if bound.dims != () else bound
        if not limit.dtype.startswith(("int", "uint")) and not _is_number(limit):
            limit = e.where(e.isnan(wide_float(e, limit)), none, limit)
        x = call(x, limit)
    return x


def _is_number(limit: Value) -> bool:
    return limit.is_constant and limit.known is not None and not np.isnan(limit.known.astype("float64")).any()


@operator("Gelu", since=20)
def _gelu(e: Emit, node: Node, x: Value, *, approximate: str = "none") -> Any:
    if approximate not in ("none", "tanh"):
        raise node.wrong(f"has approximate={approximate}; expected none or tanh")
    return e.gelu_tanh(x) if approximate == "tanh" else e.gelu(x)


def _wide(e: Emit, x: Value) -> Value:
    """As float32, if it has 16 bits."""
    return e.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _elu(e: Emit, x: Value, *, alpha: float = 1.0) -> Any:
    wide = _wide(e, x)
    rising = e.relu(wide)
    if x.dtype == "float64":  # which nothing fuses
        return e.where(x > 0, x, alpha * (e.exp(x) - 1))
    return e.cast(-alpha * e.relu(1 - e.exp(wide)) + rising, x.dtype)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


@operator("Selu", since=6)
def _selu(e: Emit, x: Value, *, alpha: float = _SELU[0], gamma: float = _SELU[1]) -> Any:
    wide = _wide(e, x)
    return e.cast(gamma * _elu(e, wide, alpha=alpha), x.dtype)


operator("Selu")(lambda e, x, *, alpha=1.6732, gamma=1.0507: _selu(e, x, alpha=alpha, gamma=gamma))


def softplus(e: Emit, x: Value) -> Any:
    wide = _wide(e, x)
    return e.cast(e.maximum(wide, 0) + e.log(1 + e.exp(-abs(wide))), x.dtype)


def _celu(e: Emit, x: Value, *, alpha: float = 1.0) -> Any:
    wide = _wide(e, x)
    if alpha < 0:
        return e.cast(e.relu(wide) + e.minimum(alpha * (e.exp(wide / alpha) - 1), 0), x.dtype)
    return e.cast(alpha * _elu(e, wide / alpha), x.dtype)


def _shrink(e: Emit, x: Value, *, lambd: float = 0.5, bias: float = 0.0) -> Any:
    """Of integers, the result is computed with the fractions of the attributes, and cut."""
    wide = e.cast(x, "float64") if "int" in x.dtype else x
    low = e.where(wide < -lambd, wide + bias, e.const(0, wide.dtype))
    return e.cast(e.where(wide > lambd, wide - bias, low), x.dtype)


#: operator, its first version, and its formula
_FORMULAS: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("Celu", 12, _celu),
    ("Elu", 1, _elu),
    ("HardSigmoid", 1, lambda e, x, *, alpha=0.2, beta=0.5: e.clip(alpha * x + beta, min=0, max=1)),
    ("HardSwish", 14, lambda e, x: x * (e.clip(x + 3, min=0, max=6) / 6)),
    ("LeakyRelu", 1, lambda e, x, *, alpha=0.01: e.leakyrelu(x, alpha=alpha)),
    ("Shrink", 9, _shrink),
    ("Softplus", 1, softplus),
    ("Softsign", 1, lambda e, x: x / (abs(x) + 1)),
    ("ThresholdedRelu", 10, lambda e, x, *, alpha=1.0: e.where(x > alpha, x, 0)),
)
for _name, _since, _formula in _FORMULAS:
    operator(_name, since=_since)(_formula)
