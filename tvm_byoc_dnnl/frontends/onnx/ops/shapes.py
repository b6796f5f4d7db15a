"""What shapes are computed by: values are known as numbers and open sizes, and nothing is emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, Size, at_least, equal, product, quotient
from ..emit import Emit, common
from ..operands import wrong_axes
from ..table import operator
from ..value import Node, Value, listed, whole
from .computed import asked


def axes_of(axes: Sequence[int], rank: int, node: Node, of: str = "its input") -> list[int]:
    """Axes counted from the first one, sorted."""
    for problem in wrong_axes(axes, rank, of):
        raise node.wrong(problem)
    return sorted(int(a) % rank for a in axes)


def length_of(node: Node, i: int, what: str) -> int:
    """How many numbers an input has that only a call knows."""
    dims = node.needed(i).dims
    count = (*dims, 1)[0] if dims is not None and len(dims) <= 1 else None
    if not isinstance(count, int):
        raise node.refused(f"needs {what} when it is compiled: not even its length is known")
    return count


def ints_of(e: Emit, node: Node, i: int, what: str) -> list[Any] | None:
    """The integers of an input, ``None`` if it is left out; those that only a call knows are new open sizes."""
    value = node.input(i)
    if value is None or value.known is not None:
        return node.ints(i)
    count = length_of(node, i, what)
    return asked(e, e.reshape(value, [count]), [f"{what}{n}" for n in range(count)])


def int_of(e: Emit, node: Node, i: int, what: str) -> Size:
    """The integer that an input of one number is, also where only a call knows it."""
    value = node.needed(i)
    if value.known is None:
        return asked(e, e.reshape(value, [1]), [what])[0]
    (found,) = node.ints(i) or [0]
    if isinstance(found, float) and not found.is_integer():
        raise node.wrong(f"has {what} {found}; expected an integer")
    return found if isinstance(found, Dim) else int(found)


@operator("Shape")
def _shape(e: Emit, x: Value, *, start: int = 0, end: Any = None) -> Any:
    if x.dims is not None:
        return listed(*x.dims[start:end])
    shape = e.bb.emit(relax.op.shape_of(e.tensor(x)))
    return e.value(relax.op.shape_to_tensor(shape))


operator("Size")(lambda _e, x: whole(product(x.sizes)))


def _target(node: Node) -> list[Size]:
    """The sizes that a Reshape makes."""
    target = node.ints(1, "shape")
    if target is None:
        raise node.wrong("has no shape")
    sizes = list(target)
    keeps = not node.attr("allowzero", 0)
    if keeps and 0 in sizes:
        own = node.needed(0).sizes
        if 0 in sizes[len(own) :]:
            raise node.wrong(f"has the shape {sizes}; a 0 keeps an axis, and the input has {len(own)}")
        sizes = [own[axis] if s == 0 else s for axis, s in enumerate(sizes)]
    rest = [axis for axis, s in enumerate(sizes) if s == -1]
    if len(rest) > 1:
        raise node.wrong(f"has the shape {sizes}; expected at most one -1")
    if rest:
        others, count = product(s for axis, s in enumerate(sizes) if axis != rest[0]), product(node.needed(0).sizes)
        whole = 0 if equal(others, 0) else quotient(count, others)  # of 0 nothing is left to say how many
        if whole is None and not isinstance(count, Dim) and not isinstance(others, Dim):
            raise node.wrong(f"has the shape {target}, which does not divide {count} elements")
        sizes[rest[0]] = count // others if whole is None else whole
    return sizes


def _in_call(e: Emit, condition: Value, sizes: Sequence[Any], others: Value) -> Value:
    """For each size one of two, by a condition that only a call knows."""
    return e.where(condition, listed(*sizes), others)


def shaped_in_call(e: Emit, x: Value, sizes: Value) -> Value:
    """A tensor in a shape of which only a call knows the sizes, but how many they are is known."""
    names = [f"size{axis}" for axis in range(sizes.sizes[0])]  # type: ignore[arg-type]
    return e.reshape(x, asked(e, sizes, names))


def _reshaped_in_call(e: Emit, node: Node) -> Value:
    """A Reshape to sizes that only a call knows: a 0 keeps an axis, and a -1 has what is left."""
    x, own = node.needed(0), node.needed(0).sizes
    sizes, count = e.cast(node.needed(1), "int64"), length_of(node, 1, "the shape")
    if not node.attr("allowzero", 0):
        kept = [*own, *[0] * count][:count]
        sizes = _in_call(e, e.equal(sizes, e.const(0, "int64")), kept, sizes)
    is_rest = sizes < e.const(0, "int64")
    others = e.prod(_in_call(e, is_rest, [1] * count, sizes))
    rest = listed(product(own)) // e.maximum(others, e.const(1, "int64"))
    sizes = e.where(is_rest, e.broadcast_to(rest, e.shape([count])), sizes)
    return shaped_in_call(e, x, sizes)


@operator("Reshape")
def _reshape(e: Emit, node: Node, x: Value, target: Value | None = None) -> Any:
    if target is not None and target.known is None:
        return _reshaped_in_call(e, node)
    return e.reshape(x, _target(node))


def flat_sizes(x: Value, axis: int) -> list[Size]:
    """Those of a matrix, whose columns are all axes from one on."""
    return [product(x.sizes[:axis]), product(x.sizes[axis:])]


@operator("Flatten")
def _flatten(e: Emit, x: Value, *, axis: int = 1) -> Any:
    axis = axis + len(x.sizes) if axis < 0 else axis
    return e.reshape(x, flat_sizes(x, axis))


@operator("Transpose")
def _transpose(e: Emit, node: Node, x: Value) -> Any:
    rank = len(x.sizes)
    axes = node.attr("perm", tuple(reversed(range(rank))))
    if sorted(axes) != list(range(rank)):
        raise node.wrong(f"has the permutation {list(axes)} of a tensor of rank {rank}")
    return e.transpose(x, axes)


@operator("Concat")
def _concat(e: Emit, node: Node, x: Value) -> Any:
    rank = len(x.sizes)
    axis = node.attr("axis", 1 if node.opset < 4 else None) % rank
    given = [node.needed(i) for i in range(len(node.inputs))]
    parts = e.equalised(given, lambda a: a != axis - rank, broadcasts=False)
    return e.concat(parts, axis)


def _aligned(a: Sequence[Any], b: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    rank = max(len(a), len(b))
    return [1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b)


def _expanded_in_call(e: Emit, node: Node) -> Value:
    """An Expand to sizes that only a call knows: a size of 1 keeps an axis, another is that of the axis, or it is 1."""
    x, dims, count = node.needed(0), node.needed(0).sizes, length_of(node, 1, "the shape")
    before = dims[: max(len(dims) - count, 0)]
    own: list[Size] = [*[1] * (count - len(dims)), *dims[len(before) :]]
    given = e.cast(node.needed(1), "int64")
    given = _in_call(e, e.equal(given, e.const(1, "int64")), own, given)
    wanted: list[str | Size] = [f"size{i}" if size == 1 else size for i, size in enumerate(own)]
    return e.expand(x, [*before, *asked(e, given, wanted)])


@operator("Expand", since=8)
def _expand(e: Emit, node: Node, x: Value) -> Any:
    if node.needed(1).known is None:
        return _expanded_in_call(e, node)
    own, target = _aligned(node.needed(0).sizes, node.ints(1, "the shape") or [])
    sizes: list[Size] = []
    asks: list[tuple[Size, Size]] = []  # sizes of the operand, and what a call must have them be
    for a, b in zip(own, target, strict=True):
        if b == 1 or equal(a, b):
            sizes.append(a)
        elif a == 1 or (isinstance(a, Dim) and at_least(1, a)):
            sizes.append(b)
        elif isinstance(a, int) and isinstance(b, int):
            raise node.wrong(f"expands a tensor of ({', '.join(map(str, node.needed(0).sizes))}) to {target}")
        else:
            is_one = isinstance(b, Dim) and at_least(1, b)
            sizes.append(a if is_one else common([b, a]))
            asks += [] if b == sizes[-1] else [(b, 1 if is_one else sizes[-1])]
    if asks:
        asked(e, listed(*(b for b, _ in asks)), [size for _, size in asks])
    return e.expand(x, sizes)


@operator("ConstantOfShape", since=9)
def _constant_of_shape(e: Emit, node: Node, given: Value) -> Any:
    fill = node.attr("value", np.zeros((), "float32")).reshape(())
    if given.known is None:
        sizes = asked(e, given, [f"size{i}" for i in range(length_of(node, 0, "the shape"))])
    else:
        sizes = node.ints(0, "the shape") or []
    if not any(isinstance(s, Dim) for s in sizes):
        return e.const(np.broadcast_to(fill, sizes))  # type: ignore[arg-type]
    return e.value(relax.op.full(e.shape(sizes), e.tensor(fill), str(fill.dtype)))


_DTYPES = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}


@operator("Constant")
def _constant(e: Emit, node: Node) -> Any:
    (name,) = node.attrs
    if name not in ("value", "sparse_value", *_DTYPES):
        raise node.refused(f"has the attribute {name}")
    return e.const(node.attr(name), _DTYPES.get(name))
