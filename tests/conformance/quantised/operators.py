"""Operators of real numbers, each as a node and as what its result may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.patterns.dnnl.quantized_reference import ERF, convolved

from .bounds import Real, Whole, real, widened
from .sequence import Reals, Sequential, Wholes

__all__ = ["OPERATORS", "Operator", "as_rank"]

Operator = Callable[[Sequential, Reals], Reals]
#: rows by name: how many axes the operand has (0: any), and the operator
OPERATORS: dict[str, tuple[int, Operator]] = {}


def row(name: str, rank: int = 0) -> Callable[[Operator], Operator]:
    """Register an operator."""

    def take(operator: Operator) -> Operator:
        OPERATORS[name] = rank, operator
        return operator

    return take


def as_rank(s: Sequential, x: Any, rank: int) -> Any:
    """``x`` with this many axes, moved by a reshape where it has others."""
    if rank in (0, len(x.shape)):
        return x
    rest = math.prod(x.shape[1:])
    sizes = (x.shape[0], rest) if rank == 2 else (1, x.shape[0], 1, rest)
    return moved(s, x, "Reshape", lambda a: a.reshape(sizes), s.constant(np.array(sizes, "int64")))


def moved(s: Sequential, x: Any, op: str, move: Callable[[np.ndarray], np.ndarray], *inputs: str, **attrs: Any) -> Any:
    """Elements of ``x`` at other places, of integers or of real numbers."""
    name, ends = s.add(op, [x.name, *inputs], **attrs), (move(x.bounds.low), move(x.bounds.high))
    if isinstance(x, Wholes):
        b = x.bounds
        return Wholes(name, x.scaling, type(b)(*ends, b.dtype, b.scale, b.point))
    return Reals(name, Real(*ends, x.bounds.size, x.bounds.exact))


# ---------------------------------------------------------------- one operand, element by element
def monotone(name: str, function: Callable[[np.ndarray], np.ndarray], *inputs: Any, **attrs: Any) -> None:
    """A function that never decreases and is defined to the last bit."""

    def operator(s: Sequential, x: Reals) -> Reals:
        return moved(s, x, name.split()[0], function, *map(s.constant, inputs), **attrs)

    OPERATORS[name] = 0, operator


monotone("Identity", lambda a: a)
monotone("Relu", lambda a: np.maximum(a, 0))
monotone("Clip", lambda a: np.clip(a, 0, np.float32(1.7)), np.float32(0), np.float32(1.7))
monotone("Clip of both signs", lambda a: np.clip(a, -1, np.float32(0.6)), np.float32(-1), np.float32(0.6))
monotone("LeakyRelu", lambda a: np.where(a < 0, a.astype("float32") * np.float32(0.1), a), alpha=0.1)


def smooth(name: str, function: Callable[[np.ndarray], np.ndarray], slope: float, **attrs: Any) -> None:
    """A function with at most this slope, which libraries approximate."""

    def operator(s: Sequential, x: Reals) -> Reals:
        middle, reach = function(x.bounds.middle), slope * (x.bounds.high - x.bounds.low) / 2
        size = 1 + np.abs(middle)
        return Reals(s.add(name, [x.name], **attrs), widened(middle - reach, middle + reach, size, 2.0**-18))

    OPERATORS[name] = 0, operator


smooth("Sigmoid", lambda a: 1 / (1 + np.exp(-a)), 0.25)
smooth("Tanh", np.tanh, 1)
smooth("Elu", lambda a: np.where(a < 0, np.expm1(np.minimum(a, 0)), a), 1, alpha=1.0)
smooth("HardSwish", lambda a: a * np.clip(a / 6 + 0.5, 0, 1), 1.6)
smooth("HardSigmoid", lambda a: np.clip(a * 0.2 + 0.5, 0, 1), 0.2)


@row("Swish")
def swish(s: Sequential, x: Reals) -> Reals:
    share = OPERATORS["Sigmoid"][1](s, x)
    return Reals(s.add("Mul", [x.name, share.name]), _slope(x.bounds, lambda a: a / (1 + np.exp(-a)), 1.1))


@row("Gelu")
def gelu(s: Sequential, x: Reals) -> Reals:
    inner = s.add("Erf", [s.add("Div", [x.name, s.constant(np.float32(np.sqrt(2)))])])
    share = s.add("Mul", [s.add("Add", [inner, s.constant(np.float32(1))]), s.constant(np.float32(0.5))])
    return Reals(s.add("Mul", [x.name, share]), _slope(x.bounds, lambda a: a * (1 + ERF(a / np.sqrt(2))) / 2, 1.15))


def _slope(x: Real, function: Callable[[np.ndarray], np.ndarray], slope: float) -> Real:
    middle, reach = function(x.middle), slope * (x.high - x.low) / 2
    return widened(middle - reach, middle + reach, 1 + x.size, 2.0**-18)


# ---------------------------------------------------------------- two operands
def sums(name: str, sign: int) -> None:
    """A sum or a difference, of operands in either order."""

    def operator(s: Sequential, x: Reals) -> Reals:
        y = other(s, x)
        first, second = (x, y) if s.rng.random() < 0.5 else (y, x)
        a, b = first.bounds, second.bounds
        low, high = (a.low + b.low, a.high + b.high) if sign > 0 else (a.low - b.high, a.high - b.low)
        return Reals(s.add(name, [first.name, second.name]), s.open(low, high, a.size + b.size))

    OPERATORS[name] = 0, operator


sums("Add", 1)
sums("Sub", -1)


def _products(a: Real, b: Real) -> tuple[np.ndarray, np.ndarray]:
    corners = [p * q for p in (a.low, a.high) for q in (b.low, b.high)]
    return np.minimum.reduce(corners), np.maximum.reduce(corners)


@row("Mul")
def mul(s: Sequential, x: Reals) -> Reals:
    y = other(s, x)
    return Reals(s.add("Mul", [x.name, y.name]), s.open(*_products(x.bounds, y.bounds), x.bounds.size * y.bounds.size))


for _name, _pick in (("Max", np.maximum), ("Min", np.minimum)):

    def _picked(s: Sequential, x: Reals, name: str = _name, pick: Any = _pick) -> Reals:
        y = other(s, x)
        a, b = x.bounds, y.bounds
        size, exact = max(a.size, b.size), a.exact and b.exact
        return Reals(s.add(name, [x.name, y.name]), Real(pick(a.low, b.low), pick(a.high, b.high), size, exact))

    OPERATORS[_name] = 0, _picked


@row("Mul by a number")
def scaled(s: Sequential, x: Reals) -> Reals:
    number = s.short(s.pick(0.5, 0.73, -1.3, 2.0), 2)
    ends = x.bounds.low * float(number), x.bounds.high * float(number)
    return Reals(s.add("Mul", [x.name, s.constant(number)]), s.open(*sorted_ends(*ends), 2 * x.bounds.size))


@row("Add a number")
def shifted(s: Sequential, x: Reals) -> Reals:
    number = s.short(s.pick(0.5, -0.73), 2)
    ends = x.bounds.low + float(number), x.bounds.high + float(number)
    return Reals(s.add("Add", [x.name, s.constant(number)]), s.open(*ends, x.bounds.size + 1))


def sorted_ends(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the higher one of each pair."""
    return np.minimum(a, b), np.maximum(a, b)


def other(s: Sequential, x: Reals) -> Reals:
    """A second operand of the same shape, or one that broadcasts: dequantised, or real."""
    whole = next((w for w in reversed(s.kept) if w.shape == x.shape), None)
    kind = s.pick("kept", "kept", "new", "new", "constant", "real", "itself")
    if kind == "kept" and whole is not None:
        return s.real(whole)
    if kind == "itself":
        return x
    if kind == "real":
        return s.numbers(x.shape)
    shape = x.shape
    if kind == "constant" and len(shape) > 1:
        shape = tuple(d if i == 1 else 1 for i, d in enumerate(shape))
    return s.real(s.integers(shape, constant=kind == "constant"))


@row("Concat")
def concat(s: Sequential, x: Reals) -> Reals:
    y = other(s, x)
    if y.shape != x.shape:
        y = x
    axis, (a, b) = min(1, len(x.shape) - 1), (x.bounds, y.bounds)
    ends = [np.concatenate(pair, axis) for pair in ((a.low, b.low), (a.high, b.high))]
    bounds = Real(*ends, max(a.size, b.size), a.exact and b.exact)
    return Reals(s.add("Concat", [x.name, y.name], axis=axis), bounds)


# ---------------------------------------------------------------- movements
@row("Transpose")
def transpose(s: Sequential, x: Reals) -> Reals:
    perm = [int(i) for i in s.rng.permutation(len(x.shape))]
    return moved(s, x, "Transpose", lambda a: a.transpose(perm), perm=perm)


@row("Reshape")
def reshape(s: Sequential, x: Reals) -> Reals:
    sizes = (x.shape[0], -1) if len(x.shape) > 2 else (x.shape[0], 1, -1)
    return moved(s, x, "Reshape", lambda a: a.reshape(sizes), s.constant(np.array(sizes, "int64")))


@row("Slice")
def slices(s: Sequential, x: Reals) -> Reals:
    start = 1 if x.shape[-1] > 1 else 0
    inputs = [s.constant(np.array([v], "int64")) for v in (start, x.shape[-1], len(x.shape) - 1)]
    return moved(s, x, "Slice", lambda a: a[..., start:], *inputs)


@row("Gather")
def gather(s: Sequential, x: Reals) -> Reals:
    indices = s.rng.integers(0, x.shape[-1], 3)
    return moved(s, x, "Gather", lambda a: np.take(a, indices, -1), s.constant(indices.astype("int64")), axis=-1)


@row("Pad", 4)
def pad(s: Sequential, x: Reals) -> Reals:
    value, widths = s.short(s.pick(0, 0, 0.37), 2), [(0, 0), (0, 0), (1, 0), (0, 2)]
    pads = s.constant(np.array([w[side] for side in (0, 1) for w in widths], "int64"))
    return moved(s, x, "Pad", lambda a: np.pad(a, widths, constant_values=value), pads, s.constant(value))


# ---------------------------------------------------------------- windows and reductions
def windows(x: np.ndarray, kernel: tuple[int, int], stride: int = 1, pads: int = 0, fill: float = 0) -> np.ndarray:
    """The windows of an image, as the last two axes."""
    padded = np.pad(x, [(0, 0), (0, 0), (pads, pads), (pads, pads)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))[:, :, ::stride, ::stride]


def _window(s: Sequential, x: Reals) -> tuple[tuple[int, int], int, int]:
    kernel = min(s.pick(2, 3), x.shape[2]), min(2, x.shape[3])
    return kernel, s.pick(1, 2), s.pick(0, 1) if min(kernel) > 1 else 0


@row("MaxPool", 4)
def max_pool(s: Sequential, x: Reals) -> Reals:
    kernel, stride, pads = _window(s, x)
    attrs = {"kernel_shape": kernel, "strides": [stride] * 2, "pads": [pads] * 4}
    return moved(s, x, "MaxPool", lambda a: windows(a, kernel, stride, pads, -np.inf).max((-1, -2)), **attrs)


@row("AveragePool", 4)
def average_pool(s: Sequential, x: Reals) -> Reals:
    kernel, stride, pads = _window(s, x)
    counts_pads = s.pick(0, 1)
    attrs = {"kernel_shape": kernel, "strides": [stride] * 2, "pads": [pads] * 4, "count_include_pad": counts_pads}
    ones = windows(np.ones(x.shape), kernel, stride, pads).sum((-1, -2))
    counts = math.prod(kernel) if counts_pads else ones
    ends = [windows(a, kernel, stride, pads).sum((-1, -2)) / counts for a in (x.bounds.low, x.bounds.high)]
    count = math.prod(kernel) if counts_pads or not pads else 0
    bounds = s.open(*ends, x.bounds.size, count or 3)
    return Reals(s.add("AveragePool", [x.name], **attrs), bounds)


def mean(name: str, op: str, rank: int, reduce: Callable[[np.ndarray], np.ndarray], **attrs: Any) -> None:
    """A mean over some axes."""

    def operator(s: Sequential, x: Reals) -> Reals:
        ends = reduce(x.bounds.low), reduce(x.bounds.high)
        count = x.bounds.low.size // max(ends[0].size, 1)
        return Reals(s.add(op, [x.name], **attrs), s.open(*ends, x.bounds.size, count))

    OPERATORS[name] = rank, operator


mean("GlobalAveragePool", "GlobalAveragePool", 4, lambda a: a.mean((2, 3), keepdims=True))
mean("ReduceMean", "ReduceMean", 0, lambda a: a.mean(-1, keepdims=True), axes=[-1], keepdims=1)
mean("ReduceMean without axes", "ReduceMean", 4, lambda a: a.mean((2, 3)), axes=[2, 3], keepdims=0)
OPERATORS["GlobalMaxPool"] = 4, lambda s, x: moved(s, x, "GlobalMaxPool", lambda a: a.max((2, 3), keepdims=True))
OPERATORS["ReduceMax"] = (
    0,
    lambda s, x: moved(s, x, "ReduceMax", lambda a: a.max(-1, keepdims=True), axes=[-1], keepdims=1),
)


@row("Resize nearest", 4)
def resize_nearest(s: Sequential, x: Reals) -> Reals:
    attrs = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    scales = s.constant(np.array([1, 1, 2, 2], "float32"))
    return moved(s, x, "Resize", lambda a: a.repeat(2, 2).repeat(2, 3), "", scales, **attrs)


@row("Resize linear", 4)
def resize_linear(s: Sequential, x: Reals) -> Reals:
    def resized(a: np.ndarray) -> np.ndarray:
        for axis in (2, 3):
            places = np.clip((np.arange(2 * a.shape[axis]) + 0.5) / 2 - 0.5, 0, a.shape[axis] - 1)
            first = np.floor(places).astype(int)
            share = (places - first).reshape([-1 if i == axis else 1 for i in range(4)])
            second = np.minimum(first + 1, a.shape[axis] - 1)
            a = np.take(a, first, axis) * (1 - share) + np.take(a, second, axis) * share
        return a

    attrs = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    name = s.add("Resize", [x.name, "", s.constant(np.array([1, 1, 2, 2], "float32"))], **attrs)
    return Reals(name, s.open(resized(x.bounds.low), resized(x.bounds.high), x.bounds.size))


# ---------------------------------------------------------------- normalisations
def _along(x: Real, axes: tuple[int, ...], result: np.ndarray, room: np.ndarray, span: tuple[float, float]) -> Real:
    """Where the numbers along the axes are not certain, nothing is known but the span of the function."""
    certain = (x.low == x.high).all(axes, keepdims=True)
    low, high = np.where(certain, result - room, span[0]), np.where(certain, result + room, span[1])
    return Real(low, high, float(np.abs(result).max(initial=1)), exact=False)


@row("Softmax")
def softmax(s: Sequential, x: Reals) -> Reals:
    axis = s.pick(-1, int(s.rng.integers(len(x.shape))))
    e = np.exp(x.bounds.middle - x.bounds.middle.max(axis, keepdims=True))
    shares = e / e.sum(axis, keepdims=True)
    bounds = _along(x.bounds, (axis,), shares, 2.0**-17 * shares + 1e-30, (0, 1))
    return Reals(s.add("Softmax", [x.name], axis=axis), bounds)


@row("LayerNormalization")
def layer_norm(s: Sequential, x: Reals) -> Reals:
    axis, a = s.pick(-1, -1, 1), x.bounds.middle
    axes, sizes = tuple(range(axis % a.ndim, a.ndim)), a.shape[axis:]
    gamma, beta = ((s.rng.standard_normal(sizes) + shift).astype("float32") for shift in (1, 0))
    deviation = np.sqrt(a.var(axes, keepdims=True) + 1e-5)
    result = (a - a.mean(axes, keepdims=True)) / deviation * gamma + beta
    room = 2.0**-20 * (1 + np.abs(result) + x.bounds.size / deviation * np.abs(gamma))
    most = float(np.sqrt(math.prod(sizes)) * np.abs(gamma).max() + np.abs(beta).max())
    name = s.add("LayerNormalization", [x.name, s.constant(gamma), s.constant(beta)], axis=axis, epsilon=1e-5)
    return Reals(name, _along(x.bounds, axes, result, room, (-most, most)))


# ---------------------------------------------------------------- products
def weights(s: Sequential, shape: tuple[int, ...], axis: int) -> Reals:
    """Dequantised weights with one scale, or one for each slice along ``axis``."""
    per_channel, dtype = s.rng.random() < 0.5, s.pick("int8", "int8", "uint8")
    low, point = (-127, 0) if dtype == "int8" else (0, 128)
    w = s.rng.integers(low, low + 255, shape).astype(dtype)
    count = shape[axis] if per_channel else 1
    scale = s.unit(s.rng.uniform(0.5, 1.5, count) / 127 / math.sqrt(math.prod(shape) / shape[axis]))
    points = np.full(count, point, dtype)
    if not per_channel:
        scale, points = scale.reshape(()), points.reshape(())
    names = [s.constant(w), s.constant(scale), s.constant(points)]
    exact = w.astype("float64")
    bounds = real(Whole(exact, exact, dtype, scale, points, axis if per_channel else None))
    return Reals(s.add("DequantizeLinear", names, **({"axis": axis} if per_channel else {})), bounds)


def biased(s: Sequential, inputs: list[str], columns: int) -> np.ndarray | float:
    """A bias, of real numbers or of dequantised ones, or none."""
    kind, bias = s.pick("none", "real", "int32"), s.short(s.rng.standard_normal(columns) * 0.3)
    if kind == "none":
        return 0.0
    if kind == "real":
        inputs.append(s.constant(bias))
        return bias.astype("float64")
    scale = s.unit(1e-4)
    whole = np.rint(bias / scale).astype("int32")
    inputs.append(s.add("DequantizeLinear", [s.constant(whole), s.constant(scale)]))
    return whole.astype("float64") * float(scale)


def linear(
    s: Sequential,
    x: Real,
    w: np.ndarray,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    bias: np.ndarray | float = 0.0,
) -> Real:
    """The sums of products with weights that are known."""
    more, less = np.maximum(w, 0), np.minimum(w, 0)
    low, high = product(x.low, more) + product(x.high, less), product(x.high, more) + product(x.low, less)
    size = product(np.maximum(np.abs(x.low), np.abs(x.high)), np.abs(w)) + np.abs(bias)
    return s.open(low + bias, high + bias, size)


def convolution(name: str, kernel: int, is_depthwise: bool) -> None:
    """A convolution with such a kernel, where the image is large enough."""

    def operator(s: Sequential, x: Reals) -> Reals:
        channels = x.shape[1]
        groups, outputs = (channels, channels) if is_depthwise else (1, int(s.rng.integers(1, 20)))
        side, pads = min(kernel, *x.shape[2:]) if kernel > 1 else 1, 0
        if kernel > 1 and side == kernel:
            pads = s.pick(0, 1)
        w = weights(s, (outputs, channels // groups, side, side), 0)
        inputs = [x.name, w.name]
        bias = biased(s, inputs, outputs)
        stride = s.pick(1, 1, 2)
        attrs = {"pads": [pads] * 4, "strides": [stride] * 2, "group": groups}
        shaped = np.reshape(bias, (-1, 1, 1))
        bounds = linear(s, x.bounds, w.bounds.low, lambda a, b: convolved(a, b, stride, pads, groups), shaped)
        return Reals(s.add("Conv", inputs, **attrs), bounds)

    OPERATORS[name] = 4, operator


convolution("Conv", 3, False)
convolution("Conv 1x1", 1, False)
convolution("Conv depthwise", 3, True)


@row("ConvTranspose", 4)
def conv_transpose(s: Sequential, x: Reals) -> Reals:
    n, channels, h, width = x.shape
    w = weights(s, (channels, 5, 2, 2), 1)

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("nchw,coij->nohiwj", a, b).reshape(n, 5, 2 * h, 2 * width)

    return Reals(s.add("ConvTranspose", [x.name, w.name], strides=[2, 2]), linear(s, x.bounds, w.bounds.low, product))


@row("MatMul")
def matmul(s: Sequential, x: Reals) -> Reals:
    w = weights(s, (x.shape[-1], 7), 1)
    return Reals(s.add("MatMul", [x.name, w.name]), linear(s, x.bounds, w.bounds.low, np.matmul))


@row("Gemm", 2)
def gemm(s: Sequential, x: Reals) -> Reals:
    w = weights(s, (9, x.shape[1]), 0)
    inputs = [x.name, w.name]
    bias = biased(s, inputs, 9)
    return Reals(s.add("Gemm", inputs, transB=1), linear(s, x.bounds, w.bounds.low, lambda a, b: a @ b.T, bias))


@row("MatMul of two")
def matmul_of_two(s: Sequential, x: Reals) -> Reals:
    y = s.real(s.integers((*x.shape[:-2], x.shape[-1], 6) if len(x.shape) > 1 else (x.shape[-1], 6)))
    return Reals(s.add("MatMul", [x.name, y.name]), linear(s, x.bounds, y.bounds.low, np.matmul))


# ---------------------------------------------------------------- steps before the integers
@row("Conv and Relu", 4)
def conv_relu(s: Sequential, x: Reals) -> Reals:
    return OPERATORS["Relu"][1](s, OPERATORS["Conv"][1](s, x))


@row("Add and Relu")
def add_relu(s: Sequential, x: Reals) -> Reals:
    return OPERATORS["Relu"][1](s, OPERATORS["Add"][1](s, x))


@row("Conv and Clip", 4)
def conv_clip(s: Sequential, x: Reals) -> Reals:
    return OPERATORS["Clip"][1](s, OPERATORS["Conv"][1](s, x))
