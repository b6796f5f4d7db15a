"""Constant weights of products and layers in 8 or 4 bits; those of a group along the inner axis share a scale.

    x [M, K] @ w [K, N]
        ──>   x @ permute_dims(reshape(dequantize(q [N · K / group, group], scale, zero), (N, K)))

``q`` is int8. Four bits lie two in a byte, in two's complement with the lower half first, taken apart by shifts:

    q = reshape(stack([(p << 4) >> 4, p >> 4], -1), …)

Those of recurrent layers have a scale for each row:

    LSTM(x, w [D, 4 H, K], …)   ──>   LSTM(x, reshape(dequantize(q [D · 4 H, K], scale), (D, 4 H, K)), …)

All forms are ordinary operators with the same meaning for every backend and for TVM; a backend may know them, and read
the weights as they are stored. The source may be rounded in the same groups (`tvm_byoc_dnnl.whole.rounded`).

Weights that a program unpacks with arithmetic of its own, as GPTQ's and AWQ's layers in PyTorch do, get the form that
their values allow; those of groups that lie apart (GPTQ's order of activations) are sorted, and the source as they are:

    x @ ((numbers - zeros) * scales [g])   ──>   x [.., order] @ …
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..core.errors import one_of, takes
from ..ir.relax_utils import make_constant
from ..ir.tvm_compat import is_constant
from ..whole.recurrent import RECURRENT
from ..whole.table import ROUNDED, block_of, rounded
from .constants import FOLDS, evaluated, weights_of
from .rewrite import Found, Rule, Rules, Scope, rewrite_pass

#: the values of `activations`
ACTIVATIONS = ("float32", "int8")

#: the values of `weights`, and the bits of a number
BITS = {"int8": 8, "int4": 4}
#: smaller weights stay in the cache from call to call
_LEAST_NUMBERS = 1 << 16
#: what groups have multiples of
_UNIT = 8
#: numbers in a group: the first that divides the axis
_GROUPS = {8: (128, 64, 32), 4: (32,)}


@dataclass(frozen=True)
class Compressed:
    """Weights [N, K] as int8 with scales [N, K / group]; ``zeros`` are None where all are zero."""

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None

    @property
    def group(self) -> int:
        return int(self.numbers.shape[1] // self.scales.shape[1])

    @property
    def values(self) -> np.ndarray:
        n, k = self.numbers.shape
        centred = self.numbers.reshape(n, -1, self.group).astype("float64")
        if self.zeros is not None:
            centred -= self.zeros[..., None]
        return (centred * self.scales[..., None].astype("float64")).reshape(n, k)


@takes(weights=np.ndarray)
def why_not_compressed(weights: np.ndarray) -> str:
    """The reason why weights [K, N] are left in float32; empty if they are compressed."""
    if weights.ndim != 2:
        return f"weights of shape {list(weights.shape)}: only those with two axes are compressed"
    if weights.dtype != np.float32:
        return f"weights of dtype {weights.dtype}: only float32 is compressed"
    if weights.size < _LEAST_NUMBERS:
        return f"{weights.size} weights: fewer than {_LEAST_NUMBERS} are left as they are"
    if weights.shape[0] % _GROUPS[8][-1]:
        return f"an inner axis of {weights.shape[0]}, which is no multiple of {_GROUPS[8][-1]}"
    if not np.isfinite(weights).all():
        return "weights that are not all finite"
    return ""


def compressed(weights: np.ndarray, bits: int) -> Compressed:
    """Weights [K, N] rounded, symmetric around zero; the largest of each group is exact: ±127, or -8 for 4 bits."""
    k, n = weights.shape
    group = next(g for g in _GROUPS[bits] if k % g == 0)
    grouped = np.ascontiguousarray(weights.T).reshape(n, k // group, group)
    if bits == 8:
        scales = np.abs(grouped).max(-1) / np.float32(127)
    else:
        largest = np.abs(grouped).argmax(-1)[..., None]
        scales = np.take_along_axis(grouped, largest, -1)[..., 0] / np.float32(-8)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.rint(grouped / scales[..., None])
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    numbers = np.clip(np.nan_to_num(numbers, nan=0.0), least, most)
    return Compressed(numbers.astype("int8").reshape(n, k), scales.astype("float32"))


def _packed(numbers: np.ndarray) -> np.ndarray:
    low, high = numbers[:, ::2].astype("uint8") & 15, numbers[:, 1::2].astype("uint8") & 15
    return (low | high << 4).view("int8")


def _dequantised(scope: Scope, weights: Compressed, bits: int) -> Any:
    n, k = weights.numbers.shape
    rows = weights.numbers.reshape(-1, weights.group)
    if bits == 8:
        data = make_constant(rows, "int8")
    else:
        four, pairs = make_constant(np.int8(4), "int8"), make_constant(_packed(rows), "int8")
        low = scope.emit(relax.op.right_shift(scope.emit(relax.op.left_shift(pairs, four)), four))
        high = scope.emit(relax.op.right_shift(pairs, four))
        data = scope.emit(relax.op.reshape(scope.emit(relax.op.stack([low, high], axis=-1)), rows.shape))
    scales = make_constant(weights.scales.reshape(-1), "float32")
    zeros = np.zeros(rows.shape[0], "int8") if weights.zeros is None else weights.zeros.reshape(-1)
    real = relax.op.dequantize(data, scales, make_constant(zeros.astype("int8"), "int8"), axis=0, out_dtype="float32")
    return scope.emit(relax.op.permute_dims(scope.emit(relax.op.reshape(scope.emit(real), (n, k)))))


def _compress(bits: int) -> Rule:
    def rule(scope: Scope, call: Any) -> Any:
        weights = weights_of(scope, call.args[1])
        if weights is None or scope.dtype(call.args[0]) != "float32":
            return None
        if reason := why_not_compressed(weights):
            return scope.miss("compressed_weights", reason)
        return scope.with_args(call, call.args[0], _dequantised(scope, compressed(weights, bits), bits))

    return rule


def _compress_layer(bits: int) -> Rule:
    """Both weights of a recurrent layer, with a scale for each row; in 8 bits only, since errors of steps add up."""

    def rule(scope: Scope, call: Any) -> Any:
        both = [scope.const(weights) for weights in call.args[1:3]]
        if any(weights is None or weights.dtype != np.float32 for weights in both):
            return None
        numbers = sum(weights.size for weights in both)
        reason = ""
        if bits != 8:
            reason = "weights of recurrent layers have at least 8 bits"
        elif numbers < _LEAST_NUMBERS:
            reason = f"{numbers} weights: fewer than {_LEAST_NUMBERS} are left as they are"
        elif not all(np.isfinite(weights).all() for weights in both):
            reason = "weights that are not all finite"
        if reason:
            return scope.miss("compressed_weights", reason)
        return scope.with_args(call, call.args[0], *(_dequantised_rows(scope, w) for w in both), *call.args[3:])

    return rule


def _dequantised_rows(scope: Scope, weights: np.ndarray) -> Any:
    rows = weights.reshape(-1, weights.shape[-1])
    scales = np.abs(rows).max(-1, initial=0) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        numbers = np.nan_to_num(np.rint(rows / scales[:, None]), nan=0.0)
    stored = [make_constant(numbers.astype("int8"), "int8"), make_constant(scales, "float32")]
    zeros = make_constant(np.zeros(len(rows), "int8"), "int8")
    real = scope.emit(relax.op.dequantize(*stored, zeros, axis=0, out_dtype="float32"))
    return scope.emit(relax.op.reshape(real, weights.shape))


def _stored(scope: Scope, weights: Any) -> Found | None:
    """The parts of weights that are stored in groups."""
    return scope.match(weights, ("permute_dims", ("flat:reshape", ("real:dequantize", "numbers", "scales", "zeros"))))


def _pack(scope: Scope, call: Any) -> Any:
    found = _stored(scope, call.args[1])
    stored = [] if found is None else [scope.const(found[name]) for name in ("numbers", "scales", "zeros")]
    if found is None or any(part is None for part in stored) or scope.dtype(found["numbers"]) != "int8":
        return None
    shape, whole, axis = scope.shape(found["flat"]), scope.shape(found["real"]), scope.value(found["real"]).attrs.axis
    if shape is None or whole is None or len(shape) != 2 or len(whole) != 2 or int(axis) % 2 != 0:
        return None
    n, k = shape
    numbers, scales, zeros = stored
    fits = numbers.size and numbers.min() >= -8 and numbers.max() <= 7
    if not fits or whole[1] % _UNIT or k % whole[1] or scales.size != math.prod((n, k // whole[1])):
        return None
    spread = np.broadcast_to(zeros.reshape(-1), scales.reshape(-1).shape)
    weights = Compressed(numbers.reshape(n, k), scales.reshape(n, -1), spread.reshape(n, -1) if spread.any() else None)
    return scope.with_args(call, call.args[0], _dequantised(scope, weights, 4))


def _unpack(scope: Scope, call: Any) -> Any:
    """Weights that the program unpacks itself; those of a narrow product are multiplied in float32."""
    x, weights = call.args
    shape, dtypes = scope.shape(weights), {scope.dtype(part) for part in (x, weights, call)}
    if shape is None or len(shape) != 2 or math.prod(shape) < _LEAST_NUMBERS or is_constant(weights):
        return None
    parts = _centred_and_scales(scope, weights) if dtypes <= _FLOATS else None
    found = None if parts is None else _grouped(*parts)
    if found is None:
        return None
    stored, order = found
    if order is not None:
        x = scope.emit(relax.op.take(x, make_constant(order, "int64"), axis=-1))
    bits = 4 if stored.numbers.min() >= -8 and stored.numbers.max() <= 7 else 8
    weights = _dequantised(scope, stored, bits)
    if dtypes == {"float32"}:
        return scope.with_args(call, x, weights)
    product = scope.emit(relax.op.matmul(scope.emit(relax.op.astype(x, "float32")), weights))
    return relax.op.astype(product, scope.dtype(call))


#: what products with packed weights may be in
_FLOATS = {"float32", "float16", "bfloat16"}
#: what moves numbers, and changes them by rounding at most
_MOVES = tuple(f"relax.{name}" for name in ("astype", "reshape", "permute_dims", "expand_dims", "squeeze"))


def _centred_and_scales(scope: Scope, weights: Any) -> list[np.ndarray] | None:
    """Whole numbers and the factors of weights [K, N] that are their products, each in this shape."""
    moves = []
    while scope.dtype(weights) in _FLOATS and (call := scope.call(weights, *_MOVES)) is not None:
        moves.append(call)
        weights = call.args[0]
    factors = scope.call(weights, "relax.multiply") if scope.dtype(weights) in _FLOATS else None
    first, second = (weights, None) if factors is None else factors.args
    numbers, scales = evaluated(scope, first), np.ones((), "float32") if second is None else evaluated(scope, second)
    if numbers is None or scales is None:
        return None
    if not _is_whole(numbers):
        numbers, scales = scales, numbers
    if not _is_whole(numbers):
        return None
    parts = list(np.broadcast_arrays(numbers.astype("int16"), scales))
    for call in reversed(moves):
        move: Any = FOLDS[call.op.name.removeprefix("relax.")]
        parts = [move(call, scope.shape(call), part) for part in parts]
    return parts


def _is_whole(numbers: np.ndarray) -> bool:
    """Whether these are differences of bytes, and not one factor for all."""
    return numbers.size > 1 and bool(np.abs(numbers).max() <= 255) and np.array_equal(numbers, np.rint(numbers))


def _grouped(centred: np.ndarray, scales: np.ndarray) -> tuple[Compressed, np.ndarray | None] | None:
    """Weights [K, N] in the groups that their ``scales`` [K, N] show, and the order that brings these together."""
    k, n = centred.shape
    known: dict[bytes, int] = {}
    of_group = np.array([known.setdefault(row.tobytes(), len(known)) for row in scales])
    length, order = math.gcd(k, *(np.flatnonzero(np.diff(of_group)) + 1)), None
    if length % _UNIT and not k % len(known) and (np.bincount(of_group) == k // len(known)).all():
        order, length = np.argsort(of_group, kind="stable"), k // len(known)
        centred, scales = centred[order], scales[order]
    length = next((g for g in _GROUPS[8] if length % g == 0), length)
    if length % _UNIT:
        return None
    groups = centred.reshape(-1, length, n)
    least, most = np.minimum(groups.min(1), 0), groups.max(1)
    for low in (-8, -128):
        moved = np.where((least >= low) & (most < -low), 0, least - low)
        if (most - moved < -low).all() and moved.min() > -128:
            numbers = (groups - moved[:, None]).astype("int8").reshape(k, n)
            parts = [numbers, scales[::length].astype("float32"), (-moved).astype("int8")]
            return Compressed(*(np.ascontiguousarray(part.T) for part in parts[: 3 if moved.any() else 2])), order
    return None


def compress_weights(mod: tvm.IRModule, weights: str) -> tvm.IRModule:
    """Weights of products in ``"float32"``, which changes nothing, or one of `BITS`; an `InputError` otherwise."""
    if weights == "float32":
        return mod
    one_of("the option weights", weights, ("float32", *BITS))
    bits = BITS[weights]
    rules: dict[str, list[Rule]] = {name: [_compress_layer(bits)] for name in RECURRENT}
    return rewrite_pass("CompressWeights", rules | {"relax.matmul": [_compress(bits)]})(mod)


def _round_source(scope: Scope, call: Any) -> Any:
    stored = _stored(scope, call.args[1])
    groups = scope.shape(stored["real"]) if stored is not None else None
    x, weights = call.args
    dims = scope.dims(x)
    if groups is None or len(groups) != 2 or scope.rank(weights) != 2 or dims is None or scope.dtype(x) != "float32":
        return None
    k, group = dims[-1], groups[1]
    if not isinstance(k, int) or k % group or scope.call(x, ROUNDED) is not None:
        return None
    return scope.with_args(call, scope.emit(rounded(x, group)), weights)


def _own_rounding(scope: Scope, call: Any) -> Any:
    """A rounded source that others read as well: a pattern takes it together with one product."""
    source = scope.call(call.args[0], ROUNDED)
    if source is None or scope.uses(call.args[0]) < 2:
        return None
    return scope.with_args(call, scope.emit(rounded(source.args[0], block_of(source))), call.args[1])


def round_sources(mod: tvm.IRModule, activations: str) -> tvm.IRModule:
    """Sources of products with weights in groups: ``"stored"``, which changes nothing, or one of `ACTIVATIONS`."""
    if activations == "stored":
        return mod
    one_of("the option activations", activations, ("stored", *ACTIVATIONS))
    if activations == "int8":
        return rewrite_pass("RoundSources", {"relax.matmul": [_round_source]})(mod)
    return rewrite_pass("WholeSources", {ROUNDED: [lambda scope, call: call.args[0]]})(mod)


RULES: Rules = {"relax.matmul": [_unpack, _pack, _own_rounding]}
