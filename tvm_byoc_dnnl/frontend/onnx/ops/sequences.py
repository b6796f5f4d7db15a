"""Sequences are lists of values, and need no call."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Value


def _items(node: Node, i: int = 0) -> list[Value]:
    items = node.needed(i).items
    if items is None:
        raise node.refused("reads a sequence whose items only a call knows")
    return items


def _position(node: Node, i: int, default: int) -> int:
    value = node.input(i)
    return default if value is None else int(node.known(i, "the position in a sequence").reshape(()))


@operator("SequenceConstruct", since=11)
def _construct(e: Emit, node: Node) -> Any:
    return Value(items=[node.needed(i) for i in range(len(node.inputs))])


@operator("SequenceEmpty", since=11)
def _empty(e: Emit, node: Node) -> Any:
    node.attr("dtype")
    return Value(items=[])


@operator("SequenceInsert", since=11)
def _insert(e: Emit, node: Node) -> Any:
    items = _items(node)
    at = _position(node, 2, len(items))
    at = at + len(items) if at < 0 else at
    return Value(items=[*items[:at], node.needed(1), *items[at:]])


@operator("SequenceErase", since=11)
def _erase(e: Emit, node: Node) -> Any:
    items = _items(node)
    at = _position(node, 1, -1) % max(len(items), 1)
    return Value(items=[item for i, item in enumerate(items) if i != at])


@operator("SequenceAt", since=11)
def _at(e: Emit, node: Node) -> Any:
    items, at = _items(node), _position(node, 1, 0)
    if not -len(items) <= at < len(items):
        raise node.wrong(f"takes the item {at} of a sequence of {len(items)}")
    return items[at]


@operator("SequenceLength", since=11)
def _length(e: Emit, node: Node) -> Any:
    return e.const(len(_items(node)), "int64")


@operator("ConcatFromSequence", since=11)
def _concat(e: Emit, node: Node) -> Any:
    axis, stacks = node.attr("axis"), node.attr("new_axis", 0)
    parts = _items(node)
    if stacks:
        parts = [e.call(relax.op.expand_dims, part, axis=axis) for part in parts]
    return e.call(lambda *tensors: relax.op.concat(list(tensors), axis), *parts)


def _given(node: Node) -> Value:
    return node.needed(0)


@operator("Identity", value=_given)
def _identity(e: Emit, node: Node) -> Any:
    return node.needed(0)


@operator("Optional", since=15)
def _optional(e: Emit, node: Node) -> Any:
    node.attr("type")
    return node.input(0) or Value()


@operator("OptionalHasElement", since=15)
def _has_element(e: Emit, node: Node) -> Any:
    value = node.input(0)
    return e.const(value is not None and not value.is_empty, "bool")


@operator("OptionalGetElement", since=15)
def _element(e: Emit, node: Node) -> Any:
    if node.needed(0).is_empty:
        raise node.wrong("takes the element of an optional that is empty")
    return node.needed(0)
