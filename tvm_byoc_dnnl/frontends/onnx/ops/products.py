"""Products: MatMul, Gemm and Einsum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from ..dim import Size, equal, product
from ..emit import Emit, common
from ..table import operator
from ..value import Node, Value


@operator("MatMul")
def multiplied(e: Emit, a: Value, b: Value) -> Value:
    """The product of matrices, whose sizes are made to agree."""
    if a.dims is not None and b.dims is not None and a.dims and b.dims:
        at = len(b.sizes) - 2 if len(b.sizes) > 1 else 0
        if not equal(a.sizes[-1], b.sizes[at]):
            inner = common([b.sizes[at], a.sizes[-1]])
            a = e.agree(a, [*a.sizes[:-1], inner])
            b = e.agree(b, [*b.sizes[:at], inner, *b.sizes[at + 1 :]])
        if len(a.sizes) > 2 and len(b.sizes) > 2:
            a, b = e.equalised([a, b], lambda axis: axis < -2)
    return e.matmul(a, b)


@operator("Gemm")
def _gemm(
    e: Emit, node: Node, a: Value, b: Value, c: Value | None = None, *, alpha: float = 1.0, beta: float = 1.0
) -> Any:
    node.unused("broadcast")  # until opset 7, when it became the rule
    a = a if alpha == 1.0 else a * alpha
    sides = ((a, node.attr("transA", 0)), (b, node.attr("transB", 0)))
    made = multiplied(e, *(e.transpose(x, [1, 0]) if is_turned else x for x, is_turned in sides))
    return made if c is None or beta == 0.0 else made + (c if beta == 1.0 else c * beta)


class _Term:
    """A tensor and the letter of each of its axes."""

    def __init__(self, value: Value, letters: str) -> None:
        self.value, self.letters = value, letters

    def size(self, letter: str) -> Size:
        assert self.value.dims is not None
        return self.value.sizes[self.letters.index(letter)]

    def without(self, e: Emit, letter: str) -> _Term:
        axis = self.letters.index(letter)
        value = e.squeeze(self.value, axis=[axis])
        return _Term(value, self.letters[:axis] + self.letters[axis + 1 :])

    def summed(self, e: Emit, letters: Sequence[str]) -> _Term:
        if not letters:
            return self
        axes = [self.letters.index(c) for c in letters]
        return _Term(e.sum(self.value, axis=axes), "".join(c for c in self.letters if c not in letters))

    def ordered(self, e: Emit, letters: Sequence[str]) -> Value:
        return e.transpose(self.value, [self.letters.index(c) for c in letters])


@operator("Einsum", since=12)
def _einsum(e: Emit, node: Node) -> Any:
    """Two operands at a time as a product of matrices."""
    terms, result = _read(e, node)
    first, *rest = terms
    while rest:
        second = rest.pop(0)
        kept = {*result, *(c for term in rest for c in term.letters)}
        first = _product(e, first, second, kept)
    first = first.summed(e, [c for c in first.letters if c not in result])
    if set(first.letters) != set(result):
        raise node.wrong(f"has the equation {node.attr('equation')}, whose result has letters of no operand")
    return first.ordered(e, result)


def _read(e: Emit, node: Node) -> tuple[list[_Term], str]:
    """The operands, each with every letter once, and the letters of the result; an ellipsis has its own letters."""
    equation = node.attr("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    parts = left.split(",")
    if len(parts) != len(node.inputs):
        raise node.wrong(f"has the equation {equation} for {len(node.inputs)} operands")
    used = {c for c in equation if c.isalpha()}
    free = "αβγδεζηθικλμνξοπρστυφχψω"
    terms, longest = [], 0
    for i, part in enumerate(parts):
        value = node.needed(i)
        if value.rank is None:
            raise node.refused(f"has an operand {i} of unknown rank")
        count = value.rank - len(part.replace("...", ""))
        if count < 0 or (count > 0 and "..." not in part):
            raise node.wrong(f"has the term {part} for an operand of {value.rank} axes")
        longest = max(longest, count if "..." in part else 0)
        letters = part.replace("...", free[:count][::-1])
        terms.append(_diagonal(e, _Term(value, letters)))
    every = free[:longest][::-1]
    if not arrow:
        result = every + "".join(sorted(c for c in used if left.count(c) == 1))
    return _agreed(e, terms), result.replace("...", every)


def _diagonal(e: Emit, term: _Term) -> _Term:
    """A letter that a term has twice takes the diagonal."""
    for letter in term.letters:
        while term.letters.count(letter) > 1:
            first = term.letters.index(letter)
            second = term.letters.index(letter, first + 1)
            dims = list(term.value.sizes)
            size = dims[second]
            order = [i for i in range(len(dims)) if i not in (first, second)] + [first, second]
            moved = e.transpose(e.agree(term.value, [*dims[:first], size, *dims[first + 1 :]]), order)
            places = e.places(size)
            is_on = e.equal(e.reshape(places, [size, 1]), e.reshape(places, [1, size]))
            kept = e.where(is_on, moved, 0)
            letters = "".join(term.letters[i] for i in order[:-1])
            term = _Term(e.sum(kept, axis=[len(dims) - 1]), letters)
    return term


def _agreed(e: Emit, terms: list[_Term]) -> list[_Term]:
    """Sizes of a letter are equal; where one of them is 1 and others are not, it is repeated by leaving it out."""
    for letter in {c for term in terms for c in term.letters}:
        sizes = [t.size(letter) for t in terms if letter in t.letters and t.size(letter) != 1]
        if not sizes:
            continue
        size = common(sizes)
        for i, term in enumerate(terms):
            if letter not in term.letters:
                continue
            if term.size(letter) == 1:
                terms[i] = term.without(e, letter)
            else:
                dims = [size if c == letter else d for c, d in zip(term.letters, term.value.sizes, strict=True)]
                terms[i] = _Term(e.agree(term.value, dims), term.letters)
    return terms


def _product(e: Emit, a: _Term, b: _Term, kept: set[str]) -> _Term:
    a = a.summed(e, [c for c in a.letters if c not in b.letters and c not in kept])
    b = b.summed(e, [c for c in b.letters if c not in a.letters and c not in kept])
    both = [c for c in a.letters if c in b.letters]
    batch, inner = [c for c in both if c in kept], [c for c in both if c not in kept]
    rows, columns = ([c for c in t.letters if c not in both] for t in (a, b))
    outer, across, down = ([t.size(c) for c in part] for t, part in ((a, batch), (a, rows), (b, columns)))
    depth = product([a.size(c) for c in inner])
    left = e.reshape(a.ordered(e, [*batch, *rows, *inner]), [*outer, product(across), depth])
    right = e.reshape(b.ordered(e, [*batch, *inner, *columns]), [*outer, depth, product(down)])
    made = e.call(relax.op.matmul if inner else relax.op.multiply, left, right)
    return _Term(e.reshape(made, [*outer, *across, *down]), "".join([*batch, *rows, *columns]))
