"""Shape operators: views, copies, and slices that no view can say."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import accept, const, data, refuse, table_tests

op, nn = relax.op, relax.op.nn


def sliced(*where: slice | int, axes=None):
    """The same slice for Relax and NumPy."""
    axes = list(range(len(where))) if axes is None else axes

    def function(x):
        parts = [(s.start or 0, s.stop, s.step or 1) for s in where]
        return op.strided_slice(x, axes, *([p[i] for p in parts] for i in range(3)))

    def reference(x):
        index = [slice(None)] * x.ndim
        for axis, s in zip(axes, where, strict=True):
            index[axis] = s
        return x[tuple(index)]

    return function, reference


def padded(mode, *widths):
    """Padding for Relax and NumPy, whose edge and wrap are replicate and circular."""
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    numpy_mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    return lambda x: nn.pad(x, widths, mode), lambda x: np.pad(x, pairs, numpy_mode)


def row(name, function, reference, *operands, **options):
    return accept(name, function, *operands, reference=reference, **options)


SLICES = {
    "begin": ((7, 5), (slice(2, 6),)),
    "step": ((9, 5), (slice(0, 9, 4), slice(0, 5, 2))),
    "step-exact": ((8, 6), (slice(0, 8, 2), slice(1, 6, 3))),
    "step-past-the-end": ((1, 3, 7, 5), (slice(0, 1), slice(0, 3, 2), slice(2, 7, 3), slice(0, 5, 4))),
    "from-the-end": ((7, 5), (slice(-3, 7), slice(-5, -1))),
    "nothing": ((7, 5), (slice(3, 3),)),
    "backwards": ((7, 5), (slice(5, 0, -2), slice(4, 1, -1))),
}


def parts(call, count):
    return tuple(relax.TupleGetItem(call, i) for i in range(count))


def _channel_shuffle(x):
    n, c, h, w = (int(d) for d in x.ty.shape.values)
    return op.reshape(op.permute_dims(op.reshape(x, (n, 3, c // 3, h, w)), [0, 2, 1, 3, 4]), (n, c, h, w))


def _channel_shuffle_numpy(x):
    n, c, h, w = x.shape
    return x.reshape(n, 3, c // 3, h, w).transpose(0, 2, 1, 3, 4).reshape(n, c, h, w)


def take(indices, axis):
    values = np.asarray(indices)
    return (
        lambda x: op.take(x, const_indices(values), axis=axis),
        lambda x: np.take(x, values, axis),
    )


def taken(axis, mode="fast"):
    """Slices by indices that are known at run time, for Relax and NumPy."""
    numpy_mode = {"fast": "raise"}.get(mode, mode)
    return (
        lambda x, i: op.take(x, i, axis=axis, mode=mode),
        lambda x, i: np.take(x, i, axis, mode=numpy_mode),
    )


def ids(values, dtype="int64"):
    return data(values=np.asarray(values, dtype), dtype=dtype)


def const_indices(values):
    return relax.const(values.astype("int64"))


def shuffled(x):
    n, c, h, w = x.shape
    return x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // 4, h * 2, w * 2)


#: name → (Relax, NumPy, shapes): the operators that only say how to read, and those that copy
MOVES = {
    "reshape": (lambda x: op.reshape(x, (3, 10)), lambda x: x.reshape(3, 10), (2, 3, 5)),
    "reshape-one": (lambda x: op.reshape(x, (1, 1)), lambda x: x.reshape(1, 1), (1,)),
    "reshape-nothing": (lambda x: op.reshape(x, (0, 3, 1)), lambda x: x.reshape(0, 3, 1), (0, 3)),
    "flatten": (op.flatten, lambda x: x.reshape(-1), (2, 3, 1)),
    "flatten-nothing": (op.flatten, lambda x: x.reshape(-1), (0, 3)),
    "squeeze": (lambda x: op.squeeze(x, [1]), lambda x: x.squeeze(1), (3, 1, 5)),
    "squeeze-all": (op.squeeze, np.squeeze, (1, 17, 1)),
    "squeeze-nothing": (lambda x: op.squeeze(x, [0]), lambda x: x.squeeze(0), (1, 0)),
    "expand_dims": (lambda x: op.expand_dims(x, [0, 2]), lambda x: x[None, :, None], (3, 5)),
    "expand_dims-nothing": (lambda x: op.expand_dims(x, -1), lambda x: x[..., None], (0, 1)),
    "batch_flatten": (nn.batch_flatten, lambda x: x.reshape(len(x), -1), (3, 5, 1)),
    "batch_flatten-nothing": (nn.batch_flatten, lambda x: x.reshape(0, 15), (0, 3, 5)),
    "permute": (lambda x: op.permute_dims(x, [2, 0, 1]), lambda x: x.transpose(2, 0, 1), (2, 3, 5)),
    "permute-reverse": (op.permute_dims, np.transpose, (2, 1, 17)),
    "permute-nothing": (lambda x: op.permute_dims(x, [1, 0]), np.transpose, (0, 3)),
    "broadcast_to": (lambda x: op.broadcast_to(x, (2, 3, 5)), lambda x: np.broadcast_to(x, (2, 3, 5)), (3, 1)),
    "broadcast_to-nothing": (lambda x: op.broadcast_to(x, (2, 0)), lambda x: np.broadcast_to(x, (2, 0)), (0,)),
    "tile": (lambda x: op.tile(x, [2, 1, 3]), lambda x: np.tile(x, [2, 1, 3]), (5, 1)),
    "tile-nothing": (lambda x: op.tile(x, [2]), lambda x: np.tile(x, [2]), (0, 3)),
    "repeat": (lambda x: op.repeat(x, 3, 1), lambda x: x.repeat(3, 1), (2, 5, 1)),
    "repeat-flat": (lambda x: op.repeat(x, 2), lambda x: x.repeat(2), (3, 5)),
    "repeat-nothing": (lambda x: op.repeat(x, 2, 0), lambda x: x.repeat(2, 0), (3, 0)),
    "pixel_shuffle": (lambda x: nn.pixel_shuffle(x, 2), shuffled, (1, 12, 3, 5)),
    "pixel_shuffle-one": (lambda x: nn.pixel_shuffle(x, 1), lambda x: x, (2, 1, 3, 5)),
    "pixel_shuffle-nothing": (lambda x: nn.pixel_shuffle(x, 2), shuffled, (0, 4, 3, 5)),
    "split": (lambda x: parts(op.split(x, [2, 3], 1), 3), lambda x: np.split(x, [2, 3], 1), (1, 7, 3)),
    "split-equal": (lambda x: parts(op.split(x, 3, -1), 3), lambda x: np.split(x, 3, -1), (2, 9)),
    "split-nothing": (lambda x: parts(op.split(x, 2, 1), 2), lambda x: np.split(x, 2, 1), (0, 4)),
    "take": (*take([2, 3, 5], 1), (2, 7, 3)),
    "take-table": (*take([[4, 0], [1, 1]], 0), (5, 1)),
    "take-one": (*take(3, -1), (2, 7)),
    "take-nothing": (*take([1], 1), (0, 3)),
}
JOINS = {
    "concat": (lambda *p: op.concat(p, 1), lambda *p: np.concatenate(p, 1), [(2, 3, 5), (2, 1, 5), (2, 17, 5)]),
    "concat-flat": (lambda *p: op.concat(p, None), lambda *p: np.concatenate(p, None), [(2,), (5,)]),
    "concat-nothing": (lambda *p: op.concat(p, -1), lambda *p: np.concatenate(p, -1), [(3, 0), (3, 2)]),
    "stack": (lambda *p: op.stack(p, 1), lambda *p: np.stack(p, 1), [(2, 17), (2, 17)]),
    "stack-last": (lambda *p: op.stack(p, -1), lambda *p: np.stack(p, -1), [(3, 1), (3, 1), (3, 1)]),
    "stack-nothing": (lambda *p: op.stack(p, 0), lambda *p: np.stack(p, 0), [(0, 3), (0, 3)]),
}

#: operands that are gathered by indices: what is computed, with what
GATHERS = {
    "rows": (*taken(0), data(5, 3), ids([4, 0, 4])),
    "columns": (*taken(1), data(2, 7, 3), ids([[6, 0], [3, 3]])),
    "last": (*taken(-1), data(3, 17), ids([16, 2, 0], "int32")),
    "one": (*taken(0), data(17), ids(3)),
    "nothing": (*taken(0), data(5, 3), ids(np.zeros((2, 0)))),
    "of-nothing": (*taken(0), data(5, 0), ids([4, 0])),
    "embedding": (lambda i, w: op.take(w, i, axis=0), lambda i, w: w[i], ids([[3, 49, 0], [7, 7, 8]]), const(50, 17)),
    "wide": (*taken(0), data(40, 1000), ids(np.arange(120) * 7 % 40)),
    "symbolic": (*taken(1), data("n", "m", 3), ids([1, 0, 2])),
    "symbolic-count": (*taken(0), data(1, 3), data("n", dtype="int64", low=0, high=1)),
    "clip": (*taken(0, "clip"), data(5, 3), ids([-1, -9, 4, 5, 2**40])),
    "wrap": (*taken(1, "wrap"), data(2, 5), ids([-1, -6, 4, 5, -(2**31)], "int32")),
    "constant": (*take(range(17)[::-1], 0), data(17, 3)),
    "constant-clip": (
        lambda x: op.take(x, const_indices(np.array([-3, 9])), 0, "clip"),
        lambda x: x[[0, -1]],
        data(5, 3),
    ),
    "index_tensor": (lambda x, i: op.index_tensor(x, [i]), lambda x, i: x[i], data(5, 3, 2), ids([[4, 0], [2, 2]])),
    "index_tensor-nothing": (lambda x, i: op.index_tensor(x, [i]), lambda x, i: x[i], data(5, 0), ids([4, 1])),
    "index_tensor-one": (lambda x, i: op.index_tensor(x, [i]), lambda x, i: x[i], data(1, 3), ids([[0], [0]])),
    "between": (
        lambda x, i: nn.relu(op.take(nn.softmax(x), i, axis=1)),
        None,
        data(3, 17),
        ids([2, 0, 16]),
    ),
}

ACCEPT = [
    *(
        row(f"gather-{name}", f, ref, *operands, symbols={"n": 4, "m": 5}, prepare=False)
        for name, (f, ref, *operands) in GATHERS.items()
    ),
    *(
        row(f"gather-{dtype}", *taken(0), data(7, 3, dtype=dtype, low=0, high=100), ids([6, 0, 3]))
        for dtype in ("bfloat16", "int8", "uint8", "bool")
    ),
    *(row(name, f, ref, data(*shape), prepare=False) for name, (f, ref, shape) in MOVES.items()),
    *(row(name, f, ref, *(data(*s) for s in shapes), prepare=False) for name, (f, ref, shapes) in JOINS.items()),
    *(
        row(f"channel_shuffle-{shape}", _channel_shuffle, _channel_shuffle_numpy, data(*shape))
        for shape in [(1, 6, 5, 7), (2, 12, 1, 1)]
    ),
    row("slice-negative-of-nothing", *sliced(slice(0, 2), axes=[1]), data(0, 5)),
    *(row(f"slice-{name}", *sliced(*where), data(*shape)) for name, (shape, where) in SLICES.items()),
    *(
        row(f"slice-{dtype}", *sliced(slice(1, 6, 3)), data(7, 3, dtype=dtype, low=0, high=100))
        for dtype in ("bfloat16", "int8", "uint8", "bool")
    ),
    row("slice-everything", *sliced(slice(0, 7)), data(7, 1), prepare=False),
    *(
        row(f"pad-{mode}-{shape}-{widths}", *padded(mode, *widths), data(*shape))
        for mode in ("reflect", "replicate", "circular", "constant")
        for shape, widths in [((2, 3, 5, 7), (0, 0, 0, 0, 1, 1, 1, 1)), ((2, 5), (0, 0, 3, 2)), ((7,), (0, 1))]
    ),
    row("pad-replicate-one", *padded("replicate", 1, 1, 0, 0), data(1, 3)),
    row("pad-reflect-int8", *padded("reflect", 0, 2), data(7, dtype="int8", low=-100, high=100)),
    # Long tables are gathers.
    row("pad-reflect-wide", *padded("reflect", 0, 0, 0, 9), data(2, 17)),
    row("pad-replicate-wide", *padded("replicate", 9, 8, 0, 0, 3, 11), data(9, 2, 13)),
    row("pad-circular-wide", *padded("circular", 11, 0), data(11, dtype="float16")),
    row("pad-reflect-wide-int8", *padded("reflect", 11, 10), data(13, dtype="int8", low=-100, high=100)),
    row("pad-reflect-wide-open", *padded("reflect", 0, 0, 9, 0), data("n", 17), symbols={"n": 3}),
    row("flip-long", lambda x: op.flip(x, -2), lambda x: x[:, ::-1], data(3, 17, 2)),
    row("slice-backwards-long", *sliced(slice(-2, 1, -1)), data(17, 2)),
    row("slice-backwards-long-by-2", *sliced(slice(30, 2, -2), axes=[1]), data(2, 31)),
    row("pad-nothing", *padded("reflect", 0, 0, 0, 1), data(0, 3)),
    row("flip", lambda x: op.flip(x, 1), lambda x: x[:, ::-1], data(3, 5, 2)),
    row("flip-nothing", lambda x: op.flip(x, 0), lambda x: x[::-1], data(0, 3)),
    row("flip-last", lambda x: op.flip(x, -1), lambda x: x[:, ::-1], data(3, 1)),
]

REFUSE = [
    *(
        refuse(f"{name}-int64", "dtype int64", f, data(*shape, dtype="int64"), prepare=False)
        for name, (f, _, shape) in MOVES.items()
        if "-" not in name
    ),
    *(
        refuse(f"{name}-int64", "dtype int64", f, *(data(*s, dtype="int64") for s in shapes), prepare=False)
        for name, (f, _, shapes) in JOINS.items()
        if "-" not in name
    ),
    refuse("take-outside", "outside of [0, 5)", take([1, 5], 0)[0], data(5, 3)),
    refuse("take-nan", "mode 'nan'", taken(0, "nan")[0], data(5, 3), ids([1])),
    refuse("take-bytes", "dtype uint8", taken(0)[0], data(5, 3), data(values=np.array([1], "uint8"), dtype="uint8")),
    refuse("index_tensor-two", "2 tensors", lambda x, i: op.index_tensor(x, [i, i]), data(5, 3), ids([1])),
    refuse("pad-reflect-wide", "reflect padding 0,9 is 10 slices", padded("reflect", 0, 9)[0], data(17), prepare=False),
    refuse("pad-circular-too-wide", "circular padding 4,0 of an axis of 3", padded("circular", 4, 0)[0], data(3)),
    refuse("pad-reflect-too-wide", "reflect padding 3,0 of an axis of 3", padded("reflect", 3, 0)[0], data(3)),
    refuse("flip-long", "17 from back to front", lambda x: op.flip(x, 1), data(3, 17), prepare=False),
    refuse("slice-backwards-long", "back to front", sliced(slice(16, 1, -1))[0], data(17, 2), prepare=False),
    refuse("int64", "dtype int64", sliced(slice(1, 3))[0], data(7, dtype="int64")),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)
