"""Normalisations written as arithmetic: ``nn.layer_norm``, ``rms_norm``, ``instance_norm``, ``group_norm`` again.

    d = x - mean(x);  d / sqrt(mean(d²) + eps)     layer_norm without scale and shift
    x / sqrt(mean(x²) + eps)                       rms_norm
    reshape(layer_norm(reshape(x, N, G, -1)), ...) group_norm
    layer_norm over the axes behind the channels   instance_norm, where these are many or open
    mean(x²) - mean(x)²                            variance, which loses nothing where the mean is large
    norm * gamma,  norm + beta                     the same norm with these as its parameters

The statistics may be written with ``power``, ``multiply``, ``square`` or ``variance``, the root as a division or a
product with ``rsqrt``; eps may be any number, and the axes are the last ones.

Softmax written as arithmetic, over an axis that a reshape made, or guarded against rows of -inf.

    e = exp(x - max(x));  e / sum(e)           also without the max
    reshape(softmax(reshape(x, (A, B))))       when B is one axis of x: ONNX before opset 13
    where(all of x is -inf, 0, softmax(x))     when no row of x can be: PyTorch's attention
    where(isnan(softmax(x)), 0, softmax(x))    the same, as PyTorch exports it to ONNX

All of them are ``nn.softmax`` of x. Where a mask is known only at run time a guard becomes `relu_of_numbers`: a row of
-inf gives NaN, a softmax is not negative, and that turns a NaN into 0 (also for scores that are NaN themselves).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..core.tvm_fast import items
from ..ir.relax_utils import with_attributes
from ..whole.table import relu_of_numbers
from .affine import per_channel
from .rewrite import Found, Rules, Scope

_MAX_PARAMETERS = 1 << 16  # elements of a scale of ones that may be made up


def reduced_axes(scope: Scope, expr: Any) -> list[int] | None:
    """Ascending; ``None`` of a reduction that does not keep its dims."""
    call = scope.value(expr)
    rank = scope.rank(call.args[0])
    if call.attrs.axis is None or not call.attrs.keepdims or rank < 0:
        return None
    return sorted(int(a) % rank for a in call.attrs.axis)


def _squared(of: Any) -> list[Any]:
    return [("multiply", of, of), ("square", of), ("power", of, 2.0)]


def _over_root(statistic: Any) -> list[Any]:
    """The numerator over the root of a statistic and eps."""
    inside = ("add", statistic, "eps")
    root = [("sqrt", inside), ("power", inside, 0.5)]
    inverse = [("rsqrt", inside), ("power", inside, -0.5), ("divide", 1.0, root)]
    return [("divide", "numerator", root), ("multiply", "numerator", inverse)]


_CENTRED = ("subtract", "x", ("mean:mean", "x"))
_MEAN_SQUARE = ("statistic:mean", _squared("of"))
_NORM = _over_root([("statistic:variance", "of"), _MEAN_SQUARE])


def _variance(scope: Scope, root: Any) -> Any:
    """``mean(x²) - mean(x)²``: where the mean is large, nothing of the variance is left in the difference."""
    found = scope.match(root, ("subtract", _MEAN_SQUARE, _squared("mean")))
    if found is None or scope.match(found["mean"], ("mean", "of"), found) is None or not _floats(scope, found["of"]):
        return None
    axes = reduced_axes(scope, found["statistic"])
    is_one = axes is not None and axes == reduced_axes(scope, found["mean"])
    return relax.op.variance(found["of"], axes, keepdims=True) if is_one else None


def _core(scope: Scope, root: Any) -> Any:
    """``numerator / sqrt(statistic + eps)``."""
    found = scope.match(root, _NORM)
    eps = None if found is None else scope.scalar(found["eps"])
    if found is None or eps is None or eps < 0 or not scope.same_shape(found["numerator"], root):
        return None
    axes, of = reduced_axes(scope, found["statistic"]), found["of"]
    if axes is None:
        return None
    is_square = scope.call(found["statistic"], "relax.mean") is not None
    centred = scope.match(found["numerator"], _CENTRED)
    if centred is None:
        is_rms = is_square and of.same_as(found["numerator"])
        return _rms_norm(scope, root, of, axes, eps, list(found.inside)) if is_rms else None
    x, both = centred["x"], [centred]
    if is_square:
        both += filter(None, [scope.match(of, _CENTRED)])
    if not (len(both) == 2 and both[1]["x"].same_as(x) if is_square else of.same_as(x)):
        return None
    means = [reduced_axes(scope, each["mean"]) for each in both]
    if None in means:
        return None
    if any(mean != axes for mean in means):
        return scope.miss("layer_norm", f"the mean is over axes {means[0]}, the variance over {axes}")
    return _layer_norm(scope, root, x, axes, eps, [*found.inside, *(v for each in both for v in each.inside)])


def _last_dims(scope: Scope, data: Any, axes: list[int]) -> tuple[int, ...] | None:
    dims = scope.dims(data)
    if dims is None or axes != list(range(len(dims)))[len(dims) - len(axes) :]:
        return None
    sizes = dims[len(dims) - len(axes) :]
    if not all(isinstance(d, int) for d in sizes) or math.prod(sizes) > _MAX_PARAMETERS:
        return None
    return tuple(sizes)


def _floats(scope: Scope, data: Any) -> bool:
    return scope.dtype(data) in ("float32", "float16", "float64", "bfloat16")


def _parameter_sizes(
    scope: Scope, form: str, root: Any, data: Any, axes: list[int], seen: list[Any]
) -> tuple[int, ...] | None:
    """Sizes of the parameters of ``form``, when an operator has statistics over ``axes``; a miss otherwise."""
    sizes = _last_dims(scope, data, axes)
    if not _floats(scope, data):
        return scope.miss(form, f"it is of dtype {scope.dtype(data)}")
    if sizes is None:
        why = f"it is over axes {axes} of {scope.dims(data)}: not the last ones, or of too many or unknown elements"
        return scope.miss(form, why)
    return sizes if scope.only_inside(seen, root) else scope.miss(form, "a part of it is read elsewhere, too")


def _layer_norm(scope: Scope, root: Any, data: Any, axes: list[int], eps: float, seen: list[Any]) -> Any:
    dims = scope.dims(data) or []
    by_channel = len(dims) > 2 and isinstance(dims[1], int) and axes == list(range(2, len(dims)))
    if by_channel and _last_dims(scope, data, axes) is None and _floats(scope, data) and scope.only_inside(seen, root):
        parameters = (scope.constant(np.full(dims[1], v, "float32"), scope.dtype(data)) for v in (1, 0))
        return relax.op.nn.instance_norm(data, *parameters, channel_axis=1, axes=axes, epsilon=eps)
    sizes = _parameter_sizes(scope, "layer_norm", root, data, axes, seen)
    if sizes is None:
        return None
    ones, zeros = (scope.constant(np.full(sizes, v, "float32"), scope.dtype(data)) for v in (1, 0))
    return relax.op.nn.layer_norm(data, ones, zeros, axes=[a - scope.rank(data) for a in axes], epsilon=eps)


def _rms_norm(scope: Scope, root: Any, data: Any, axes: list[int], eps: float, seen: list[Any]) -> Any:
    if len(axes) == scope.rank(data):
        return scope.miss("rms_norm", "it is over all axes, which TVM cannot compile")
    sizes = _parameter_sizes(scope, "rms_norm", root, data, axes, seen)
    if sizes is None:
        return None
    ones = scope.constant(np.ones(sizes, "float32"), scope.dtype(data))
    return relax.op.nn.rms_norm(data, ones, axes=[a - scope.rank(data) for a in axes], epsilon=eps)


def _group_norm(scope: Scope, reshape: Any) -> Any:
    """``reshape(layer_norm(reshape(x, (N, G, -1))), shape of x)`` without scale and shift."""
    found = scope.match(reshape, ("reshape", ("norm:nn.layer_norm", ("grouped:reshape", "x"))))
    if found is None or not _plain(scope, norm := scope.value(found["norm"])):
        return None
    data, shape, grouped = found["x"], scope.shape(found["x"]), scope.shape(found["grouped"])
    if shape is None or grouped is None or scope.shape(reshape) != shape or len(shape) < 3 or len(grouped) != 3:
        return None
    groups = grouped[1]
    if grouped[0] != shape[0] or shape[1] % groups or [int(a) for a in norm.attrs.axes] not in ([-1], [2]):
        return None
    if not scope.only_inside(found.inside, reshape):
        return None
    ones, zeros = (scope.constant(np.full(shape[1], v, "float32"), scope.dtype(data)) for v in (1, 0))
    axes = list(range(2, len(shape)))
    return relax.op.nn.group_norm(data, ones, zeros, groups, 1, axes, epsilon=float(norm.attrs.epsilon))


# ---- scale and shift --------------------------------------------------------------------------------

_WITH_SHIFT = ("relax.nn.layer_norm", "relax.nn.instance_norm", "relax.nn.group_norm")
_NORMS = (*_WITH_SHIFT, "relax.nn.rms_norm")


def _unscaled(scope: Scope, norm: Any) -> bool:
    return (norm.op.name in _WITH_SHIFT and not norm.attrs.scale) or scope.scalar(norm.args[1]) == 1.0


def _unshifted(scope: Scope, norm: Any) -> bool:
    return not norm.attrs.center or scope.scalar(norm.args[2]) == 0.0


def _plain(scope: Scope, norm: Any) -> bool:
    return _unscaled(scope, norm) and _unshifted(scope, norm)


def _parameter(scope: Scope, norm: Any, expr: Any) -> Any:
    """``expr`` in the shape of the norm's own parameters, when it varies along their axes only."""
    wanted, have = scope.shape(norm.args[1]), scope.shape(expr)
    rank, array = scope.rank(norm), scope.const(expr)
    if wanted is None or have is None or scope.dtype(expr) != scope.dtype(norm.args[1]):
        return None
    if norm.op.name in ("relax.nn.layer_norm", "relax.nn.rms_norm"):
        if math.prod(have) == 1 and array is not None:
            return scope.constant(np.full(wanted, array.reshape(-1)[0]), scope.dtype(expr))
        if have[max(0, len(have) - len(wanted)) :] != wanted or math.prod(have) != math.prod(wanted):
            return None
        return expr if have == wanted else scope.emit(relax.op.reshape(expr, wanted))
    vector = None if array is None else per_channel(array, rank, int(norm.attrs.channel_axis), wanted[0])
    return None if vector is None else scope.constant(vector, scope.dtype(expr))


def _rebuilt(norm: Any, data: Any, *params: Any) -> Any:
    """The norm with other parameters, which now count."""
    counting = {"scale": True, "center": True} if norm.op.name in _WITH_SHIFT else {}
    return with_attributes(norm, [data, *params], **counting)


def _with_both(scope: Scope, norm: Any) -> Any:
    """A norm without scale or shift, whose parameters are ones and zeros anyway, as one with both."""
    if norm.attrs.scale and norm.attrs.center:
        return None
    shape, dtype = scope.shape(norm.args[1]), scope.dtype(norm.args[1])
    parameters = []
    for given, like, number in ((norm.args[1], "relax.ones_like", 1.0), (norm.args[2], "relax.zeros_like", 0.0)):
        if shape is None or (scope.call(given, like) is None and scope.scalar(given) != number):
            return None
        parameters.append(scope.constant(np.full(shape, number, "float32"), dtype))
    return _rebuilt(norm, norm.args[0], *parameters)


def _scale(scope: Scope, root: Any) -> Any:
    for normed, factor in (given := items(root.args), given[::-1]):
        norm = scope.call(normed, *_NORMS)
        if norm is None or scope.uses(normed) != 1 or not scope.same_shape(normed, root):
            continue
        if (norm.op.name in _WITH_SHIFT and not _unshifted(scope, norm)) or not _unscaled(scope, norm):
            continue
        gamma = _parameter(scope, norm, factor)
        if gamma is not None:
            return _rebuilt(norm, norm.args[0], gamma, *norm.args[2:])
        instance = _instance_norm(scope, norm, factor)
        if instance is not None:
            return instance
    return None


def _shift(scope: Scope, root: Any) -> Any:
    for normed, term in (given := items(root.args), given[::-1]):
        norm = scope.call(normed, *_WITH_SHIFT)
        if norm is None or scope.uses(normed) != 1 or not scope.same_shape(normed, root):
            continue
        beta = _parameter(scope, norm, term) if _unshifted(scope, norm) and norm.attrs.scale else None
        if beta is not None:
            return _rebuilt(norm, *norm.args[:2], beta)
    return None


def _instance_norm(scope: Scope, norm: Any, factor: Any) -> Any:
    """A layer_norm over all spatial axes, scaled per channel, is an instance_norm."""
    dims, array, rank = scope.dims(norm), scope.const(factor), scope.rank(norm)
    if norm.op.name != "relax.nn.layer_norm" or array is None or dims is None or rank < 3:
        return None
    if sorted(int(a) % rank for a in norm.attrs.axes) != list(range(2, rank)) or not isinstance(dims[1], int):
        return None
    gamma = per_channel(array, rank, 1, dims[1])
    if gamma is None:
        return None
    dtype, zeros = scope.dtype(norm), np.zeros(dims[1], "float32")
    return relax.op.nn.instance_norm(
        norm.args[0],
        scope.constant(gamma, dtype),
        scope.constant(zeros, dtype),
        channel_axis=1,
        axes=list(range(2, rank)),
        epsilon=float(norm.attrs.epsilon),
    )


RULES: Rules = {
    "relax.divide": [_core],
    "relax.multiply": [_core, _scale],
    "relax.add": [_shift],
    "relax.reshape": [_group_norm],
    **{name: [_with_both] for name in _WITH_SHIFT},
}

#: mathematically the same, but not a canonical form: it keeps bits that the other loses
EXACT: Rules = {"relax.subtract": [_variance]}


def _only_axis(scope: Scope, call: Any) -> int | None:
    """The one axis of a reduction that keeps its dims."""
    axes = reduced_axes(scope, call) or ()
    return axes[0] if len(axes) == 1 else None


def _spelled_out(scope: Scope, divide: Any) -> Any:
    found = scope.match(divide, ("divide", ("powers:exp", "x"), ("total:sum", "powers")))
    axis = None if found is None else _only_axis(scope, found["total"])
    if found is None or axis is None or not scope.same_shape(found["powers"], divide):
        return None
    x, interior = found["x"], found.inside
    shifted = scope.match(x, ("subtract", "x", ("largest:max", "x")))
    if shifted is not None:
        if _only_axis(scope, shifted["largest"]) != axis:
            axes = scope.value(shifted["largest"]).attrs.axis
            over = None if axes is None else [int(a) for a in axes]
            return scope.miss("softmax", f"the sum is over axis {axis}, the maximum over {over}")
        x, interior = shifted["x"], (*interior, *shifted.inside)
    if not scope.only_inside(interior, divide):
        return scope.miss("softmax", "a part of it is read elsewhere, too")
    return relax.op.nn.softmax(x, axis=axis)


def _reshaped(scope: Scope, reshape: Any) -> Any:
    inner = ("flat:reshape", "x")
    found = scope.match(reshape, ("reshape", [("y:nn.softmax", inner), ("y:nn.log_softmax", inner)]))
    if found is None or not scope.only_inside(found.inside, reshape):
        return None
    softmax, shape, flat = scope.value(found["y"]), scope.shape(found["x"]), scope.shape(found["flat"])
    if shape is None or flat is None or scope.shape(reshape) != shape or not flat:
        return None
    axis = int(softmax.attrs.axis) % len(flat)
    wide = _axis_of_size(shape, math.prod(flat[:axis]), flat[axis])
    if wide is None:
        return None
    make = relax.op.nn.softmax if softmax.op.name == "relax.nn.softmax" else relax.op.nn.log_softmax
    return make(found["x"], axis=wide)


def _axis_of_size(shape: tuple[int, ...], before: int, size: int) -> int | None:
    for axis, dim in enumerate(shape):
        if dim == size and math.prod(shape[:axis]) == before:
            return axis
    return None


#: which rows of scores are -inf altogether; PyTorch's any() is the largest of the flags as int8
_HIDDEN = ("logical_not", ("astype", ("largest:max", ("astype", ("logical_not", ("equal", "scores", -math.inf))))))


def _guarded(scope: Scope, where: Any) -> Any:
    """Drop the guard against rows that a mask hides completely; where there may be such rows, use `relu_of_numbers`."""
    guard, zero, result = where.args
    found = scope.match(result, ("nn.softmax", "scores"))
    if found is None or not _is_zero(scope, zero) or not scope.same_shape(result, where):
        return None
    axis = int(scope.value(result).attrs.axis) % scope.rank(result)
    hidden = scope.match(guard, _HIDDEN, found)
    is_guard = hidden is not None and _only_axis(scope, hidden["largest"]) == axis
    if not is_guard and scope.match(guard, ("isnan", "result"), Found(result=result)) is None:
        return None
    return result if _some_finite(scope, found["scores"], axis) else relu_of_numbers(result)


def _is_zero(scope: Scope, expr: Any) -> bool:
    fill = scope.call(expr, "relax.full_like", "relax.full", "relax.zeros", "relax.zeros_like")
    if fill is None:
        return scope.scalar(expr) == 0.0
    return "zeros" in fill.op.name or scope.scalar(fill.args[1]) == 0.0


def _some_finite(scope: Scope, expr: Any, axis: int) -> bool:
    """Whether every row along ``axis`` has an element that no mask sets to -inf: scores, scaled, plus constants."""
    call = scope.call(expr, "relax.add", "relax.multiply", "relax.divide", "relax.reshape", "relax.matmul")
    if call is None:
        return False
    if call.op.name in ("relax.matmul", "relax.reshape"):  # PyTorch's bmm has one batch axis, so there is a view
        return scope.call(expr if call.op.name == "relax.matmul" else call.args[0], "relax.matmul") is not None
    for data, constant in (call.args, reversed(call.args)):
        mask = scope.const(constant)
        if mask is None or not scope.same_shape(data, call):
            continue
        if call.op.name != "relax.add":
            number = scope.scalar(constant)
            return number is not None and math.isfinite(number) and _some_finite(scope, data, axis)
        along = axis - scope.rank(call) + mask.ndim
        hidden = np.isneginf(mask)
        hidden = hidden.all(axis=along) if along >= 0 else hidden
        return not hidden.any() and _some_finite(scope, data, axis)
    return False


SOFTMAX: Rules = {"relax.where": [_guarded], "relax.divide": [_spelled_out], "relax.reshape": [_reshaped]}
