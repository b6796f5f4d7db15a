"""Sequences are lists of values, and need no call; where only a call knows the items, native code has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper
from tvm import ir, relax

from ....core.tvm_fast import is_a
from ....ir.native_loop import native_call
from ....ir.relax_utils import constant_numpy
from ....ir.tvm_compat import is_constant
from ..dim import Dim
from ..emit import Emit
from ..table import operator
from ..value import Item, Node, Value
from .moving import parts_of
from .shapes import ints_of

_FULL = ir.Op.get("relax.full")


def _position(node: Node, i: int, default: int) -> int | None:
    """A position; None if only a call knows it."""
    value = node.input(i)
    if value is None:
        return default
    return int(value.known.reshape(-1)[0]) if value.is_constant and value.known is not None else None


def _items(node: Node, value: Value) -> list[Value] | None:
    """The items of a sequence; None if only a call knows them."""
    if not value.is_sequence:
        raise node.wrong(f"reads {value}; expected a sequence")
    return value.items


# ---- sequences of a call --------------------------------------------------------------------------------


def of_call(e: Emit, value: Value, item: Item | None = None) -> Value:
    """A sequence whose number of items only a call knows; ``item`` is the type of items, if it has none."""
    if value.items is None:
        return value
    found = {*map(item_of, value.items), *(t for t in (value.item, item) if t is not None)}
    return _called(e, "Sequence", value.items, joined(e, *found))


def item_of(value: Value) -> Item:
    """The type of a tensor as that of items: open sizes may differ between them."""
    return value.dtype, None if value.dims is None else tuple(d if isinstance(d, int) else None for d in value.dims)


def joined(e: Emit, *types: Item) -> Item:
    """The type of items that have one of these types."""
    dtypes, shapes = {dtype for dtype, _ in types if dtype}, [dims for _, dims in types if dims is not None]
    if len(dtypes) > 1:
        raise e.refused(f"has items of {' and '.join(sorted(dtypes))} in one sequence")
    if len(set(map(len, shapes))) != 1:
        return next(iter(dtypes), ""), None
    return next(iter(dtypes), ""), tuple(d if all(o == d for o in others) else None for d, *others in zip(*shapes))


def _called(e: Emit, name: str, operands: Sequence[Any], item: Item) -> Value:
    return Value(e.value(native_call(name, [e.tensor(x) for x in operands], relax.ObjectType())).expr, item=item)


def _tensor(e: Emit, name: str, operands: Sequence[Any], dtype: str, dims: Sequence[int | None] | None) -> Value:
    ty = relax.TensorType(None, dtype or None, ndim=-1 if dims is None else len(dims))
    return e.named(e.value(native_call(name, [e.tensor(x) for x in operands], ty)), dims)


def _place(e: Emit, node: Node, i: int, default: int) -> Value:
    return e.cast(node.input(i) or e.const(default, "int64"), "int64")


operator("SequenceConstruct", since=11)(lambda _e, *items: Value(items=list(items)))


@operator("SequenceEmpty", since=11)
def _empty(_e: Emit, *, dtype: int = TensorProto.FLOAT) -> Any:
    return Value(items=[], item=(str(helper.tensor_dtype_to_np_dtype(dtype)), None))


@operator("SequenceInsert", since=11)
def _insert(e: Emit, node: Node, x: Value, new: Value) -> Any:
    items = _items(node, x)
    at = _position(node, 2, 0 if items is None else len(items))
    if items is not None and at is not None:
        at = at + len(items) if at < 0 else at
        return Value(items=[*items[:at], new, *items[at:]])
    sequence = of_call(e, x, item_of(new))
    assert sequence.item is not None
    # What was empty so far has a rank now.
    item = joined(e, sequence.item, item_of(new)) if sequence.item[1] is not None else (new.dtype, None)
    if node.input(2) is None:
        return _called(e, "SequenceAppend", [sequence, new], item)
    return _called(e, "SequenceInsert", [sequence, new, _place(e, node, 2, 0)], item)


@operator("SequenceErase", since=11)
def _erase(e: Emit, node: Node, x: Value) -> Any:
    items, at = _items(node, x), _position(node, 1, -1)
    if items is not None and at is not None:
        return Value(items=[item for i, item in enumerate(items) if i != at % max(len(items), 1)])
    sequence = of_call(e, x)
    return _called(e, "SequenceErase", [sequence, _place(e, node, 1, -1)], sequence.item or ("", None))


@operator("SequenceAt", since=11)
def _at(e: Emit, node: Node, x: Value) -> Any:
    items, at = _items(node, x), _position(node, 1, 0)
    if items is not None and at is not None:
        if not -len(items) <= at < len(items):
            raise node.wrong(f"takes the item {at} of a sequence of {len(items)}")
        return items[at]
    sequence = of_call(e, x)
    return _tensor(e, "SequenceAt", [sequence, _place(e, node, 1, 0)], *(sequence.item or ("", None)))


@operator("SequenceLength", since=11)
def _length(e: Emit, node: Node, x: Value) -> Any:
    items = _items(node, x)
    return _tensor(e, "SequenceLength", [x], "int64", ()) if items is None else e.const(len(items), "int64")


@operator("ConcatFromSequence", since=11)
def _concat(e: Emit, node: Node, x: Value, *, axis: Any = None, new_axis: int = 0) -> Any:
    parts = _items(node, x)
    if parts is None:
        dtype, dims = x.item or ("", None)
        numbers = [relax.prim_value(axis), relax.prim_value(new_axis)]
        if dims is not None:
            at = axis % (len(dims) + new_axis)
            dims = (*dims[:at], None, *dims[at + (not new_axis) :])
        return _tensor(e, "SequenceConcat", [x, *numbers], dtype, dims)
    if new_axis:
        parts = [e.expand_dims(part, axis=axis) for part in parts]
    return e.onnx("Concat", *parts, opset=13, axis=axis)


def _size_of_parts(e: Emit, given: Value) -> int | None:
    """The size that all parts have, if it is known; of a scalar, the last part may be smaller."""
    call: Any = e.bb.lookup_binding(given.expr) if is_a(given.expr, relax.Var) else None
    if given.known is not None:
        size = int(given.known)
    elif is_a(call, relax.Call) and call.op == _FULL and is_constant(call.args[1]):
        size = int(constant_numpy(call.args[1]))
    else:
        return None
    return size if size == 1 or given.rank else None


@operator("SplitToSequence", since=11)
def _split(e: Emit, node: Node, x: Value, split: Value | None = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    """Parts of given sizes, or of one size and a rest; without a size single elements."""
    axis %= len(x.sizes)
    size: Any = x.sizes[axis]
    given = e.const(1) if split is None else split
    keeps, is_each = bool(keepdims) or split is not None, not given.rank
    if (isinstance(size, Dim) or not given.is_constant) if is_each else isinstance(given.sizes[0], Dim):
        numbers = [relax.prim_value(axis), relax.prim_value(int(keeps))]
        dtype, dims = item_of(x)
        item = dtype, (*(dims or ())[:axis], *[_size_of_parts(e, given)] * keeps, *(dims or ())[axis + 1 :])
        return _called(e, "SequenceSplit", [x, e.cast(given, "int64"), *numbers], item)
    sizes: list[Any] = [1] if split is None else ints_of(e, node, 1, "split") or []
    if is_each:
        sizes = [min(sizes[0], size - start) for start in range(0, size, sizes[0])]
    node.wanted = (True,) * len(sizes)
    items = [part for part in parts_of(e, node, x, axis, sizes) if part is not None]
    return Value(items=items if keeps else [e.squeeze(part, axis=[axis]) for part in items])


operator("Identity")(lambda _e, x: x)


@operator("Optional", since=15)
def _optional(_e: Emit, node: Node) -> Any:
    node.unused("type")
    return node.input(0) or Value()


@operator("OptionalHasElement", since=15)
def _has_element(e: Emit, value: Value | None = None) -> Any:
    return e.const(value is not None and not value.is_empty, "bool")


@operator("OptionalGetElement", since=15)
def _element(e: Emit, node: Node, x: Value) -> Any:
    if x.is_empty:
        raise node.wrong("takes the element of an optional that is empty")
    return x
