"""The single calls of an operator: its example, calls with the attributes and shapes at which backends differ (axes,
broadcasts, layouts, windows), and both in every dtype, rank and size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...frontends.onnx import walk  # noqa: F401 - declares the operators that are kept whole
from ...ir.tvm_compat import dtype_of
from ...whole.table import DOMAIN, NAME, RELU_OF_NUMBERS, operator, relu_of_numbers
from ..op_calls import BINARY, NEEDS_BUILDER, OPS, REFERENCE, const, floats, positive
from .judge import Case, lifted, resized

#: what, function of operands, operands
Call = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]

#: shapes of two operands that broadcast
_BROADCASTS = [
    ((3, 5), (3, 5)),
    ((3, 5), (1, 5)),
    ((3, 5), (3, 1)),
    ((5,), (3, 5)),
    ((), (3, 5)),
    ((3, 5), ()),
    ((2, 1, 5), (3, 1)),
    ((1,), (2, 3, 5, 7)),
    ((2, 3, 4, 4), (3, 1, 1)),
    ((0, 5), (5,)),
    ((2, 1, 3, 1, 2), (1, 5, 1, 7, 2)),
]
_REDUCTIONS = ("max", "mean", "min", "prod", "std", "sum", "variance")
#: recurrent operator → its gates
_GATES = {"onnx.LSTM": 4, "onnx.GRU": 3, "onnx.RNN": 1}
#: operator → its domain, and which input says the positions
_ROTARY = {"onnx.RotaryEmbedding": ("", 3), "onnx.com.microsoft.RotaryEmbedding": ("com.microsoft", 1)}
_PRODUCTS = [
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((2, 7), (7,)),
    ((1, 1), (1, 1)),
    ((13, 17), (17, 11)),
    ((2, 3, 5), (2, 5, 7)),
    ((2, 1, 3, 5), (4, 5, 7)),
    ((0, 5), (5, 3)),
    ((3, 0), (0, 5)),
]


def special_calls(op: str) -> Iterator[Call]:
    """The rows for an operator, given without ``relax.``."""
    if op in BINARY or op == "power":
        make = _relax(op)
        for a, b in _BROADCASTS:
            yield f"shapes {a} and {b}", make, (positive(*a), positive(*b))
        yield "a constant number second", lambda x: make(x, const(2, dtype_of(x.ty))), (positive(3, 5),)
        yield "a constant number first", lambda x: make(const(2, dtype_of(x.ty)), x), (positive(3, 5),)
        yield "one operand, twice", lambda x: make(x, x), (positive(3, 5),)
        if op in ("add", "multiply", "subtract"):
            for dtype in ("int8", "uint8", "int16"):
                yield f"{dtype} that wraps, and a cast", lambda *xs: R.astype(make(*xs), "float32"), _extremes(dtype)
    elif op in _REDUCTIONS:
        make = _relax(op)
        for axis in (None, [0], [-1], [0, 2], [1, 2, 3], []):
            for keep in (False, True):
                yield f"axis {axis}, keepdims {keep}", _reduction(make, axis, keep), (positive(2, 3, 5, 4),)
        yield "an axis of size 1", _reduction(make, [1], False), (positive(3, 1, 5),)
        yield "every axis of a scalar", _reduction(make, None, False), (positive(),)
    elif op == "matmul":
        for a, b in _PRODUCTS:
            yield f"shapes {a} and {b}", R.matmul, (floats(*a), floats(*b))
        yield "a transposed operand", lambda a, b: R.matmul(a, R.permute_dims(b)), (floats(3, 5), floats(7, 5))
    elif op in _GATES:
        for direction, ways in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            yield direction, _recurrent(op, direction), _layer(_GATES[op], ways)
    elif op == f"onnx.{DOMAIN}.{NAME}":
        for what, window in (("all of the cache", -1), ("a window", 3)):
            yield what, _cached_attention(window), _cache()
    elif op in _ROTARY:
        for what, interleaved in (("halves of heads", 0), ("neighbours", 1)):
            yield what, _rotary(op, interleaved), _rotated(op)
    else:
        yield from _ROWS.get(op, [])


def _recurrent(op: str, direction: str) -> Callable[..., Any]:
    entry = operator("", op.removeprefix("onnx."))
    assert entry is not None
    wanted = [True] * (3 if op == "onnx.LSTM" else 2)
    return lambda *inputs: entry.call(inputs, {"hidden_size": 5, "direction": direction}, wanted, "the example")


def _layer(gates: int, ways: int) -> tuple[np.ndarray, ...]:
    """Seven steps of three sequences, and the weights and biases of five hidden units."""
    weights = floats(ways, gates * 5, 4), floats(ways, gates * 5, 5), floats(ways, 2 * gates * 5)
    return (floats(7, 3, 4), *weights)


def _cached_attention(window: int) -> Callable[..., Any]:
    entry = operator(DOMAIN, NAME)
    assert entry is not None
    attrs = {"scale": 0.0, "local_window_size": window, "softcap": 0.0, "causal": 1, "qk_output": 0}
    wanted = [True, True, True, False]
    return lambda *inputs: entry.call([*inputs, relax.const([9], "int64"), None, None], attrs, wanted, "the example")


def _rotary(op: str, interleaved: int) -> Callable[..., Any]:
    entry = operator(_ROTARY[op][0], "RotaryEmbedding")
    assert entry is not None
    return lambda *inputs: entry.call(inputs, {"interleaved": interleaved}, [True], "the example")


def _rotated(op: str) -> tuple[np.ndarray, ...]:
    """Five rows for each of two sequences, their places, and the tables of seven places."""
    operands = [floats(2, 3, 5, 8), floats(7, 4), floats(7, 4)]
    operands.insert(_ROTARY[op][1], np.arange(10).reshape(2, 5) % 7)
    return tuple(operands)


def _cache() -> tuple[np.ndarray, ...]:
    """Two rows for each of two sequences, which fill a cache of nine rows; queries in two groups."""
    rows, past = (2, 2, 2, 8), (2, 2, 9, 8)
    start = np.array([7, 7])
    return floats(2, 4, 2, 8), floats(*rows), floats(*rows), floats(*past), floats(*past), start, start + 2


def _extremes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    numbers = np.array([info.min, info.max, info.max // 2, 1, 3], dtype)
    return numbers, numbers[::-1].copy()


def _relax(op: str) -> Any:
    found: Any = R
    for part in op.split("."):
        found = getattr(found, part)
    return found


def _reduction(make: Any, axis: Any, keep: bool) -> Callable[..., Any]:
    return lambda x: make(x, axis=axis, keepdims=keep)


def _each_axis(make: Callable[..., Any], *arrays: np.ndarray) -> list[Call]:
    rank = arrays[0].ndim
    return [(f"axis {axis}", lambda *xs, axis=axis: make(*xs, axis), arrays) for axis in (*range(rank), -1)]


def _convolution(what: str, x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> Call:
    return what, lambda a, b: R.nn.conv2d(a, b, **attrs), (floats(*x), floats(*w))


def _deconvolution(what: str, x: tuple[int, ...], w: tuple[int, ...], **attrs: Any) -> Call:
    return what, lambda a, b: R.nn.conv2d_transpose(a, b, **attrs), (floats(*x), floats(*w))


def _pools(kind: str) -> list[Call]:
    make = getattr(R.nn, f"{kind}_pool2d")
    window: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2)}
    rows: list[tuple[str, dict[str, Any]]] = [
        ("no padding", window),
        ("asymmetric padding", {**window, "padding": (0, 1, 1, 0)}),
        ("ceil_mode", {**window, "ceil_mode": True}),
        ("ceil_mode with padding", {**window, "ceil_mode": True, "padding": (1, 1)}),
        ("dilation", {**window, "dilation": (2, 2)}),
        ("count_include_pad", {**window, "count_include_pad": True, "padding": (1, 1)}),
        ("layout NHWC", {**window, "layout": "NHWC"}),
        ("a window as large as the image", {"pool_size": (8, 8)}),
    ]
    return [(what, lambda x, attrs=attrs: make(x, **attrs), (floats(2, 8, 8, 8),)) for what, attrs in rows]


def _norm(axes: list[int], shape: tuple[int, ...], width: tuple[int, ...]) -> Call:
    operands = (floats(*shape), positive(*width), floats(*width))
    return f"axes {axes} of {shape}", lambda x, g, b: R.nn.layer_norm(x, g, b, axes=axes), operands


def _batch_norm(axis: int) -> Call:
    n = (2, 3, 5, 4)[axis]
    operands = (floats(2, 3, 5, 4), positive(n), floats(n), floats(n), positive(n))
    return f"axis {axis}", lambda *xs: R.nn.batch_norm(*xs, axis=axis, training=False), operands


_X = floats(2, 3, 5)
_ROWS: dict[str, list[Call]] = {
    RELU_OF_NUMBERS: [("some numbers", relu_of_numbers, (floats(3, 5),))],
    "ewise_fma": [("equal shapes", R.ewise_fma, (floats(3, 5), floats(3, 5), floats(3, 5)))],
    "astype": [(f"to {t}", lambda x, t=t: R.astype(x, t), (positive(3, 5),)) for t in ("float16", "int64", "bool")],
    "clip": [
        ("bounds beyond every value", lambda x: R.clip(x, -1e30, 1e30), (floats(3, 5),)),
        ("bounds that are whole numbers", lambda x: R.clip(x, 0, 6), (positive(3, 5),)),
        ("equal bounds", lambda x: R.clip(x, 0.25, 0.25), (floats(3, 5),)),
    ],
    "nn.leakyrelu": [(f"alpha {a}", lambda x, a=a: R.nn.leakyrelu(x, a), (floats(3, 5),)) for a in (0.0, 1.0, 2.5)],
    "nn.prelu": [
        ("the last axis", lambda x, s: R.nn.prelu(x, s, axis=-1), (floats(2, 3, 4), floats(4))),
        ("one slope", lambda x, s: R.nn.prelu(x, s, axis=1), (floats(2, 1, 4), floats(1))),
    ],
    "nn.softmax": _each_axis(R.nn.softmax, _X),
    "nn.log_softmax": _each_axis(R.nn.log_softmax, _X),
    "concat": [
        *_each_axis(lambda x, y, axis: R.concat([x, y], axis), _X, floats(2, 3, 5)),
        ("three, of other sizes", lambda *xs: R.concat(list(xs), 1), (_X, floats(2, 1, 5), floats(2, 7, 5))),
        ("one tensor, twice", lambda x: R.concat([x, x], 0), (_X,)),
        ("an empty one", lambda x, y: R.concat([x, y], 1), (_X, floats(2, 0, 5))),
    ],
    "split": [
        *_each_axis(lambda x, axis: R.split(x, [1], axis), _X),
        ("equal parts", lambda x: R.split(x, 3, 1), (_X,)),
        ("an empty part", lambda x: R.split(x, [0, 2], 1), (_X,)),
    ],
    "permute_dims": [
        ("reversed", R.permute_dims, (_X,)),
        ("the identity", lambda x: R.permute_dims(x, [0, 1, 2]), (_X,)),
        ("negative axes", lambda x: R.permute_dims(x, [-1, 0, -2]), (_X,)),
    ],
    "reshape": [
        ("to rank 1", lambda x: R.reshape(x, (-1,)), (_X,)),
        ("to rank 5", lambda x: R.reshape(x, (1, 3, 1, 2, 5)), (_X,)),
        ("to a scalar", lambda x: R.reshape(x, ()), (floats(1, 1),)),
        ("of nothing", lambda x: R.reshape(x, (5, 0)), (floats(0, 5),)),
    ],
    "squeeze": [("every axis of size 1", R.squeeze, (floats(1, 3, 1),)), ("to a scalar", R.squeeze, (floats(1, 1),))],
    "expand_dims": [("behind the last", lambda x: R.expand_dims(x, -1), (_X,))],
    "broadcast_to": [
        ("more axes", lambda x: R.broadcast_to(x, (2, 3, 5)), (floats(5),)),
        ("from a scalar", lambda x: R.broadcast_to(x, (2, 3)), (floats(),)),
        ("the same shape", lambda x: R.broadcast_to(x, (3, 5)), (floats(3, 5),)),
    ],
    "strided_slice": [
        ("backwards", lambda x: R.strided_slice(x, [1], [2], [-4], [-1]), (_X,)),
        ("beyond the end", lambda x: R.strided_slice(x, [2], [1], [99]), (_X,)),
        ("negative bounds", lambda x: R.strided_slice(x, [-1], [-3], [-1]), (_X,)),
        ("nothing", lambda x: R.strided_slice(x, [1], [2], [2]), (_X,)),
    ],
    "nn.pad": [
        ("zeros", lambda x: R.nn.pad(x, [0, 0, 1, 2]), (floats(3, 5),)),
        ("nothing", lambda x: R.nn.pad(x, [0, 0, 0, 0]), (floats(3, 5),)),
        ("reflect", lambda x: R.nn.pad(x, [0, 0, 0, 0, 1, 1, 2, 2], "reflect"), (floats(1, 2, 5, 5),)),
    ],
    "index_tensor": [("the first axis", lambda x, i: R.index_tensor(x, [i]), (_X, np.array([1, 0, 1])))],
    "image.resize3d": [("twice as large", lambda x: R.image.resize3d(x, (4, 6, 10)), (floats(1, 2, 2, 3, 5),))],
    "where": [
        ("a broadcast condition", R.where, (np.array([[True], [False], [True]]), floats(3, 5), floats(3, 5))),
        ("a scalar", lambda c, x: R.where(c, x, const(0)), (floats(3, 5) > 0, floats(3, 5))),
    ],
    "nn.layer_norm": [
        _norm([-1], (2, 3, 7), (7,)),
        _norm([-2, -1], (2, 3, 5), (3, 5)),
        _norm([1], (2, 3, 5), (3,)),
        _norm([-1], (3, 1), (1,)),
    ],
    "nn.batch_norm": [_batch_norm(axis) for axis in (0, 1, 2, 3, -1)],
    "nn.conv2d": [
        _convolution("1 by 1", (2, 5, 7, 7), (3, 5, 1, 1)),
        _convolution("as many groups as channels", (1, 6, 8, 8), (6, 1, 3, 3), groups=6, padding=1),
        _convolution("two filters a channel", (1, 3, 8, 8), (6, 1, 3, 3), groups=3),
        _convolution("dilation", (1, 3, 11, 11), (4, 3, 3, 3), dilation=2),
        _convolution("asymmetric padding", (1, 3, 8, 8), (4, 3, 3, 3), padding=(0, 1, 2, 0)),
        _convolution("other strides and sides", (1, 3, 9, 7), (4, 3, 3, 1), strides=(2, 1)),
        _convolution("layout NHWC", (1, 8, 8, 3), (3, 3, 3, 4), padding=1, data_layout="NHWC", kernel_layout="HWIO"),
        _convolution("layout NHWC, filters OHWI", (1, 8, 8, 3), (4, 3, 3, 3), data_layout="NHWC", kernel_layout="OHWI"),
        _convolution("a result in float32", (1, 3, 8, 8), (4, 3, 3, 3), out_dtype="float32"),
    ],
    "nn.conv2d_transpose": [
        _deconvolution("output padding", (1, 3, 5, 5), (3, 4, 3, 3), strides=2, output_padding=1),
        _deconvolution("groups", (1, 4, 5, 5), (4, 2, 3, 3), groups=2),
        _deconvolution("dilation", (1, 3, 5, 5), (3, 4, 3, 3), dilation=2),
        _deconvolution("asymmetric padding", (1, 3, 5, 5), (3, 4, 3, 3), padding=(0, 1, 2, 1)),
    ],
    "nn.max_pool2d": _pools("max"),
    "nn.avg_pool2d": _pools("avg"),
    **{
        f"nn.adaptive_avg_pool{d}d": [
            (f"to {n}", lambda x, d=d, n=n: _relax(f"nn.adaptive_avg_pool{d}d")(x, [n] * d), (floats(1, 2, *[6] * d),))
            for n in (1, 3, 4, 6)
        ]
        for d in (1, 2, 3)
    },
    "dequantize": [
        ("one scale", lambda x: R.dequantize(x, const(0.5), const(0, dtype_of(x.ty)), 0), (_X.astype("int8"),)),
    ],
    "take": [
        (f"axis {axis}", lambda x, axis=axis: R.take(x, relax.const(np.array([1, 0, 1]), "int64"), axis), (_X,))
        for axis in (0, 1, 2)
    ],
}

#: what the operands that are float32 in the example become
_DTYPES = ("float16", "float64", "int8", "uint8", "int32", "int64", "bool")
#: shapes of the only operand
_SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (1, 1), (13, 17), (2, 3, 5, 7), (1, 2, 3, 1, 2, 3), (0, 5)]
#: sizes of the leading axis
_SIZES = (1, 7, 0)

#: operators that TVM cannot compile → what to compare them with
_BY: dict[str, Any] = {**REFERENCE, "ewise_fma": lambda a, b, c: R.add(R.multiply(a, b), c)}


def example(op: str) -> Case | None:
    """The plainest call of an operator, ``None`` where the table has none."""
    short = op.removeprefix("relax.")
    by = lifted(_BY[short]) if short in _BY else None
    if short in OPS and OPS[short][0] not in NEEDS_BUILDER:
        function, arrays = OPS[short]
        return Case(op, "the example", lifted(function), arrays, by=by)
    for what, function, arrays in special_calls(short):
        return Case(op, what, lifted(function), arrays, by=by)
    return None


def written_cases(op: str) -> list[Case]:
    """The plainest call of an operator, and those in which something is special about the operator."""
    base, special = example(op), special_calls(op.removeprefix("relax."))
    if base is None:
        return []
    return [base, *(replace(base, what=w, function=lifted(f), arrays=a) for w, f, a in special)]


def call_cases(op: str) -> list[Case]:
    """Every case of an operator that Relax accepts."""
    written = written_cases(op)
    cases = {c.what: c for c in (*written, *(c for base in written[:1] for c in _variations(base)))}
    return [c for c in cases.values() if c.main is not None and c.reference is not None]


def _variations(base: Case) -> Iterator[Case]:
    first = base.arrays[0]
    for dtype in _DTYPES:
        arrays = tuple(_as(a, dtype) for a in base.arrays)
        if any(a.dtype != b.dtype for a, b in zip(arrays, base.arrays)):
            yield replace(base, what=f"dtype {dtype}", arrays=arrays)
    if first.ndim:
        yield replace(base, what="a symbolic leading dimension", symbolic=True)
    if len(base.arrays) > 1:
        rest = tuple(range(1, len(base.arrays)))
        yield replace(base, what="constants but for the first operand", constants=rest)
        yield replace(base, what="a constant first operand", constants=(0,))
    if len({a.dtype.kind for a in base.arrays} - {"b"}) > 1:
        return  # an index of a larger axis would be out of the bounds of a smaller one
    if len(base.arrays) == 1:
        for shape in _SHAPES:
            yield replace(base, what=f"shape {shape}", arrays=(resized(first, shape),))
        return
    yield replace(base, what="one more axis", arrays=tuple(resized(a, (2, *a.shape)) for a in base.arrays))
    for size in _SIZES if first.ndim else ():
        leading = [a.ndim > 0 and a.shape[0] == first.shape[0] for a in base.arrays]
        arrays = tuple(
            resized(a, (size, *a.shape[1:])) if change else a for a, change in zip(base.arrays, leading, strict=True)
        )
        yield replace(base, what=f"a leading dimension of {size}", arrays=arrays)


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    """``array`` in another dtype where it is float32, without a zero to divide by."""
    if array.dtype != "float32":
        return array
    if dtype == "bool":
        return np.asarray(array > np.median(array))
    if dtype.startswith("float"):
        return array.astype(dtype)
    whole = np.trunc(array * 4)
    whole = np.where(whole == 0, 1, whole)
    return np.abs(whole).astype(dtype) if dtype == "uint8" else whole.astype(dtype)
