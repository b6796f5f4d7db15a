"""How Relax operators of float32 are written for LiteRT, one row each: the predicate is the conversion, tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

import tvm_byoc_dnnl as byoc

from .flatbuffer import Model, Value, require

__all__ = ["DTYPES", "MOVES", "OPERATORS", "activation", "pad", "shape_of", "window"]

#: ``convert(model, call, values) -> value, or a list of them``; it refuses by raising `Reject`
Converter = Callable[[Model, Any, list[Value]], Any]

DTYPES = ("float32", "int8", "uint8")
#: more axes than this many are too many for kernels of LiteRT, some of which end the process then
_RANK = 4


def shape_of(ty: Any, dtypes: Sequence[str] = ("float32",)) -> list[int]:
    """The shape of a tensor of fixed sizes."""
    require(isinstance(ty, relax.TensorType), f"{ty}; expected a tensor")
    require(byoc.dtype_of(ty) in dtypes, f"dtype {byoc.dtype_of(ty)}; this backend has {', '.join(dtypes)}")
    shape = byoc.static_shape(ty)
    require(shape is not None, f"open dims in {ty}; this backend needs fixed sizes")
    require(0 not in shape, f"shape {list(shape)} without elements")
    return list(shape)


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(v) for v in values]


def _i32(model: Model, values: Any) -> Value:
    return model.constant(np.array(values, np.int32))


def like(model: Model, name: str, x: Value, shape: Sequence[int], *more: Value, **options: Any) -> Value:
    """An operator whose result has the dtype and the scale of its first operand."""
    return model.emit(name, [x, *more], shape, x.dtype, x.scale, **options)


def _simple(name: str, options: str = "", **fields: Any) -> Converter:
    def convert(model: Model, call: Any, values: list[Value]) -> Value:
        shapes = [v.shape for v in values]
        require(max(map(len, shapes)) <= _RANK or all(s == shapes[0] for s in shapes), f"broadcast of {shapes}")
        return model.emit(name, values, shape_of(call.ty), options=options, **fields)

    return convert


def _product_of_itself(name: str) -> Converter:
    return lambda model, call, values: model.emit(
        "MUL", [values[0], like(model, name, values[0], values[0].shape)], values[0].shape, options="MulOptions"
    )


# ---------------------------------------------------------------- what only moves numbers
def reshaped(model: Model, x: Value, shape: Sequence[int]) -> Value:
    """The same elements."""
    return x if list(shape) == x.shape else _moved(model, "RESHAPE", x, shape, shape)


def _moved(model: Model, name: str, x: Value, shape: Sequence[int], how: Sequence[int]) -> Value:
    value = like(model, name, x, shape, _i32(model, how))
    value.moved = x
    return value


def _reshape(model: Model, call: Any, values: list[Value]) -> Value:
    return reshaped(model, values[0], shape_of(call.ty, DTYPES))


def _permute(model: Model, call: Any, values: list[Value]) -> Value:
    (x,) = values
    rank, axes = len(x.shape), call.attrs.axes
    require(rank <= _RANK, f"a transpose of {rank} axes")
    order = [a % rank for a in _ints(axes)] if axes is not None else [*range(rank)][::-1]
    return _moved(model, "TRANSPOSE", x, [x.shape[a] for a in order], order)


def _concat(model: Model, call: Any, values: list[Value]) -> Value:
    require(call.attrs.axis is not None, "concat of flattened tensors")
    parts, rank = values[0], len(values[0][0].shape)
    axis, shape = int(call.attrs.axis) % rank, list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    require(len(set(map(id, parts))) == len(parts), "a concat that reads a tensor twice")
    return like(model, "CONCATENATION", parts[0], shape, *parts[1:], options="ConcatenationOptions", axis=axis)


def _split(model: Model, call: Any, values: list[Value]) -> list[Value]:
    shapes, axis = [shape_of(field) for field in call.ty.fields], int(call.attrs.axis)
    axis %= len(shapes[0])
    sizes, results = [shape[axis] for shape in shapes], [model.value(shape, "float32") for shape in shapes]
    inputs = [values[0], _i32(model, sizes), _i32(model, axis)]
    return model.emit_all("SPLIT_V", inputs, results, "SplitVOptions", numSplits=len(sizes))


# ---------------------------------------------------------------- products and windows
def pad(model: Model, x: Value, padding: Sequence[int], least: bool = False) -> Value:
    """An image with a border of zeros, or of the least number."""
    top, left, bottom, right = padding
    if not any(padding):
        return x
    shape = [x.shape[0], x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3]]
    amounts = _i32(model, [[0, 0], [top, bottom], [left, right], [0, 0]])
    if not least:
        return like(model, "PAD", x, shape, amounts, options="PadOptions")
    lowest = -np.inf if x.dtype == "float32" else np.iinfo(x.dtype).min
    return like(model, "PADV2", x, shape, amounts, model.constant(lowest, x.dtype, x.scale))


def window(attrs: Any, x: Value, size: Sequence[int], y: Sequence[int]) -> tuple[dict[str, int], list[int]]:
    """The options of a window, and the padding that is left to do: LiteRT has only two ways, of which one pads."""
    strides, dilation, padding = _ints(attrs.strides), _ints(attrs.dilation), _ints(attrs.padding)
    same = []
    for d in range(2):
        extent = (size[d] - 1) * dilation[d] + 1
        require(y[1 + d] >= 1, f"a window of {extent} on {x.shape}")
        total = max((-(-x.shape[1 + d] // strides[d]) - 1) * strides[d] + extent - x.shape[1 + d], 0)
        same.append((total // 2, total - total // 2))
    is_same = padding == [same[0][0], same[1][0], same[0][1], same[1][1]]
    fields = {"padding": 0 if is_same and any(padding) else 1, "strideH": strides[0], "strideW": strides[1]}
    return fields, [0, 0, 0, 0] if is_same else padding


def _nhwc(attrs: Any, name: str) -> None:
    for layout in (str(getattr(attrs, name)), str(attrs.out_layout)):
        require(layout in ("NHWC", ""), f"{name} {layout}; this backend takes NHWC")


def convolution(
    model: Model, call: Any, x: Value, weights: np.ndarray, scale: Any, bias: Value, y: tuple[Any, ...]
) -> Value:
    """A convolution whose weights are ``OHWI``; ``y`` are dtype and scale of the result."""
    attrs, shape = call.attrs, list(byoc.static_shape(call.ty))
    _nhwc(attrs, "data_layout")
    require(str(attrs.kernel_layout) == "OHWI", f"kernel_layout {attrs.kernel_layout}; this backend takes OHWI")
    groups, channels = int(attrs.groups), x.shape[3]
    fields, padding = window(attrs, x, weights.shape[1:3], shape)
    fields |= dict(zip(("dilationHFactor", "dilationWFactor"), _ints(attrs.dilation), strict=True))
    x = pad(model, x, padding)
    if groups > 1 and groups == channels:
        fields["depthMultiplier"] = weights.shape[0] // channels
        inputs = [x, model.constant(weights.transpose(3, 1, 2, 0), scale=scale and scale(3)), bias]
        return model.emit("DEPTHWISE_CONV_2D", inputs, shape, *y, "DepthwiseConv2DOptions", **fields)
    inputs = [x, model.constant(weights, scale=scale and scale(0)), bias]
    return model.emit("CONV_2D", inputs, shape, *y, "Conv2DOptions", **fields)


def _constant(expr: Any, what: str) -> np.ndarray:
    require(byoc.is_constant(expr), f"{what} are not constant")
    return np.asarray(byoc.constant_numpy(expr))


def _conv2d(model: Model, call: Any, values: list[Value]) -> Value:
    require(values[1].data is not None, "weights are not constant")
    bias = model.constant(np.zeros(values[1].shape[0], np.float32))
    return convolution(model, call, values[0], values[1].data, None, bias, ("float32", None))


def _matmul(model: Model, call: Any, values: list[Value]) -> Value:
    (a, b), shape = values, shape_of(call.ty)
    require(min(len(a.shape), len(b.shape)) > 1, "a product with a vector")
    require(len(shape) <= _RANK, f"a product of {len(shape)} axes")
    if b.data is not None and len(b.shape) == 2:
        inputs = [a, model.constant(b.data.T), model.constant(np.zeros(b.shape[1], np.float32))]
        return model.emit("FULLY_CONNECTED", inputs, shape, options="FullyConnectedOptions", keepNumDims=True)
    return model.emit("BATCH_MATMUL", values, shape, options="BatchMatMulOptions")


def pool(model: Model, call: Any, x: Value, y: Sequence[int]) -> Value:
    """Pooling of an image, also to one number for each channel."""
    attrs, name = call.attrs, call.op.name
    _nhwc(attrs, "layout")
    if "adaptive" in name:
        require(list(y[1:3]) == [1, 1], f"adaptive pooling to {list(y[1:3])}; expected one result for each channel")
        return like(model, "MEAN", x, y, _i32(model, [1, 2]), options="ReducerOptions", keepDims=True)
    size, is_max = _ints(attrs.pool_size), ".max_" in name
    require(not attrs.ceil_mode, "ceil_mode")
    require(set(_ints(attrs.dilation)) == {1}, f"dilation {attrs.dilation} of pooling")
    fields, padding = window(attrs, x, size, y)
    fields |= {"filterHeight": size[0], "filterWidth": size[1]}
    if not is_max and attrs.count_include_pad:
        fields["padding"], padding = 1, _ints(attrs.padding)
    require(is_max or attrs.count_include_pad or not any(padding), f"padding {padding} of an average that is not in it")
    x = pad(model, x, padding, least=is_max)
    return like(model, "MAX_POOL_2D" if is_max else "AVERAGE_POOL_2D", x, y, options="Pool2DOptions", **fields)


# ---------------------------------------------------------------- the rest
def _reduction(name: str) -> Converter:
    def convert(model: Model, call: Any, values: list[Value]) -> Value:
        (x,), axes = values, call.attrs.axis
        rank = len(x.shape)
        axes = [*range(rank)] if axes is None else [a % rank for a in _ints(axes)]
        require(bool(axes) and rank <= _RANK, f"a reduction of {rank} axes over {axes}")
        fields = {"options": "ReducerOptions", "keepDims": bool(call.attrs.keepdims)}
        return like(model, name, x, shape_of(call.ty), _i32(model, axes), **fields)

    return convert


def _softmax(model: Model, call: Any, values: list[Value]) -> Value:
    rank = len(values[0].shape)
    require(rank > 0 and int(call.attrs.axis) % rank == rank - 1, f"softmax along axis {call.attrs.axis} of {rank}")
    return like(model, "SOFTMAX", values[0], values[0].shape, options="SoftmaxOptions", beta=1.0)


def _two(model: Model, name: str, a: Value, b: Value) -> Value:
    return model.emit(name, [a, b], np.broadcast_shapes(a.shape, b.shape), options=f"{name.title()}Options")


def _layer_norm(model: Model, call: Any, values: list[Value]) -> Value:
    attrs, (x, *affine) = call.attrs, values
    rank = len(x.shape)
    axes = sorted(a % rank for a in _ints(attrs.axes))
    require(rank <= _RANK and axes == [*range(rank - len(axes), rank)], f"axes {axes} of {rank}")
    shape, last = [*x.shape[: axes[0]], *[1] * len(axes)], _i32(model, axes)

    def mean(value: Value) -> Value:
        return like(model, "MEAN", value, shape, last, options="ReducerOptions", keepDims=True)

    centred = _two(model, "SUB", x, mean(x))
    variance = _two(model, "ADD", mean(_two(model, "MUL", centred, centred)), model.constant(np.float32(attrs.epsilon)))
    normal = _two(model, "MUL", centred, like(model, "RSQRT", variance, shape))
    normal = _two(model, "MUL", normal, affine[0]) if attrs.scale else normal
    return _two(model, "ADD", normal, affine[1]) if attrs.center else normal


def _resize(model: Model, call: Any, values: list[Value]) -> Value:
    attrs, x, y = call.attrs, values[0], list(byoc.static_shape(call.ty))
    require(str(attrs.layout) == "NHWC", f"layout {attrs.layout}; this backend takes NHWC")
    how = (str(attrs.method), str(attrs.coordinate_transformation_mode), str(attrs.rounding_method))
    name, corners, half = _RESIZES.get(how, _RESIZES.get((*how[:2], ""), ("", False, False)))
    require(bool(name), f"resize by {', '.join(how)}")
    whole = all(big % small == 0 for big, small in zip(y[1:3], x.shape[1:3], strict=True))
    require(
        whole or how[2] != "round" or how[0] == "linear", f"{x.shape} to {y} rounds halves in a way of LiteRT's own"
    )
    require(not any(float(v) for v in attrs.roi), f"resize of the part {attrs.roi}")
    fields = {"options": f"{name.title().replace('_', '')}Options", "alignCorners": corners, "halfPixelCenters": half}
    return like(model, name, x, y, _i32(model, y[1:3]), **fields)


#: method, coordinates, rounding ("" for any) → operator, whether corners are aligned, whether pixels have half centres
_RESIZES = {
    ("linear", "half_pixel", ""): ("RESIZE_BILINEAR", False, True),
    ("linear", "align_corners", ""): ("RESIZE_BILINEAR", True, False),
    ("linear", "asymmetric", ""): ("RESIZE_BILINEAR", False, False),
    ("nearest_neighbor", "asymmetric", "floor"): ("RESIZE_NEAREST_NEIGHBOR", False, False),
    ("nearest_neighbor", "half_pixel", "round"): ("RESIZE_NEAREST_NEIGHBOR", False, True),
}


#: bounds of a clip → the activation that LiteRT has for them, and its number as part of another operator
_ACTIVATIONS = {(0.0, math.inf): ("RELU", 1), (-1.0, 1.0): ("RELU_N1_TO_1", 2), (0.0, 6.0): ("RELU6", 3)}


def activation(bounds: tuple[float, float]) -> int | None:
    """The number of an activation that another operator may have inside."""
    return _ACTIVATIONS[bounds][1] if bounds in _ACTIVATIONS else None


def clipped(model: Model, x: Value, low: float, high: float) -> Value:
    """The numbers of a tensor within bounds."""
    require(low <= high, f"limits {low} and {high}")
    if (low, high) in _ACTIVATIONS:
        return like(model, _ACTIVATIONS[low, high][0], x, x.shape)
    for name, bound in (("MAXIMUM", low), ("MINIMUM", high)):
        x = like(model, name, x, x.shape, model.constant(bound, x.dtype, x.scale), options="MaximumMinimumOptions")
    return x


def _clip(model: Model, call: Any, values: list[Value]) -> Value:
    return clipped(model, values[0], *(float(getattr(arg, "value", arg)) for arg in call.args[1:]))


_SAME_NAME = ("abs", "ceil", "cos", "exp", "floor", "log", "rsqrt", "sin", "sqrt", "tanh")
#: of which the numbers of any dtype stay the same
MOVES = ("relax.permute_dims", "relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims")
_ALIKE = ("reshape", "flatten", "squeeze", "expand_dims", "nn.batch_flatten")
_ARITHMETIC = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div"}
#: Relax operator -> how it is written
OPERATORS: dict[str, Converter] = {
    **{f"relax.{name}": _simple(name.upper()) for name in _SAME_NAME},
    **{f"relax.{op}": _simple(name.upper(), f"{name}Options") for op, name in _ARITHMETIC.items()},
    **{f"relax.{n}": _simple(n.upper(), "MaximumMinimumOptions") for n in ("maximum", "minimum")},
    **{f"relax.{name}": _reshape for name in _ALIKE},
    **{f"relax.{n}": _reduction(n.upper()) for n in ("mean", "sum")},
    **{f"relax.{n}": _reduction(f"REDUCE_{n.upper()}") for n in ("max", "min")},
    **{f"relax.nn.{n}_pool2d": lambda m, call, v: pool(m, call, v[0], shape_of(call.ty)) for n in ("max", "avg")},
    "relax.nn.adaptive_avg_pool2d": lambda m, call, v: pool(m, call, v[0], shape_of(call.ty)),
    "relax.nn.conv2d": _conv2d,
    "relax.clip": _clip,
    "relax.image.resize2d": _resize,
    "relax.concat": _concat,
    "relax.split": _split,
    "relax.permute_dims": _permute,
    "relax.matmul": _matmul,
    "relax.negative": _simple("NEG"),
    "relax.sigmoid": _simple("LOGISTIC"),
    "relax.nn.relu": _simple("RELU"),
    "relax.nn.leakyrelu": lambda m, call, v: like(
        m, "LEAKY_RELU", v[0], v[0].shape, options="LeakyReluOptions", alpha=float(call.attrs.alpha)
    ),
    "relax.nn.silu": _product_of_itself("LOGISTIC"),
    "relax.nn.gelu": _simple("GELU", "GeluOptions", approximate=False),
    "relax.nn.gelu_tanh": _simple("GELU", "GeluOptions", approximate=True),
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
}
