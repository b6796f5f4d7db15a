"""Per-channel scales and shifts folded into the weights before or after them.

    x                                     x
    |                                     |
    batch_norm | · s | / s                |                    constants per channel of the input
    |                                     |
    conv | conv_transpose | matmul        the same             weights · s, per channel of either side
    |                            ──>      |
    + b                                   + b'                 one constant, last
    |                                     |
    batch_norm | · s | / s | + t | - t    |                    constants per channel of the result

if the weights are constant and nothing else reads the results in between. Before the operator, ``+ t`` stays: what is
left of x + t may be small beside both, and x · weights has not its precision. So a batch_norm is folded where
its means are no more than some deviations from 0, and no padding of zeros, which have no shift, takes part in a sum. A
batch_norm that follows something else takes the multiply and add after it into its own scale and shift. The bias of a
linear operator always ends as ``add(linear, constant)``, shaped (1, C, 1, 1) after a convolution and (N,) after a
matmul. A single number is also folded when reshapes and permutations lie between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from ..core.tvm_fast import is_a, items
from ..ir.relax_utils import RESHAPES
from ..ir.tvm_compat import is_constant
from .constants import weights_of
from .rewrite import Rules, Scope

_CONVS = tuple(f"relax.nn.conv{d}d" for d in (1, 2, 3))
_TRANSPOSED = tuple(f"{name}_transpose" for name in _CONVS)
_LINEAR = (*_CONVS, *_TRANSPOSED, "relax.matmul")
_FOLDED = "batch_norm folded into weights"
_DEVIATIONS = 16.0  # so many times the rounding of the source is in the result


def per_channel(array: np.ndarray, rank: int, axis: int, channels: int) -> np.ndarray | None:
    """``array`` as one number per channel, ``None`` when it varies along another axis."""
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis) or shape[axis] not in (1, channels):
        return None
    flat = array.reshape(-1)
    return flat if flat.size == channels else np.broadcast_to(flat, (channels,))


@dataclass
class _Linear:
    """A linear operator, the channels of its result, and the constant added to that."""

    var: Any
    call: Any
    axis: int
    channels: int
    rank: int
    #: whether the weights can be scaled
    constant_weights: bool
    bias: np.ndarray | None = None

    def scaled(self, scope: Scope, scale: np.ndarray) -> Any:
        call = self.call
        data, constant = items(call.args)
        weight = weights_of(scope, constant)
        assert weight is not None
        scale = _in_weights(call, weight, scale.astype(weight.dtype), of_result=True)
        scaled = scope.product(constant, scale) if is_constant(constant) else scope.constant(weight * scale)
        return scope.rebind(self.var, call, data, scaled)

    @property
    def bias_shape(self) -> tuple[int, ...]:
        if self.call.op.name == "relax.matmul":
            return (self.channels,)
        return tuple(self.channels if axis == self.axis else 1 for axis in range(self.rank))

    def bias_constant(self, scope: Scope, bias: np.ndarray) -> Any:
        return scope.constant(bias.reshape(self.bias_shape), scope.dtype(self.call))


def _in_weights(call: Any, weight: np.ndarray, channels: np.ndarray, *, of_result: bool) -> np.ndarray:
    """A number for each channel of the result or of the source, in the axes of the weights."""
    if call.op.name == "relax.matmul":
        return channels if of_result else channels[:, None]
    kernel, shape = str(call.attrs.kernel_layout), [1] * weight.ndim
    # One axis has all channels of a side, another those of the other side in one group.
    whole, part = (kernel.index(side) for side in ("OI" if call.op.name in _CONVS else "IO"))
    if of_result == (call.op.name in _CONVS):
        shape[whole] = -1
        return channels.reshape(shape)
    groups = int(call.attrs.groups)
    rows = np.repeat(channels.reshape(groups, -1), weight.shape[whole] // groups, axis=0)
    shape[whole], shape[part] = rows.shape
    return (rows if whole < part else rows.T).reshape(shape)


def _linear(scope: Scope, expr: Any) -> _Linear | None:
    call = scope.call(expr, *_LINEAR)
    shape = None if call is None else scope.dims(call)
    if call is None or shape is None or (dtype := scope.dtype(call)) not in ("float32", "float64", "float16"):
        return None
    data, weights = items(call.args)
    if scope.dtype(weights) != dtype:
        return None
    if call.op.name == "relax.matmul":
        if scope.rank(weights) != 2 or scope.rank(data) < 2:
            return None
        axis = len(shape) - 1
    else:
        layout, kernel = str(call.attrs.out_layout), str(call.attrs.kernel_layout)
        if not layout.isalpha() or not layout.isupper() or not kernel.isupper():
            return None  # blocked layouts
        if call.op.name in _TRANSPOSED and not kernel.startswith("IO"):
            return None
        axis = layout.index("C")
    channels = shape[axis]
    if not isinstance(channels, int):
        return None
    return _Linear(expr, call, axis, channels, len(shape), weights_of(scope, weights) is not None)


def _biased(scope: Scope, expr: Any) -> _Linear | None:
    """The linear operator that ``expr`` reads, perhaps with a constant added; no other call reads either."""
    if scope.uses(expr) != 1:
        return None
    add = scope.call(expr, "relax.add")
    if add is None:
        return _linear(scope, expr)
    data, constant = items(add.args)
    bias = scope.const(constant)
    linear = _linear(scope, data) if bias is not None and scope.uses(data) == 1 else None
    if linear is None:
        return None
    linear.bias = per_channel(bias, linear.rank, linear.axis, linear.channels)
    return linear if linear.bias is not None else None


def _apply(scope: Scope, linear: _Linear, scale: np.ndarray | None, shift: np.ndarray | None) -> Any:
    """``linear * scale + shift``; scale and shift are float64, one number per channel."""
    if scale is not None and not linear.constant_weights:
        return None
    if scale is not None and not np.isfinite(scale).all():
        return None
    bias = None if linear.bias is None else linear.bias.astype("float64")
    if bias is not None and scale is not None:
        bias = bias * scale
    if shift is not None:
        bias = shift if bias is None else bias + shift
    result = linear.var if scale is None else linear.scaled(scope, scale)
    return result if bias is None else relax.op.add(result, linear.bias_constant(scope, bias))


def _sides(scope: Scope, call: Any) -> tuple[Any, np.ndarray, bool] | None:
    """A binary call's tensor, its constant as float64, and whether the constant comes first."""
    a, b = items(call.args)
    for data, constant, swapped in ((a, b, False), (b, a, True)):
        array = scope.const(constant)
        if array is not None and scope.const(data) is None and array.dtype.kind == "f":
            return data, array.astype("float64"), swapped
    return None


def _affine_of(name: str, constant: np.ndarray, swapped: bool) -> tuple[Any, Any] | None:
    """``name(x, constant)`` as (scale, shift)."""
    if name == "relax.add":
        return None, constant
    if name == "relax.multiply":
        return constant, None
    if name == "relax.subtract":
        return (-np.ones(1), constant) if swapped else (None, -constant)
    return None if swapped or not constant.all() else (1.0 / constant, None)


def _binary(scope: Scope, call: Any) -> Any:
    sides = _sides(scope, call)
    if sides is None:
        return None
    data, constant, swapped = sides
    affine = _affine_of(call.op.name, constant, swapped)
    if affine is None or not scope.same_shape(data, call):
        return None
    if call.op.name == "relax.add" and scope.call(data, *_LINEAR) is not None:
        return _canonical_bias(scope, call, data, constant, swapped)
    linear = _biased(scope, data)
    if linear is not None:
        parts = [None if p is None else per_channel(p, linear.rank, linear.axis, linear.channels) for p in affine]
        if any(part is None and given is not None for part, given in zip(parts, affine, strict=True)):
            return None
        return _apply(scope, linear, *parts)
    scaled = _through_views(scope, data, affine)
    return _into_batch_norm(scope, data, affine) if scaled is None else scaled


_VIEWS = (*RESHAPES, "relax.permute_dims")


def _through_views(scope: Scope, data: Any, affine: tuple[Any, Any]) -> Any:
    """Scale a linear operator behind views by one number: attention scales its queries in this way."""
    scale, shift = affine
    if shift is not None or scale.size != 1:
        return None
    views, expr = [], data
    while scope.uses(expr) == 1 and scope.call(expr, *_VIEWS) is not None:
        views.append(scope.call(expr, *_VIEWS))
        expr = views[-1].args[0]
    linear = _biased(scope, expr) if views else None
    result = None if linear is None else _apply(scope, linear, np.full(linear.channels, scale.item()), None)
    if result is None:
        return None
    for view in reversed(views):
        result = scope.with_args(view, scope.emit(result), *view.args[1:])
    return result


def _canonical_bias(scope: Scope, call: Any, data: Any, constant: np.ndarray, swapped: bool) -> Any:
    linear = _linear(scope, data)
    bias = None if linear is None else per_channel(constant, linear.rank, linear.axis, linear.channels)
    if linear is None or bias is None or (bias.size != constant.size and not linear.constant_weights):
        return None
    if not swapped and constant.shape == linear.bias_shape:
        return None
    return relax.op.add(data, linear.bias_constant(scope, bias))


# ---- batch_norm -------------------------------------------------------------------------------------


class _Statistics(NamedTuple):
    """The constants of a batch_norm in float64: ``(x - mean) / deviation * gamma + beta``."""

    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @property
    def scale(self) -> np.ndarray:
        return self.gamma / self.deviation

    @property
    def shift(self) -> np.ndarray:
        return self.beta - self.mean * self.scale


def _statistics(scope: Scope, call: Any) -> _Statistics | None:
    arrays = [scope.const(a) for a in call.args[1:5]]
    if call.attrs.training or any(a is None for a in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(a, "float64") for a in arrays)
    gamma = gamma if call.attrs.scale else np.ones_like(gamma)
    beta = beta if call.attrs.center else np.zeros_like(beta)
    return _Statistics(gamma, beta, mean, np.sqrt(variance + float(call.attrs.epsilon)))


def _batch_norm_item(scope: Scope, item: Any) -> Any:
    """Fold a batch_norm into the linear operator before it; its running statistics are its arguments."""
    call = scope.call(item.tuple_value, "relax.nn.batch_norm")
    if call is None or call.attrs.training:
        return None
    if item.index != 0:
        return call.args[2 + item.index]
    statistics = _statistics(scope, call)
    if statistics is None:
        return scope.miss(_FOLDED, "its parameters are not constant", at=item.tuple_value)
    linear = _biased(scope, call.args[0])
    if linear is None:
        if scope.call(call.args[0], *_LINEAR, "relax.add") is not None and scope.uses(call.args[0]) != 1:
            scope.miss(_FOLDED, "what it normalises is read elsewhere, too", at=item.tuple_value)
        return None
    if scope.uses(item.tuple_value) > 1:
        return None
    axis = int(call.attrs.axis) % linear.rank
    if axis != linear.axis:
        why = f"it is over axis {axis}, the channels are axis {linear.axis}"
        return scope.miss(_FOLDED, why, at=item.tuple_value)
    if not linear.constant_weights:
        return scope.miss(_FOLDED, "the weights before it are not constant", at=item.tuple_value)
    return _apply(scope, linear, statistics.scale, statistics.shift)


def _into_batch_norm(scope: Scope, data: Any, affine: tuple[Any, Any]) -> Any:
    """``batch_norm(x)[0] * scale + shift``: scale and shift become part of the batch_norm."""
    item = scope.value(data)
    if not is_a(item, relax.TupleGetItem) or item.index != 0 or scope.uses(data) != 1:
        return None
    call = scope.call(item.tuple_value, "relax.nn.batch_norm")
    statistics = None if call is None or scope.uses(item.tuple_value) != 1 else _statistics(scope, call)
    if call is None or statistics is None:
        return None
    gamma, beta = statistics.gamma, statistics.beta
    axis = int(call.attrs.axis) % scope.rank(data)
    scale, shift = (None if p is None else per_channel(p, scope.rank(data), axis, gamma.size) for p in affine)
    if (scale is None) != (affine[0] is None) or (shift is None) != (affine[1] is None):
        return None
    if scale is not None:
        gamma, beta = gamma * scale, beta * scale
    if shift is not None:
        beta = beta + shift
    norm = relax.op.nn.batch_norm(
        call.args[0],
        *(scope.constant(p, scope.dtype(call.args[1])) for p in (gamma, beta)),
        *call.args[3:5],
        axis=axis,
        epsilon=float(call.attrs.epsilon),
        momentum=float(call.attrs.momentum),
        training=False,
    )
    return relax.TupleGetItem(scope.emit(norm), 0)


# ---- operations before a linear operator -----------------------------------------------------------


def _affine_input(scope: Scope, call: Any) -> Any:
    """``linear(x * scale + shift)``: the weights take the scale, the bias takes the shift times the weights.

    A step is a scale alone, a batch_norm is both.
    """
    data = call.args[0]
    found = _affine_before(scope, data) if scope.uses(data) == 1 else None
    linear = None if found is None else _linear(scope, call)
    if found is None or linear is None or not linear.constant_weights:
        return None
    inner, axis, affine = found
    name, rank = call.op.name, scope.rank(data)
    own = rank - 1 if name == "relax.matmul" else str(call.attrs.data_layout).find("C")
    dims = scope.dims(data)
    channels = None if dims is None else dims[own]
    if own < 0 or axis not in (None, own) or not isinstance(channels, int):
        return None
    scale, shift = (None if p is None else per_channel(np.asarray(p), rank, own, channels) for p in affine)
    if (scale is None) != (affine[0] is None) or (shift is None) != (affine[1] is None):
        return None
    if shift is not None and shift.any() and not _meets_all_weights(call):
        return None
    weight = weights_of(scope, call.args[1])
    if weight is None:
        return None
    factors, terms = (None if p is None else _in_weights(call, weight, p, of_result=False) for p in (scale, shift))
    scaled, added = weight if factors is None else weight * factors, None
    if terms is not None and terms.any():
        result_axis = 1 if name == "relax.matmul" else str(call.attrs.kernel_layout).index("O")
        added = (weight * terms).sum(axis=tuple(a for a in range(weight.ndim) if a != result_axis))
    dtype = scope.dtype(call.args[1])
    most = float(np.finfo(dtype).max)
    if not (-most <= scaled.min(initial=0) and scaled.max(initial=0) <= most):
        return None  # too large for halves, or not a number
    is_kept = scale is None and is_constant(call.args[1])
    weights = call.args[1] if is_kept else scope.constant(scaled, dtype)
    result = scope.with_args(call, inner, weights)
    return result if added is None else relax.op.add(scope.emit(result), linear.bias_constant(scope, added))


def _affine_before(scope: Scope, data: Any) -> tuple[Any, int | None, tuple[Any, Any]] | None:
    """A batch_norm or a scaling by a constant: its input, its axis if it has one, scale and shift."""
    item = scope.value(data)
    if is_a(item, relax.TupleGetItem):
        norm = scope.call(item.tuple_value, "relax.nn.batch_norm")
        if norm is None or item.index != 0 or scope.uses(item.tuple_value) != 1:
            return None
        statistics = _statistics(scope, norm)
        if statistics is None or (np.abs(statistics.mean) > _DEVIATIONS * statistics.deviation).any():
            return None
        rank, axis = scope.rank(data), int(norm.attrs.axis) % scope.rank(data)
        shape = [-1 if i == axis else 1 for i in range(rank)]
        return norm.args[0], axis, (statistics.scale.reshape(shape), statistics.shift.reshape(shape))
    step = scope.call(data, "relax.multiply", "relax.divide")
    sides = None if step is None else _sides(scope, step)
    if step is None or sides is None or not scope.same_shape(sides[0], step):
        return None
    if scope.call(sides[0], *_LINEAR) is not None:
        return None  # the weights of that operator take it
    product = scope.call(sides[0], "relax.multiply")
    if product is not None and any(scope.call(factor, "relax.clip") is not None for factor in product.args):
        return None  # the divisor of a hardswish, x · clip(x + 3, 0, 6) / 6, which is fused only as a whole
    affine = _affine_of(step.op.name, sides[1], sides[2])
    return None if affine is None else (sides[0], None, affine)


def _meets_all_weights(call: Any) -> bool:
    """Zeros around the input have no shift."""
    if call.op.name == "relax.matmul":
        return True
    return call.op.name in _CONVS and not any(int(p) for p in call.attrs.padding)


RULES: Rules = {
    **{f"relax.{name}": [_binary] for name in ("add", "subtract", "multiply", "divide")},
    **{name: [_affine_input] for name in _LINEAR},
    "TupleGetItem": [_batch_norm_item],
}
