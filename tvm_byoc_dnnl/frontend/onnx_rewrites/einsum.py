"""Einsum of one or two tensors as transposes, reshapes and a matmul, which backends know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _einsum(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    equation = b.attrs["equation"].replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(node.input) or len(terms) > 2:
        return None
    if any(len(set(t)) != len(t) for t in (*terms, result)) or not set(result) <= set("".join(terms)):
        return None
    sizes: dict[str, int] = {}
    for name, term in zip(node.input, terms, strict=True):
        shape = graph.static_shape(name)
        if shape is None or len(shape) != len(term):
            return None
        if any(sizes.setdefault(letter, size) != size for letter, size in zip(term, shape, strict=True)):
            return None  # broadcasting of 1s
    if len(terms) == 1:
        return _one(b, terms[0], result)
    return _two(b, terms, result, sizes)


def _one(b: Builder, term: str, result: str) -> Nodes | None:
    if set(term) != set(result):
        return None
    _finish(b, b.old.input[0], term, result)
    return b.nodes


def _two(b: Builder, terms: list[str], result: str, sizes: dict[str, int]) -> Nodes | None:
    first, second = terms
    summed = [c for c in first if c in second and c not in result]
    batch = [c for c in result if c in first and c in second]
    rows = [c for c in result if c in first and c not in second]
    columns = [c for c in result if c in second and c not in first]
    if set(first) != {*batch, *rows, *summed} or set(second) != {*batch, *columns, *summed}:
        return None  # an axis of one operand alone is summed
    made = [*batch, *rows, *columns]
    a = _arranged(b, b.old.input[0], first, [batch, rows, summed], sizes)
    c = _arranged(b, b.old.input[1], second, [batch, summed, columns], sizes)
    product = _reshaped(b, b.add("MatMul", [a, c]), [sizes[x] for x in made])
    _finish(b, product, made, result)
    return b.nodes


def _arranged(b: Builder, name: str, term: str, groups: list[list[str]], sizes: dict[str, int]) -> str:
    """Axes group by group; the last two groups become one axis each."""
    order = [c for group in groups for c in group]
    moved = b.add("Transpose", [name], perm=[term.index(c) for c in order]) if order else name
    merged = [math.prod(sizes[c] for c in group) for group in groups[1:]]
    return _reshaped(b, moved, [*(sizes[c] for c in groups[0]), *merged])


def _finish(b: Builder, value: str, made: Sequence[str], wanted: str) -> None:
    """The old node's output: the axes of ``value`` in the order that is wanted."""
    if list(made) == list(wanted):
        b.add("Identity", [value], b.old.output[0])
    else:
        b.add("Transpose", [value], b.old.output[0], perm=[made.index(c) for c in wanted])


def _reshaped(b: Builder, name: str, shape: Iterable[int]) -> str:
    return b.add("Reshape", [name, b.ints(list(shape))])


RULES = {("", "Einsum"): _einsum}
