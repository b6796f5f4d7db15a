"""Operators of PyTorch as those of ONNX, by whose entries they are converted: TVM's importer leaves out arguments of
them, or counts a NaN as a number.

Each layer of an LSTM, GRU or RNN is the operator of ONNX that is kept whole.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...core.errors import UnsupportedError
from ...ir.tvm_compat import dtype_of
from ...whole.table import operator as whole_operator
from ..onnx.dim import Size, product, size_of
from ..onnx.emit import Emit
from ..onnx.value import Node, Value, listed, whole
from ..onnx.whole import emit_whole
from . import arguments, by_values, dtype_name


def _place_of(op: str) -> Callable[..., Value]:
    def convert(e: Emit, _node: Any, x: Value, axis: int | None = None, keeps: bool = False) -> Value:
        if axis is not None and x.sizes:
            return e.onnx(op, x, axis=axis, keepdims=int(keeps))
        return e.reshape(
            e.onnx(op, e.reshape(x, [product(x.sizes)]), axis=0, keepdims=0), [1] * len(x.sizes) if keeps else []
        )

    return convert


def _select(e: Emit, _node: Any, x: Value, axis: int, index: Any) -> Value:
    return e.onnx("Gather", x, e.const(index, "int64") if isinstance(index, int) else index, axis=axis)


def _indexed(node: Any, importer: Any) -> Any:
    """By one tensor of places, which may count from the end; several and masks are left to TVM's importer."""
    places = importer.retrieve_args(node)[1]
    by_tensors = [(axis, at) for axis, at in enumerate(places) if at is not None]
    if len(by_tensors) > 1 or "int" not in dtype_of(by_tensors[0][1].ty):
        return NotImplemented
    ((axis, at),) = by_tensors
    return by_values(lambda e, _node, x, _places: e.onnx("Gather", x, Value(at), axis=axis))(node, importer)


def _taken(e: Emit, _node: Any, x: Value, places: Value) -> Value:
    return e.onnx("Gather", e.reshape(x, [product(x.sizes)]), places, axis=0)


def _extreme(function: str) -> Callable[..., Value]:
    def convert(e: Emit, _node: Any, x: Value, axes: Sequence[int] = (), keeps: bool = False) -> Value:
        return _reduced(e, function, x, list(axes) or None, keeps)

    return convert


def _reduced(e: Emit, function: str, x: Value, axes: list[int] | None, keeps: bool) -> Value:
    if x.dtype == "bool":
        return e.cast(_reduced(e, function, e.cast(x, "int8"), axes, keeps), "bool")
    return getattr(e, function)(x, axis=axes, keepdims=keeps)


def _group_norm(
    e: Emit, _node: Any, x: Value, scale: Value | None, bias: Value | None, _batch: Any, channels: int, _size: Any,
    groups: int, epsilon: float,
) -> list[Value | None]:  # fmt: skip
    factors = e.const(np.ones(channels), x.dtype) if scale is None else scale
    summands = e.const(np.zeros(channels), x.dtype) if bias is None else bias
    dtype = x.dtype if x.dtype == factors.dtype else "float32"  # under autocast, as PyTorch computes it
    given = [e.cast(value, dtype) for value in (x, factors, summands)]
    made = e.onnx("GroupNormalization", *given, num_groups=groups, epsilon=epsilon)
    return [e.cast(made, x.dtype), None, None]


def _scatter_add(e: Emit, _node: Any, x: Value, axis: int, places: Value, source: Value) -> Value:
    for i, size in enumerate(places.sizes):
        source = e.cut(source, i, 0, size)
    return e.onnx("ScatterElements", x, places, source, axis=axis, reduction="add")


def _slice(e: Emit, _node: Any, x: Value, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> Value:
    limits = (0 if start is None else start, x.sizes[axis] if stop is None else stop, axis, step)
    return e.onnx("Slice", x, *(listed(size_of(limit)) for limit in limits))


def _unfold(e: Emit, node: Any, x: Value, axis: int, size: int, step: int) -> Value:
    length, rank = x.sizes[axis], len(x.sizes)
    if not isinstance(length, int):
        raise UnsupportedError(f"{node.target} reads windows of an axis of open size {length}")
    places = np.arange(0, length - size + 1, step)[:, None] + np.arange(size)
    windows = e.onnx("Gather", x, e.const(places, "int64"), axis=axis)
    return e.transpose(windows, [i for i in range(rank + 1) if i != axis % rank + 1] + [axis % rank + 1])


def _variance_and_mean(node: Any, importer: Any) -> list[Any]:
    def mean(
        e: Emit, _node: Any, x: Value, axes: Sequence[int] | None, _correction: Any = 1, keeps: bool = False
    ) -> Value:
        return e.mean(x, axis=list(axes or ()) or None, keepdims=keeps)

    return [importer.create_convert_map()["var.correction"](node), by_values(mean)(node, importer)]


def cat(e: Emit, _node: Any, tensors: Sequence[Value], axis: int = 0) -> Value:
    """PyTorch leaves out operands of shape (0,), whatever the rank of the others: a cache before its first word."""
    full = [x for x in tensors if list(x.sizes) != [0]] or tensors[:1]
    return full[0] if len(full) == 1 else e.concat(full, axis)


def _arange(e: Emit, node: Any, start: Any, stop: Any, step: Any = 1, *_how: Any) -> Value:
    dtype = dtype_name(node.meta["val"].dtype)
    if step == 1 and not isinstance(start, float) and not isinstance(stop, float):  # PyTorch refuses a stop below start
        made = e.places(size_of(stop) - size_of(start)) + whole(size_of(start))
        return e.cast(made, dtype)
    limits = [e.const(n) if isinstance(n, float) else whole(size_of(n)) for n in (start, stop, step)]
    wide = "float64" if any("float" in limit.dtype for limit in limits) else "int64"
    return e.cast(e.onnx("Range", *(e.cast(limit, wide) for limit in limits)), dtype)


def _any(e: Emit, node: Any, x: Value, axes: int | Sequence[int] | None = None, keeps: bool = False) -> Value:
    over = [axes] if isinstance(axes, int) else list(axes or range(len(x.sizes)))
    yes = x if x.dtype == "bool" else e.not_equal(x, 0)
    # preparing looks for the maximum; there is none of nothing
    one = _reduced(e, "sum" if any(x.sizes[axis] == 0 for axis in over) else "max", yes, over, keeps)
    return e.cast(one, dtype_name(node.meta["val"].dtype))


def _divided(e: Emit, _node: Any, a: Value, b: Any, rounding: str | None = None) -> Value:
    if rounding == "floor":
        return e.elementwise(relax.op.floor_divide, a, b)
    quotient = e.onnx("Div", a, b)  # which cuts integers
    return e.trunc(quotient) if rounding == "trunc" and "float" in a.dtype else quotient


def _repeated(e: Emit, _node: Any, x: Value, counts: Sequence[Any]) -> Value:
    wide = e.reshape(x, [1] * (len(counts) - len(x.sizes)) + list(x.sizes))
    return e.onnx("Tile", wide, listed(*map(size_of, counts)))


def _extreme_and_place(extreme: str, place: str) -> Callable[..., list[Value]]:
    def convert(e: Emit, _node: Any, x: Value, axis: int, keeps: bool = False) -> list[Value]:
        return [_reduced(e, extreme, x, [axis], keeps), e.onnx(place, x, axis=axis, keepdims=int(keeps))]

    return convert


def _joined(op: str, of_bools: str = "") -> Callable[[Any, Any], Any]:
    """A sum, difference or product: of bools, or with a factor for the second operand; the others are TVM's."""

    def convert(node: Any, importer: Any) -> Any:
        of = of_bools if dtype_name(node.meta["val"].dtype) == "bool" else ""
        alpha = node.kwargs.get("alpha", 1)
        if not of and alpha == 1:
            return NotImplemented
        how = by_values(lambda e, _node, a, b, *_alpha: e.onnx(of or op, a, b if alpha == 1 else b * alpha))
        return how(node, importer)

    return convert


def _elu(e: Emit, node: Any, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if scale == 1 and input_scale == 1:
        return e.onnx("Elu", x, alpha=float(alpha))
    if input_scale == 1:
        return e.onnx("Selu", x, alpha=float(alpha), gamma=float(scale))
    if scale == 1 and alpha * input_scale == 1:
        return e.onnx("Celu", x, alpha=float(alpha))
    raise UnsupportedError(f"{node.target} has alpha {alpha}, scale {scale} and input_scale {input_scale}")


def _pooled(
    e: Emit, x: Value, op: str, rank: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    outputs: int = 1, **attributes: Any,
) -> list[Value]:  # fmt: skip
    """The results of a pool of ONNX; PyTorch has lists of one number for all axes, and tensors without a batch."""
    sizes, steps, pads = (list(each) * (rank // len(each)) for each in (kernel, stride or kernel, padding))
    has_batch = len(x.sizes) == rank + 2
    made = e.onnx(
        op, x if has_batch else e.expand_dims(x, axis=0), outputs=outputs,
        kernel_shape=tuple(sizes), strides=tuple(steps), pads=tuple(pads * 2), **attributes,
    )  # fmt: skip
    results = made if outputs > 1 else [made]
    return results if has_batch else [e.squeeze(result, axis=[0]) for result in results]


def _average_pool(rank: int) -> Callable[..., Value]:
    def convert(
        e: Emit, node: Any, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
        ceil: bool = False, counts_padding: bool = True, divisor: int | None = None,
    ) -> Value:  # fmt: skip
        counted = {"ceil_mode": int(ceil), "count_include_pad": int(counts_padding)}
        if divisor is None:
            return _pooled(e, x, "AveragePool", rank, kernel, stride, padding, **counted)[0]
        if ceil:
            raise UnsupportedError(f"{node.target} has ceil_mode and divisor_override; give it one of them")
        mean = _pooled(e, x, "AveragePool", rank, kernel, stride, padding, count_include_pad=1)[0]
        count = kernel[0] ** rank if len(kernel) == 1 else math.prod(kernel)
        return mean * (count / divisor)

    return convert


def _max_pool(rank: int) -> Callable[..., list[Value | None]]:
    def convert(
        e: Emit, node: Any, x: Value, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,), ceil: bool = False,
    ) -> list[Value | None]:  # fmt: skip
        tells_places = any(user.target is operator.getitem and user.args[1] == 1 for user in node.users)
        attributes = {"dilations": tuple(dilation) * (rank // len(dilation)), "ceil_mode": int(ceil)}
        outputs = 2 if tells_places else 1
        values, *places = _pooled(e, x, "MaxPool", rank, kernel, stride, padding, outputs, **attributes)
        # ONNX counts places in the whole tensor, PyTorch in each channel.
        return [values, e.floor_mod(places[0], product(x.sizes[-rank:])) if places else None]

    return convert


def _grid_sample(e: Emit, _node: Any, x: Value, grid: Value, how: int, outside: int, aligned: bool) -> Value:
    mode, padding = ("linear", "nearest", "cubic")[how], ("zeros", "border", "reflection")[outside]
    return e.onnx("GridSample", x, grid, mode=mode, padding_mode=padding, align_corners=int(aligned), opset=20)


def _resized(mode: str, **attributes: Any) -> Callable[..., Value]:
    """A resize of the last two axes, by sizes or by factors, which come last."""

    def convert(e: Emit, node: Any, x: Value, size: Sequence[Any] | None, *rest: Any) -> Value:
        *aligned, factors = rest
        places = "asymmetric" if mode == "nearest" else "align_corners" if any(aligned) else "half_pixel"
        how = {"mode": mode, "coordinate_transformation_mode": places, "axes": (2, 3), **attributes}
        if not size and not any(aligned):
            return e.onnx("Resize", x, None, e.const(factors, "float32"), **how)
        # corners that meet: PyTorch counts in whole pixels of the result, ONNX's factors do not
        sizes = [size_of(n) for n in size or map(_times, [node] * 2, x.sizes[2:], factors)]
        return e.onnx("Resize", x, None, None, listed(*sizes), **how)

    return convert


def _times(node: Any, size: Size, factor: float) -> Size:
    if isinstance(size, int):
        return int(size * factor)
    if factor != int(factor):
        raise UnsupportedError(
            f"{node.target} makes the open size {size} {factor} times as large; "
            "give interpolate() whole factors or a size"
        )
    return size * int(factor)


def _antialiased(mode: str, **attributes: Any) -> Callable[..., Value]:
    """Parts outside of the picture do not count; where corners meet, PyTorch stretches by another ratio than ONNX."""
    resized = _resized(mode, antialias=1, exclude_outside=1, **attributes)

    def convert(e: Emit, node: Any, x: Value, size: Sequence[Any], aligned: bool, *factors: float | None) -> Value:
        if aligned:
            raise UnsupportedError(f"{node.target}: antialias=True with align_corners=True; give align_corners=False")
        return resized(e, node, x, size if None in factors or not factors else None, False, factors)

    return convert


def _shifts(side: str) -> list[str]:
    plain, named = f"__{side[0]}shift__", f"bitwise_{side}_shift"
    return [f"{plain}.Scalar", f"{plain}.Tensor", f"{named}.Tensor", f"{named}.Tensor_Scalar"]


_BY_NAME: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_shifts("left"), lambda e, _node, x, bits: e.left_shift(x, bits)),
    **dict.fromkeys(_shifts("right"), lambda e, _node, x, bits: e.right_shift(x, bits)),
    "_int_mm.default": lambda e, _node, a, b: e.onnx("MatMulInteger", a, b),
    "amax.default": _extreme("max"),
    "amin.default": _extreme("min"),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _any),
    "arange.start_step": _arange,
    "argmax.default": _place_of("ArgMax"),
    "argmin.default": _place_of("ArgMin"),
    "avg_pool2d.default": _average_pool(2),
    "avg_pool3d.default": _average_pool(3),
    "cat.default": cat,
    **dict.fromkeys(("div.Scalar_mode", "div.Tensor_mode"), _divided),
    "elu.default": _elu,
    "grid_sampler_2d.default": _grid_sample,
    "grid_sampler_3d.default": _grid_sample,
    "max.dim": _extreme_and_place("max", "ArgMax"),
    "max_pool2d_with_indices.default": _max_pool(2),
    "max_pool3d_with_indices.default": _max_pool(3),
    "min.dim": _extreme_and_place("min", "ArgMin"),
    "native_group_norm.default": _group_norm,
    "pow.Scalar": lambda e, _node, base, x: e.onnx("Pow", e.const(base, x.dtype), x),
    "prod.dim_int": lambda e, _node, x, axis, keeps=False: e.prod(x, axis=[axis], keepdims=keeps),
    "repeat.default": _repeated,
    "scatter_add.default": _scatter_add,
    "select.int": _select,
    "sign.default": lambda e, _node, x: e.onnx("Sign", x),
    "slice.Tensor": _slice,
    "take.default": _taken,
    "unfold.default": _unfold,
    "upsample_bilinear2d.vec": _resized("linear"),
    "upsample_nearest2d.vec": _resized("nearest", nearest_mode="floor"),
    "_upsample_bicubic2d_aa.default": _antialiased("cubic", cubic_coeff_a=-0.5),
    "_upsample_bilinear2d_aa.default": _antialiased("linear"),
}
#: in place of the importer's own, by the name of the overload
CONVERTERS = {name: by_values(convert) for name, convert in _BY_NAME.items()} | {
    "add.Tensor": _joined("Add", "Or"),
    "index.Tensor": _indexed,
    "mul.Tensor": _joined("Mul", "And"),
    "sub.Tensor": _joined("Sub"),
    "var_mean.correction": _variance_and_mean,
}


#: overload → ONNX's operator, the places of ONNX's gates among PyTorch's (i, f, g, o and r, z, n), its attributes
_LAYERS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "lstm.input": ("LSTM", [0, 3, 1, 2], {}),
    "gru.input": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
    "rnn_tanh.input": ("RNN", [0], {}),
    "rnn_relu.input": ("RNN", [0], {"activations": ("Relu",)}),
}


def decompositions(program: Any) -> dict[Any, Callable[..., Any]]:
    """PyTorch's usual decompositions, without those that would write out every step.

    An LSTM with projections of its states (``proj_size``) is written out: ONNX has none.
    """
    from torch.export import default_decompositions

    written_out = {n.target for n in program.graph.nodes if _name(n.target) in _LAYERS and _projects(arguments(n))}
    table = default_decompositions()
    for overload in list(table):
        if _name(overload) in _LAYERS and overload not in written_out:
            del table[overload]
    return dict(table)


def _name(target: Any) -> str:
    return str(target).removeprefix("aten.")


def _projects(given: Mapping[str, Any]) -> bool:
    """Whether each direction of each layer has a matrix more than others."""
    ways, each = 2 if given["bidirectional"] else 1, 4 if given["has_biases"] else 2
    return len(given["params"]) != given["num_layers"] * ways * each


def _layers(
    e: Emit, node: Any, x: Value, hx: Any, params: list[Value], _biases: bool, count: int, _dropout: float,
    _trains: bool, both_ways: bool, batch_first: bool,
) -> list[Value]:  # fmt: skip
    """The output, and the last states of all layers and directions."""
    kind = op, *_ = _LAYERS[_name(node.target)]
    states, ways = hx if op == "LSTM" else [hx], 2 if both_ways else 1
    each = len(params) // (count * ways)
    if batch_first:
        x = e.transpose(x, [1, 0, 2])
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(count):
        first = layer * ways
        own = [params[(first + way) * each : (first + way + 1) * each] for way in range(ways)]
        begin = [e.strided_slice(s, axes=[0], begin=[first], end=[first + ways]) for s in states]
        y, *ends = _layer(e, node.name, kind, x, begin, own)
        for found, end in zip(last, ends, strict=True):
            found.append(end)
        is_last = layer == count - 1 and batch_first
        steps, _, batch, hidden = y.sizes
        y = e.transpose(y, [2, 0, 1, 3] if is_last else [0, 2, 1, 3])
        x = e.reshape(y, [*((batch, steps) if is_last else (steps, batch)), ways * hidden])
    return [x, *(e.concat(found, 0) for found in last)]


def _layer(
    e: Emit, name: str, kind: Any, x: Value, states: Sequence[Value], params: Sequence[Sequence[Value]]
) -> list[Any]:
    """One layer: the states of all steps, then what it ends with."""
    op, gates, attributes = kind
    # of each matrix or bias, the directions one behind the other, along a first axis of their own
    weights, recurrent, *biases = (
        e.concat([e.expand_dims(_ordered(e, part, gates), axis=0) for part in parts], 0)
        for parts in zip(*params, strict=True)
    )
    bias = e.concat(biases, 1) if biases else None
    attributes = {**attributes, "direction": "bidirectional" if len(params) == 2 else "forward"}
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * len(params)
    inputs = [x, weights, recurrent, bias, None, *states]
    entry = whole_operator("", op)
    assert entry is not None
    return emit_whole(e, Node(op, "", 14, name, inputs, attributes, [True] * (1 + len(states))), entry)


def _ordered(e: Emit, parameter: Value, gates: list[int]) -> Value:
    """A matrix or a bias with its gates in ONNX's order."""
    if len(gates) == 1:
        return parameter
    rows, *others = parameter.sizes
    apart = e.reshape(parameter, [len(gates), rows // len(gates), *others])
    return e.reshape(e.take(apart, e.const(gates, "int64"), axis=0), parameter.sizes)


#: in place of the importer's own, by the name of the overload
RECURRENT = {overload: by_values(_layers) for overload in _LAYERS}
