"""Groups of calls between dequantizes and a quantize, as operators on int8.

LiteRT has kernels for int8; uint8 is written as int8 whose zero point is 128 less, with a conversion at the borders.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tvm_byoc_dnnl as byoc

from .flatbuffer import Model, Scale, Value, require
from .operators import OPERATORS, activation, convolution, like, pool

__all__ = ["as_int8", "bordered", "scale_of", "write"]

_SHIFT = {"int8": 0, "uint8": 128}


def scale_of(scale: Any, zero: Any, dtype: str) -> Scale:
    """The scale as int8 of integers of a dtype with one scale and zero point."""
    require(dtype in _SHIFT, f"integers of dtype {dtype}; this backend has int8 and uint8")
    require(np.size(scale) == 1 and np.size(zero) == 1, "scales along an axis of activations")
    return Scale((float(np.float32(scale)),), (int(zero) - _SHIFT[dtype],))


def as_int8(model: Model, value: Value, scale: Scale) -> Value:
    """A tensor of int8 or uint8 as int8, which stands for ``(integer - zero) * scale``."""
    if value.dtype == "int8":
        model.set_scale(value, scale)
        return value
    model.set_scale(value, Scale(scale.scale, (scale.zero[0] + 128,)))
    if value.twin is None:
        value.twin = model.emit("QUANTIZE", [value], value.shape, "int8", scale)
    return value.twin


def bordered(model: Model, value: Value, dtype: str) -> Value:
    """A result in the dtype that its readers outside of the region expect."""
    if value.dtype == dtype:
        return value
    if value.twin is None:
        assert value.scale is not None
        value.twin = model.emit(
            "QUANTIZE", [value], value.shape, dtype, Scale(value.scale.scale, (value.scale.zero[0] + 128,))
        )
    return value.twin


def _rescaled(model: Model, x: Value, scale: Scale) -> Value:
    return x if x.scale == scale else model.emit("QUANTIZE", [x], x.shape, "int8", scale)


def _weights(group: Any) -> tuple[np.ndarray, tuple[float, ...]]:
    """Weights of int8, and a scale for all or for each output."""
    weights = group.weights
    numbers = np.asarray(byoc.constant_numpy(weights.tensor))
    zero = int(np.max(weights.zero_points)) - _SHIFT[weights.dtype]
    require(zero == 0 and np.ptp(weights.zero_points) == 0, f"zero point {weights.zero_points} of weights")
    return (numbers.astype("int16") - _SHIFT[weights.dtype]).astype("int8"), tuple(
        map(float, weights.scales.reshape(-1))
    )


def _bias(model: Model, group: Any, outputs: int, scales: tuple[float, ...]) -> Value:
    bias, real = group.bias, group.real_bias
    if bias is None:
        bias = np.zeros(outputs, "int32")
    else:
        along = real.size == 1 or real.shape[-1] == real.size
        require(along and bias.size in (1, outputs), f"a bias of shape {real.shape} for {outputs} outputs")
    steps = tuple(float(s) * float(group.inputs[0].scales) for s in scales)
    return model.constant(np.broadcast_to(bias, (outputs,)), "int32", Scale(steps, (0,) * len(steps)))


def _product(model: Model, group: Any, x: Value, scale: Scale) -> Value:
    require(group.weights is not None, "a product of activations")
    weights, scales = _weights(group)

    def along(axis: int) -> Scale:
        return Scale(scales, (0,) * len(scales), axis)

    if group.op == "relax.matmul":
        weights = weights if group.is_transposed else np.swapaxes(weights, -1, -2)
        require(weights.ndim == 2 and len(x.shape) > 1, f"weights of {weights.ndim} axes")
        inputs = [x, model.constant(weights, scale=along(0)), _bias(model, group, weights.shape[0], scales)]
        shape = byoc.static_shape(group.call.ty)
        return model.emit(
            "FULLY_CONNECTED", inputs, shape, "int8", scale, "FullyConnectedOptions", keepNumDims=len(shape) != 2
        )
    bias = _bias(model, group, weights.shape[0], scales)
    return convolution(model, group.call, x, weights, along, bias, ("int8", scale))


_PRODUCTS = ("relax.nn.conv2d", "relax.matmul")


def write(model: Model, group: Any, values: list[Value]) -> Value:
    """The result of a group, of int8; ``values`` are its operands but for the weights."""
    output, call, op = group.output, group.call, group.op
    data = [t for t in group.inputs if t is not group.weights]
    inputs = [as_int8(model, v, scale_of(t.scales, t.zero_points, t.dtype)) for v, t in zip(values, data, strict=True)]
    scale, x = scale_of(output.scales, output.zero_points, output.dtype), inputs[0]
    shape = list(byoc.static_shape(call.ty))
    if op in _PRODUCTS:
        y = _product(model, group, x, scale)
    elif op == "relax.add":
        y = model.emit("ADD", inputs, shape, "int8", scale, "AddOptions")
    elif op == "relax.concat":
        parts = [_rescaled(model, part, scale) for part in inputs]
        y = OPERATORS[op](model, call, [parts])
    elif op in ("relax.mean", "relax.nn.adaptive_avg_pool2d"):
        y = _mean(model, call, x, shape, scale)
    elif "pool2d" in op:
        y = pool(model, call, x, shape)
        require("max" in op or y.scale == scale, "the scales of an average and of its input differ")
    elif op in ("relax.nn.relu", "relax.clip"):
        y = x
    else:
        require(op in OPERATORS, f"{op} on integers")
        y = OPERATORS[op](model, call, [x])
    return _bounded(model, _rescaled(model, y, scale), group)


def _mean(model: Model, call: Any, x: Value, shape: list[int], scale: Scale) -> Value:
    is_pool = call.op.name != "relax.mean"
    axes = [1, 2] if is_pool else sorted(int(a) % len(x.shape) for a in call.attrs.axis or range(len(x.shape)))
    require(
        not is_pool or shape[1:3] == [1, 1], f"adaptive pooling to {shape[1:3]}; expected one result for each channel"
    )
    fields = {"keepDims": is_pool or bool(call.attrs.keepdims)}
    return model.emit(
        "MEAN", [x, model.constant(np.array(axes, np.int32))], shape, "int8", scale, "ReducerOptions", **fields
    )


def _bounded(model: Model, y: Value, group: Any) -> Value:
    """What a relu or a clip leaves of the integers: inside of the operator, if LiteRT has that, or behind it."""
    shift = _SHIFT[group.output.dtype]
    low, high = (limit - shift for limit in group.limits)
    if (low, high) == (-128, 127):
        return y
    require(low <= high, f"limits {low} and {high}")
    fused = activation(group.clip)
    if fused is not None and group.op in (*_PRODUCTS, "relax.add"):
        y.producer.builtinOptions.fusedActivationFunction = fused
        return y
    for name, limit in (("MAXIMUM", low), ("MINIMUM", high)):
        if limit not in (-128, 127):
            bound = model.constant(limit, "int8", y.scale)
            y = like(model, name, y, y.shape, bound, options="MaximumMinimumOptions")
    return y
