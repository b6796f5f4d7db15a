"""How Relax operators are written for OpenVINO, one row each: the predicate is the conversion, tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from openvino import opset13 as ops
from tvm import relax

from tvm_byoc_dnnl import Reject

__all__ = ["OPERATORS", "convert", "parameter", "takes"]

#: ``convert(call, values) -> node, or one for each field of a tuple``; it refuses by raising `Reject`
Converter = Callable[[Any, list[Any]], Any]


def require(condition: bool, reason: str) -> None:
    """Refuse, unless the condition holds."""
    if not condition:
        raise Reject(reason)


def _shape(ty: Any) -> list[int]:
    """The shape of a float32 tensor of fixed sizes."""
    require(isinstance(ty, relax.TensorType), f"{ty}; expected a tensor")
    require(str(ty.dtype) == "float32", f"dtype {ty.dtype}; this backend computes in float32 only")
    require(isinstance(ty.shape, relax.ShapeExpr), "an unknown shape")
    dims = list(ty.shape.values)
    fixed = [int(d) for d in dims if isinstance(d, tvm.tirx.IntImm)]
    require(len(fixed) == len(dims), f"open dims {dims}; this backend needs fixed sizes")
    require(0 not in fixed, f"shape {fixed} without elements")
    return fixed


def parameter(expr: Any) -> Any:
    """An input of the type of an expression."""
    return ops.parameter(_shape(expr.ty), np.float32)


def _tensor(expr: Any) -> Any:
    """The value of a constant, whose form differs between the versions of TVM; else none."""
    found = getattr(expr, "value", None) or getattr(expr, "data", None)
    return found if isinstance(found, tvm.runtime.Tensor) else None


def _ints(values: Sequence[Any]) -> list[int]:
    return [int(v) for v in values]


def _i64(values: Sequence[int]) -> Any:
    return ops.constant(np.array(values, np.int64))


def _order(value: Any) -> list[int] | None:
    """The axes of the transpose that makes a tensor; else none."""
    node = value.get_node() if hasattr(value, "get_node") else value
    return _ints(node.input_value(1).get_node().get_data()) if node.get_type_name() == "Transpose" else None


def _behind_transpose(write: Converter) -> Converter:
    """An elementwise operator before the transposes of its arguments, so that those of two convolutions cancel."""

    def moved(call: Any, values: list[Any]) -> Any:
        order = next(filter(None, map(_order, values)), None)
        if order is None or any(len(value.shape) > len(order) for value in values):
            return write(call, values)
        back = _i64([order.index(axis) for axis in range(len(order))])

        def undone(value: Any) -> Any:
            if _order(value) == order:
                node = value.get_node() if hasattr(value, "get_node") else value
                return node.input_value(0)
            shape = [1] * (len(order) - len(value.shape)) + _ints(value.shape)
            return ops.transpose(ops.reshape(value, _i64(shape), special_zero=False), back)

        return ops.transpose(write(call, [undone(value) for value in values]), _i64(order))

    return moved


def _simple(function: Callable[..., Any]) -> Converter:
    return _behind_transpose(lambda call, values: function(*values))


def _same_elements(call: Any, values: list[Any]) -> Any:
    return ops.reshape(values[0], _i64(_shape(call.ty)), special_zero=False)


def _permute(call: Any, values: list[Any]) -> Any:
    rank = len(_shape(call.args[0].ty))
    axes = call.attrs.axes
    return ops.transpose(values[0], _i64([a % rank for a in _ints(axes)] if axes is not None else range(rank)[::-1]))


def _concat(call: Any, values: list[Any]) -> Any:
    require(call.attrs.axis is not None, "concat of flattened tensors")
    return ops.concat(values[0], int(call.attrs.axis))


def _split(call: Any, values: list[Any]) -> Any:
    axis = int(call.attrs.axis)
    sizes = [_shape(field)[axis] for field in call.ty.fields]
    return ops.variadic_split(values[0], ops.constant(np.int64(axis)), _i64(sizes)).outputs()


def _matmul(call: Any, values: list[Any]) -> Any:
    a, b = (_shape(arg.ty) for arg in call.args)
    require(min(len(a), len(b)) > 1, "a product with a vector")
    return ops.matmul(*values, False, False)


def _reduction(function: Callable[..., Any]) -> Converter:
    def reduce(call: Any, values: list[Any]) -> Any:
        rank, axes = len(_shape(call.args[0].ty)), call.attrs.axis
        axes = list(range(rank)) if axes is None else [a % rank for a in _ints(axes)]
        require(bool(axes), "a reduction over no axis")
        return function(values[0], _i64(axes), keep_dims=bool(call.attrs.keepdims))

    return reduce


def _softmax(call: Any, values: list[Any]) -> Any:
    shape = _shape(call.args[0].ty)
    require(bool(shape), "the softmax of a scalar")
    return ops.softmax(values[0], int(call.attrs.axis) % len(shape))


def _axes_as(value: Any, axes: str, wanted: str) -> Any:
    """A tensor whose axes have these letters, with its axes in the wanted order."""
    require(sorted(axes) == sorted(wanted), f"layout {axes}; this backend takes the axes of {wanted} in any order")
    order = [axes.index(axis) for axis in wanted]
    if (before := _order(value)) is not None and [before[axis] for axis in order] == sorted(order):
        return value.get_node().input_value(0)
    return value if axes == wanted else ops.transpose(value, _i64(order))


def _convolution(call: Any, values: list[Any]) -> Any:
    attrs, weight = call.attrs, _shape(call.args[1].ty)
    spatial, groups, padding = len(weight) - 2, int(attrs.groups), _ints(attrs.padding)
    image, kernel, own = f"NC{'DHW'[-spatial:]}", f"OI{'DHW'[-spatial:]}", str(attrs.kernel_layout)
    data, weights = _axes_as(values[0], str(attrs.data_layout), image), _axes_as(values[1], own, kernel)
    window = _ints(attrs.strides), padding[:spatial], padding[spatial:], _ints(attrs.dilation)
    if groups == 1:
        made = ops.convolution(data, weights, *window)
    else:
        outputs, *rest = [weight[own.index(axis)] for axis in kernel]
        grouped = ops.reshape(weights, _i64([groups, outputs // groups, *rest]), special_zero=False)
        made = ops.group_convolution(data, grouped, *window)
    return _axes_as(made, image, str(attrs.out_layout) or str(attrs.data_layout))


def _pool(call: Any, values: list[Any]) -> Any:
    attrs, layout = call.attrs, str(call.attrs.layout)
    require(not attrs.ceil_mode, "ceil_mode")
    size, padding = _ints(attrs.pool_size), _ints(attrs.padding)
    begin, end, dilation = padding[: len(size)], padding[len(size) :], _ints(attrs.dilation)
    for extent, pads in zip(size, zip(begin, end, strict=True), strict=True):
        require(max(pads) < extent, f"padding {pads} reaches past the window of {extent}")
    image = f"NC{'DHW'[-len(size) :]}"
    data = _axes_as(values[0], layout, image)
    if ".max_" in call.op.name:
        made = ops.max_pool(data, _ints(attrs.strides), dilation, begin, end, size).output(0)
    else:
        require(set(dilation) == {1}, f"dilation {dilation} of an average")
        made = ops.avg_pool(data, _ints(attrs.strides), begin, end, size, not attrs.count_include_pad)
    return _axes_as(made, image, str(attrs.out_layout) or layout)


def _global_average(call: Any, values: list[Any]) -> Any:
    layout = str(call.attrs.layout)
    require(str(call.attrs.out_layout) in ("", layout), f"out_layout {call.attrs.out_layout} of {layout}")
    places = [place for place, axis in enumerate(layout) if axis not in "NC"]
    out = [_shape(call.ty)[place] for place in places]
    require(math.prod(out) == 1, f"adaptive pooling to {out}; expected one result for each channel")
    return ops.reduce_mean(values[0], _i64(places), keep_dims=True)


def _layer_norm(call: Any, values: list[Any]) -> Any:
    attrs, rank = call.attrs, len(_shape(call.args[0].ty))
    axes = sorted(a % rank for a in _ints(attrs.axes))
    require(axes == list(range(rank - len(axes), rank)), f"axes {axes} of {rank}, which are not the last")
    normal = ops.mvn(values[0], _i64(axes), True, float(attrs.epsilon), "inside_sqrt")
    scaled = ops.multiply(normal, values[1]) if attrs.scale else normal
    return ops.add(scaled, values[2]) if attrs.center else scaled


def _clip(call: Any, values: list[Any]) -> Any:
    low, high = (float(getattr(arg, "value", arg)) for arg in call.args[1:])
    require(low <= high, f"limits {low} and {high}")
    return ops.clamp(values[0], low, high)


def _leaky_relu(call: Any, values: list[Any]) -> Any:
    return ops.prelu(values[0], ops.constant(np.float32(call.attrs.alpha)))


_SAME_NAME = (
    *("abs", "cos", "erf", "exp", "floor", "log", "negative", "sigmoid", "sin", "sqrt", "tanh"),
    *("add", "divide", "maximum", "minimum", "multiply", "power", "subtract"),
)
#: Relax operator -> how it is written
OPERATORS: dict[str, Converter] = {
    **{f"relax.{name}": _simple(getattr(ops, name)) for name in _SAME_NAME},
    **{f"relax.{n}": _same_elements for n in ("reshape", "flatten", "squeeze", "expand_dims", "nn.batch_flatten")},
    **{f"relax.{n}": _reduction(getattr(ops, f"reduce_{n}")) for n in ("max", "mean", "min", "sum")},
    **{f"relax.nn.conv{d}d": _convolution for d in (1, 2, 3)},
    **{f"relax.nn.{kind}_pool{d}d": _pool for kind in ("max", "avg") for d in (1, 2, 3)},
    **{f"relax.nn.adaptive_avg_pool{d}d": _global_average for d in (1, 2, 3)},
    "relax.clip": _behind_transpose(_clip),
    "relax.concat": _concat,
    "relax.split": _split,
    "relax.permute_dims": _permute,
    "relax.matmul": _matmul,
    "relax.nn.relu": _simple(ops.relu),
    "relax.nn.leakyrelu": _behind_transpose(_leaky_relu),
    "relax.nn.silu": _simple(ops.swish),
    "relax.nn.gelu": _simple(lambda value: ops.gelu(value, "erf")),
    "relax.nn.gelu_tanh": _simple(lambda value: ops.gelu(value, "tanh")),
    "relax.nn.softmax": _softmax,
    "relax.nn.layer_norm": _layer_norm,
}


def convert(call: Any, value: Callable[[Any], Any]) -> Any:
    """A call as one output of OpenVINO, or a list of them; ``value(expr)`` is the output of a tensor that it reads."""

    def of(arg: Any) -> Any:
        if isinstance(arg, relax.Tuple):
            return [of(field) for field in arg.fields]
        ty = getattr(arg, "ty", None)
        require(not isinstance(ty, relax.TupleType), "a tuple as one argument")
        if not isinstance(ty, relax.TensorType):
            return None
        return value(arg) if _tensor(arg) is None else ops.constant(_tensor(arg).numpy())

    made = OPERATORS[call.op.name](call, [v for v in map(of, call.args) if v is not None])
    outputs = made if isinstance(made, list) else [made.output(0) if hasattr(made, "output") else made]
    types = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
    for output, ty in zip(outputs, types, strict=True):
        shape = list(output.get_shape())
        require(shape == _shape(ty), f"OpenVINO makes shape {shape} of it, and Relax {ty}")
    return outputs if isinstance(call.ty, relax.TupleType) else outputs[0]


def takes(op: str) -> Callable[[Any, Sequence[Any]], bool]:
    """The predicate of an operator: whether `convert` can write the call."""

    def predicate(attrs: Any, args: Sequence[Any]) -> bool:
        convert(relax.BlockBuilder().normalize(relax.Call(tvm.ir.Op.get(op), list(args), attrs)), parameter)
        return True

    return predicate
