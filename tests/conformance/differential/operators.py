"""The operators that the generator calls: one row for each family draws operands and attributes that Relax accepts."""

from __future__ import annotations

from collections.abc import Callable

from .draw import Draw, NoFit, Value

__all__ = ["ROWS", "calls_of_a_chain"]

Row = Callable[[Draw], object]
#: (how often, row)
ROWS: list[tuple[int, Row]] = []


def row(weight: int) -> Callable[[Row], Row]:
    def register(function: Row) -> Row:
        ROWS.append((weight, function))
        return function

    return register


# ---------------------------------------------------------------- element by element
#: operator -> attributes to choose from; the result of those in _EXACT has no rounding
_UNARY: dict[str, list[dict]] = {
    "nn.relu": [{}],
    "abs": [{}],
    "negative": [{}],
    "sigmoid": [{}],
    "tanh": [{}],
    "nn.gelu": [{}],
    "nn.gelu_tanh": [{}],
    "nn.silu": [{}],
    "nn.softplus": [{}, {"beta": 2.0, "threshold": 15.0}],
    "nn.leakyrelu": [{"alpha": 0.25}, {"alpha": 0.01}],
    "nn.selu": [{}],
    "clip": [{"min": 0, "max": 6}, {"min": -1, "max": 1}, {"min": -0.5, "max": 3.5}],
    "square": [{}],
    "erf": [{}],
    "sin": [{}],
}
_EXACT = {"nn.relu", "abs", "negative", "clip"}
_STEPS = ("round", "floor", "ceil", "sign", "trunc")  # a last digit decides: on exact values only


def unary(d: Draw, x: Value) -> Value:
    name = d.choice(list(_UNARY))
    attrs = d.choice(_UNARY[name])
    return d.emit(name, x, inexact=name not in _EXACT and name != "square", product=name == "square", **attrs)


@row(8)
def elementwise(d: Draw) -> object:
    return unary(d, d.floating())


@row(1)
def step_function(d: Draw) -> object:
    return d.emit(d.choice(_STEPS), d.value(lambda v: v.is_float and v.is_exact))


@row(2)
def partial_function(d: Draw) -> object:
    """log, sqrt and the like where they are defined."""
    x = d.floating()
    safe = d.emit("add", d.emit("abs", x), d.operand((), x.dtype, 0.5, constant=True))
    name = d.choice(["log", "sqrt", "rsqrt", "exp", "power"])
    if name == "exp":
        return d.emit("exp", d.emit("clip", x, min=-4, max=4), inexact=True)
    if name == "power":
        return d.emit(name, safe, d.operand((), x.dtype, d.choice([2.0, 0.5, -0.5, 3.0]), constant=True), inexact=True)
    return d.emit(name, safe, inexact=True)


@row(9)
def binary(d: Draw) -> object:
    x = d.value(lambda v: v.dtype != "bool")
    return arithmetic(d, x)


def arithmetic(d: Draw, x: Value) -> Value:
    y = d.broadcasting(x)
    name = d.choice(["add", "multiply", "subtract", "maximum", "minimum", "divide"])
    if name == "divide":
        if not x.is_float:
            raise NoFit
        y = d.emit("add", d.emit("abs", y), d.operand((), y.dtype, 0.5, constant=True))
        return d.emit(name, x, y, inexact=True)
    if d.seldom(4):
        x, y = y, x
    return d.emit(name, x, y, product=name == "multiply")


def calls_of_a_chain(d: Draw) -> None:
    """Post-op material: one call on the newest value."""
    x = d.values[-1]
    if not x.is_float:
        raise NoFit
    if d.often(2):
        unary(d, x)
    else:
        arithmetic(d, x)


@row(2)
def comparison(d: Draw) -> object:
    x = d.value(lambda v: v.is_exact and v.dtype != "bool")
    y = d.broadcasting(x)
    if not y.is_exact:
        raise NoFit
    condition = d.emit(d.choice(["greater", "greater_equal", "less", "less_equal", "equal", "not_equal"]), x, y)
    if d.seldom(3):
        return condition
    if d.seldom(3):
        return d.emit("astype", condition, dtype=d.choice(["float32", "uint8", "int32"]))
    a = d.floating()
    return d.emit("where", condition, a, d.broadcasting(a))


@row(1)
def conversion(d: Draw) -> object:
    x = d.value()
    targets = ["float32", "float16", "bfloat16"]
    if x.is_exact:
        targets += ["int32", "int8", "bool", "int64"]
    target = d.choice([t for t in targets if t != x.dtype])
    narrower = target in ("float16", "bfloat16")
    if target == "int8":
        x = d.emit("clip", x, min=-100, max=100) if x.is_float else x
    y = d.emit("astype", x, dtype=target, inexact=narrower)
    return d.emit("astype", y, dtype="float32") if d.often(3) and narrower else y


# ---------------------------------------------------------------- what has weights
def _window(d: Draw, spatial: int) -> dict:
    return {
        "strides": [d.choice([1, 1, 2, 3]) for _ in range(spatial)],
        "padding": [d.choice([0, 1, 2]) for _ in range(2 * spatial)] if d.seldom(3) else [d.choice([0, 1])] * spatial,
        "dilation": [d.choice([1, 1, 1, 2]) for _ in range(spatial)],
    }


@row(6)
def convolution(d: Draw) -> object:
    x = d.value(lambda v: v.dtype == "float32" and v.rank in (3, 4, 5))
    spatial = x.rank - 2
    last = d.seldom(6) and spatial == 2
    channels = x.shape[-1] if last else x.shape[1]
    if not channels:
        raise NoFit  # TVM leaves what it has in memory as the sum over no channels
    groups = d.choice([g for g in (1, 1, 2, 3, 4, channels) if g and channels % g == 0] or [1])
    out = groups * d.choice([1, 2, 3, 8])
    kernel = tuple(d.choice([1, 2, 3]) for _ in range(spatial))
    w = d.operand((out, channels // groups, *kernel))
    layout = {"data_layout": "NHWC"} if last else {}
    y = d.emit(f"nn.conv{spatial}d", x, w, product=True, groups=groups, **_window(d, spatial), **layout)
    if d.often(2):
        y = d.emit("add", y, d.operand((out,) if last else (1, out) + (1,) * spatial))
    return y


@row(2)
def transposed_convolution(d: Draw) -> object:
    x = d.value(lambda v: v.dtype == "float32" and v.rank in (3, 4) and v.shape[1] > 0)  # as for convolution
    spatial = x.rank - 2
    groups = d.choice([g for g in (1, 1, 2, x.shape[1]) if g and x.shape[1] % g == 0] or [1])
    w = d.operand((x.shape[1], d.choice([1, 2, 5]), *(d.choice([1, 2, 3]) for _ in range(spatial))))
    window = _window(d, spatial)
    extra = [d.choice([0, 0, s - 1]) for s in window["strides"]]
    return d.emit(f"nn.conv{spatial}d_transpose", x, w, product=True, groups=groups, output_padding=extra, **window)


@row(5)
def product(d: Draw) -> object:
    x = d.value(lambda v: v.dtype == "float32" and v.rank >= 1)
    if d.often(2):
        w = d.operand((x.shape[-1], d.choice([1, 2, 3, 8, 17])))
        y = d.emit("matmul", x, w, product=True)
        return d.emit("add", y, d.operand(w.shape[-1:])) if d.often(2) else y
    if d.seldom(3):
        return d.emit("matmul", x, d.operand((*x.shape[:-2], x.shape[-1], d.choice([1, 4]))), product=True)
    y = d.value(lambda v: v.dtype == "float32" and v.rank >= 2 and v.shape[-1] == x.shape[-1])
    transposed = d.emit("permute_dims", y, axes=[*range(y.rank - 2), y.rank - 1, y.rank - 2])
    return d.emit("matmul", x, transposed, product=True)


@row(1)
def attention(d: Draw) -> object:
    q = d.value(lambda v: v.dtype == "float32" and v.rank >= 2)
    axes = [*range(q.rank - 2), q.rank - 1, q.rank - 2]
    scores = d.emit("matmul", q, d.emit("permute_dims", q, axes=axes), product=True)
    scaled = d.emit(d.choice(["multiply", "divide"]), scores, d.operand((), fill=2.0, constant=True), product=True)
    return d.emit("matmul", d.emit("nn.softmax", scaled, axis=-1, inexact=True), q)


# ---------------------------------------------------------------- windows and reductions
@row(3)
def pooling(d: Draw) -> object:
    x = d.floating(least=3, most=5)
    spatial = x.rank - 2
    if d.seldom(4):
        sizes = [d.choice([1, 1, 2, n]) for n in x.shape[2:]]
        return d.emit(f"nn.adaptive_avg_pool{spatial}d", x, inexact=True, output_size=sizes)
    kind = d.choice(["max", "avg"])
    attrs = _window(d, spatial) | {"pool_size": [d.choice([1, 2, 3]) for _ in range(spatial)]}
    # A window with nothing but padding has the least number there is as its maximum: what follows overflows.
    attrs["padding"] = [d.integer(0, size - 1) for size in attrs["pool_size"]]
    attrs["ceil_mode"] = d.seldom(3)
    if kind == "avg":
        attrs["count_include_pad"] = d.seldom(2)
    return d.emit(f"nn.{kind}_pool{spatial}d", x, inexact=kind == "avg", **attrs)


@row(4)
def reduction(d: Draw) -> object:
    # nothing has no mean and no maximum
    x = d.value(lambda v: v.rank >= 1 and v.dtype not in ("bool", "int8", "uint8") and all(v.shape))
    axes = sorted({d.integer(0, x.rank - 1) for _ in range(d.integer(1, 3))})
    name = d.choice(["sum", "mean", "max", "min", "prod", "variance"])
    where = d.choice([axes, [a - x.rank for a in axes], None])
    return d.emit(name, x, inexact=name in ("mean", "variance", "prod"), axis=where, keepdims=d.seldom(2))


@row(3)
def softmax(d: Draw) -> object:
    x = d.floating(least=1)
    return d.emit(d.choice(["nn.softmax", "nn.log_softmax"]), x, inexact=True, axis=d.integer(-x.rank, x.rank - 1))


@row(2)
def batch_norm(d: Draw) -> object:
    x = d.floating(least=2)
    axis = 1 if d.often(4) else x.rank - 1
    stats = [d.operand((x.shape[axis],), x.dtype, fill) for fill in ("grid", "grid", "grid", "positive")]
    attrs = {"axis": axis, "epsilon": 1e-3, "training": False}
    return d.emit("nn.batch_norm", x, *stats, inexact=True, **attrs)


@row(2)
def normalisation(d: Draw) -> object:
    x = d.floating(least=2)
    kind = d.choice(["layer", "rms", "group"])
    if kind == "group":
        groups = d.choice([g for g in (1, 2, 3) if x.shape[1] % g == 0])
        parts = [d.operand((x.shape[1],), x.dtype) for _ in "wb"]
        axes = list(range(2, x.rank))
        if not axes:
            raise NoFit
        return d.emit("nn.group_norm", x, *parts, inexact=True, num_groups=groups, channel_axis=1, axes=axes)
    axes = [-1] if d.often(4) else [-2, -1]
    shape = tuple(x.shape[a] for a in axes)
    parts = [d.operand(shape, x.dtype) for _ in ("wb" if kind == "layer" else "w")]
    return d.emit(f"nn.{kind}_norm", x, *parts, inexact=True, axes=axes, epsilon=1e-5)


# ---------------------------------------------------------------- patterns that importers leave
@row(3)
def pattern(d: Draw) -> object:
    x = d.value(lambda v: v.dtype == "float32")
    number = lambda v: d.operand((), x.dtype, v, constant=True)  # noqa: E731
    kind = d.choice(["swish", "hardswish", "mish", "gelu", "softmax", "layer_norm", "residual"])
    if kind == "swish":
        return d.emit("multiply", x, d.emit("sigmoid", x, inexact=True))
    if kind == "hardswish":
        gate = d.emit("clip", d.emit("add", x, number(3.0)), min=0, max=6)
        return d.emit("divide", d.emit("multiply", x, gate), number(6.0), inexact=True)
    if kind == "mish":
        return d.emit("multiply", x, d.emit("tanh", d.emit("nn.softplus", x, inexact=True), inexact=True))
    if kind == "gelu":
        erf = d.emit("erf", d.emit("divide", x, number(2.0**0.5), inexact=True), inexact=True)
        return d.emit("multiply", d.emit("multiply", x, d.emit("add", erf, number(1.0))), number(0.5))
    if kind == "residual":
        y = d.value(lambda v: v.dtype == x.dtype and v.shape == x.shape)
        return d.emit("nn.relu", d.emit("add", x, y))
    if not x.rank:
        raise NoFit
    if kind == "softmax":
        e = d.emit("exp", d.emit("subtract", x, d.emit("max", x, axis=[-1], keepdims=True)), inexact=True)
        return d.emit("divide", e, d.emit("sum", e, axis=[-1], keepdims=True))
    centred = d.emit("subtract", x, d.emit("mean", x, axis=[-1], keepdims=True, inexact=True))
    variance = d.emit("mean", d.emit("multiply", centred, centred), axis=[-1], keepdims=True)
    scaled = d.emit("divide", centred, d.emit("sqrt", d.emit("add", variance, number(1e-2))))
    return d.emit("add", d.emit("multiply", scaled, d.operand(x.shape[-1:])), d.operand(x.shape[-1:]))


# ---------------------------------------------------------------- shapes
@row(4)
def reshape(d: Draw) -> object:
    x = d.value()
    count = 1
    for size in x.shape:
        count *= size
    kind = d.choice(["flat", "split", "merge", "flatten", "expand", "squeeze"])
    shape = list(x.shape)
    if kind == "flatten":
        return d.emit(d.choice(["flatten", "nn.batch_flatten"]), x)
    if kind == "expand":
        return d.emit("expand_dims", x, axis=[d.integer(0, x.rank)]) if x.rank < 5 else None
    if kind == "squeeze":
        return d.emit("squeeze", x, axis=d.choice([[a] for a, n in enumerate(x.shape) if n == 1]))
    if kind == "split":
        axis, by = d.choice([(a, f) for a, n in enumerate(shape) for f in (2, 3, 4, 1) if n and n % f == 0])
        shape[axis : axis + 1] = [by, shape[axis] // by]
    elif kind == "merge":
        axis = d.choice(range(x.rank - 1))
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    else:
        shape = [-1] if count else [0]
    return d.emit("reshape", x, shape=shape)


@row(3)
def permutation(d: Draw) -> object:
    x = d.value(lambda v: v.rank >= 2)
    axes = list(range(x.rank))
    for _ in range(d.integer(1, 3)):
        a, b = d.integer(0, x.rank - 1), d.integer(0, x.rank - 1)
        axes[a], axes[b] = axes[b], axes[a]
    return d.emit("permute_dims", x, axes=axes)


@row(3)
def joining(d: Draw) -> object:
    x = d.value(lambda v: v.rank >= 1)
    axis = d.integer(0, x.rank - 1)
    alike = [v for v in d.values if v.dtype == x.dtype and v.rank == x.rank]
    fits = [v for v in alike if v.shape[:axis] + v.shape[axis + 1 :] == x.shape[:axis] + x.shape[axis + 1 :]]
    others = [d.choice(fits[::-1]) for _ in range(d.integer(1, 3))]
    if all(o.shape == x.shape for o in others) and x.rank < 5 and d.seldom(4):
        return d.emit("stack", x, *others, axis=axis)
    return d.emit("concat", x, *others, axis=d.choice([axis, axis - x.rank]))


@row(3)
def parting(d: Draw) -> object:
    x = d.value(lambda v: v.rank >= 1)
    axis = d.integer(0, x.rank - 1)
    size = x.shape[axis]
    kind = d.choice(["split", "slice", "take", "flip"])
    if kind == "split":
        if d.often(2):
            parts = d.choice([p for p in (2, 3, 4) if size and size % p == 0])
        else:
            parts = sorted({d.integer(1, max(size - 1, 1)) for _ in range(2)})
        return d.emit("split", x, indices_or_sections=parts, axis=axis)
    if kind == "slice":
        begin = d.integer(0, max(size - 1, 0))
        end = d.choice([size, size + 3, -1, begin + 1])
        return d.emit("strided_slice", x, axes=[axis], begin=[begin], end=[end], strides=[d.choice([1, 1, 2, 3])])
    if kind == "flip":
        return d.emit("flip", x, axis=axis)
    if not size:
        raise NoFit
    at = d.operand((), "int64", float(d.integer(0, size - 1)), constant=True)
    return d.emit("take", x, at, axis=axis)


@row(2)
def repetition(d: Draw) -> object:
    x = d.value(lambda v: 1 <= v.rank <= 4)
    kind = d.choice(["tile", "repeat", "broadcast_to", "pad", "cumsum"])
    axis = d.integer(0, x.rank - 1)
    if kind == "tile":
        return d.emit("tile", x, repeats=[d.choice([1, 2, 3]) for _ in range(x.rank)])
    if kind == "repeat":
        return d.emit("repeat", x, repeats=d.choice([1, 2, 3]), axis=axis)
    if kind == "broadcast_to":
        shape = tuple(d.choice([1, 2, 3]) if n == 1 else n for n in x.shape)
        return d.emit("broadcast_to", x, shape=(2, *shape) if d.seldom(3) else shape)
    if not x.is_float:
        raise NoFit
    if kind == "cumsum":
        return d.emit("cumsum", x, axis=axis)
    width = [d.choice([0, 0, 1, 2]) for _ in range(2 * x.rank)]
    mode = d.choice(["constant", "constant", "reflect"])
    if mode == "reflect":  # beyond the axis there is nothing to reflect: TVM reads other memory there
        width = [min(w, max(x.shape[i // 2] - 1, 0)) for i, w in enumerate(width)]
        if not all(x.shape):
            raise NoFit
    return d.emit("nn.pad", x, pad_width=width, pad_mode=mode, pad_value=d.choice([0.0, 1.5]))
