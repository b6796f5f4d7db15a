"""Operators of which Relax has no part: one function of tensor expressions for each; random numbers among them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from ....core.tvm_fast import is_a
from ....te.legalize import emitted, stage
from ..dim import Dim, Size, expr_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value


def computed(e: Emit, name: str, function: Callable[..., Any], *operands: Any) -> Value:
    """The result of a function of tensor expressions, as `all_computed` takes it."""
    (made,) = all_computed(e, name, function, *operands)
    return made


def all_computed(e: Emit, name: str, function: Callable[..., Any], *operands: Any) -> list[Value]:
    """The results of a function of tensor expressions.

    ``function`` gets tensors for values, and expressions of TIR for sizes and lists of sizes. What it reads of open
    sizes must be among its operands.
    """
    given = [_given(e, operand) for operand in operands]
    return _results(e, e.bb.emit_te(function, *given, primfunc_name_hint=name))


def _results(e: Emit, made: Any) -> list[Value]:
    if is_a(made.ty, relax.TupleType):
        return [e.value(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]
    return [Value(made)]


def _given(e: Emit, operand: Any) -> Any:
    if isinstance(operand, Value):
        return e.tensor(operand)
    if isinstance(operand, (list, tuple)):
        return [_given(e, part) for part in operand]
    return expr_of(operand) if isinstance(operand, (int, Dim)) else operand


def asked(e: Emit, numbers: Value, sizes: Sequence[str | Size]) -> list[Size]:
    """The integers of a vector that only a call knows.

    ``sizes``: for each of them the name of a new open size, or the size that it must be, which the call checks.
    """
    shape = e.bb.emit(relax.op.tensor_to_shape(e.tensor(e.cast(numbers, "int64"))))
    found: list[Size] = [Dim.symbol(size) if isinstance(size, str) else size for size in sizes]
    e.bb.match_cast(shape, relax.ShapeType([expr_of(size) for size in found]))
    return found


def int64(value: int) -> Any:
    return tirx.const(value, "int64")


def wide_dtype(dtype: str) -> str:
    """The dtype that sums of products of a float dtype are taken in."""
    return "float64" if dtype == "float64" else "float32"


def lowest(dtype: str) -> Any:
    return int(np.iinfo(dtype).min) if "int" in dtype else -np.inf


def within(place: Any, size: Any) -> Any:
    """A position cut to those that a tensor has."""
    return tirx.max(tirx.min(place, size - 1), tirx.const(0, "int64"))


def written(
    e: Emit,
    name: str,
    write: Callable[..., None],
    operands: Sequence[Value],
    results: Sequence[tuple[Sequence[Size], str]],
    sizes: Sequence[Size] = (),
) -> list[Value]:
    """The results, of these sizes and dtypes, of a function whose body is statements; ``sizes`` are what else it reads.

    ``write(*inputs, *outputs, *sizes)`` is as `statements.stage` takes it.
    """

    def kernel(*given: Any) -> Any:
        *tensors, shapes, own = given
        dtypes = [dtype for _, dtype in results]
        return stage(name, lambda *buffers: write(*buffers, *own), tensors, list(zip(shapes, dtypes, strict=True)))

    exprs = [[expr_of(d) for d in dims] for dims in (*(dims for dims, _ in results), sizes)]
    return _results(e, emitted(e.bb, name, kernel, *map(e.tensor, operands), exprs[:-1], exprs[-1]))


_BITS = 24  # of a float32 between 0 and 1


def _mixed(h: Any) -> Any:
    """32 bits of 32 bits, each of which depends on all of them; in int64, where no product wraps.

    TVM's simplifier takes products of uint32 for such that do not wrap, and gives one number for all elements.
    """
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        h = ((h ^ (h >> int64(shift))) * int64(factor)) & int64(0xFFFFFFFF)
    return h ^ (h >> int64(15))


def _uniform(place: Any, seed: int, above: int) -> Any:
    """A multiple of 2⁻²⁴: from 0 to below 1, or with ``above`` 1 from above 0 to 1."""
    bits = _mixed(_mixed(place & int64(0xFFFFFFFF)) ^ int64(seed)) >> int64(32 - _BITS)
    return (bits + int64(above)).astype("float32") * tirx.const(2.0**-_BITS, "float32")


def _drawn(e: Emit, node: Node, dims: Sequence[Size], *, is_normal: bool) -> Value:
    """Numbers in float32, uniform in [0, 1) or normal with mean 0 and variance 1 (Box and Muller)."""
    given = node.attr("seed")
    seed = zlib.crc32(node.name.encode()) if given is None else int(np.float32(given).view("uint32"))

    def compute(sizes: Any) -> Any:
        def element(*at: Any) -> Any:
            place = int64(0)
            for i, size in zip(at, sizes, strict=True):
                place = place * size + i
            if not is_normal:
                return _uniform(place, seed, 0)
            radius = tirx.sqrt(tirx.const(-2.0, "float32") * tirx.log(_uniform(place * 2, seed, 1)))
            return radius * tirx.cos(tirx.const(2 * np.pi, "float32") * _uniform(place * 2 + 1, seed, 0))

        return te.compute(tuple(sizes), element, name="random")

    return computed(e, "random", compute, list(dims))


def _dtype(node: Node, default: str) -> str:
    kind = node.attr("dtype")
    return default if kind is None else str(helper.tensor_dtype_to_np_dtype(kind))


@operator("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _random(e: Emit, node: Node) -> Any:
    like, is_normal = node.needed(0) if node.op.endswith("Like") else None, "Normal" in node.op
    start = node.attr("mean" if is_normal else "low", 0.0)
    width = node.attr("scale", 1.0) if is_normal else node.attr("high", 1.0) - start
    dims = tuple(node.attr("shape") or ()) if like is None else like.sizes
    drawn = _drawn(e, node, dims, is_normal=is_normal) * e.const(width, "float32")
    return e.cast(drawn + e.const(start, "float32"), _dtype(node, "float32" if like is None else like.dtype))


@operator("Bernoulli", since=15)
def _bernoulli(e: Emit, node: Node, p: Value) -> Any:
    drawn = _drawn(e, node, p.sizes, is_normal=False)
    return e.cast(drawn < e.cast(p, "float32"), _dtype(node, p.dtype))


@operator("Multinomial", since=7)
def _multinomial(e: Emit, node: Node, data: Value, *, sample_size: int = 1) -> Any:
    """The class whose part of the sum of all probabilities the number falls into."""
    x = e.cast(data, "float32")
    if x.dims is None or len(x.sizes) != 2:
        raise node.refused(f"has the input {x}; expected (rows, classes)")
    rows, classes = x.sizes
    ends = e.cumsum(e.softmax(x, axis=1), axis=1)
    drawn = _drawn(e, node, (rows, sample_size, 1), is_normal=False)
    passed = e.expand_dims(ends, axis=[1]) <= drawn
    # the last end is 1 but for rounding, so it is not counted
    passed = e.strided_slice(passed, axes=[2], begin=[0], end=[-1])
    kind = helper.tensor_dtype_to_np_dtype(node.attr("dtype", TensorProto.INT32))
    if classes == 1:
        return e.zeros(e.shape((rows, sample_size)), dtype=str(kind))
    return e.sum(e.cast(passed, str(kind)), axis=2)
