"""Products: MatMul, Gemm and Einsum; and mixtures of experts: of many small networks each row takes a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from ....whole.table import rounded
from ..dim import Size, equal, product
from ..emit import Emit, common, pieces, split_last
from ..table import operator
from ..value import Node, Type, Value
from .quantised_blocks import INTEGER_LEVEL, shaped, unpacked


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


_MS = "com.microsoft"


_ACTIVATIONS: dict[str, Callable[[Emit, Value], Value]] = {
    "relu": lambda e, x: e.relu(x),
    "gelu": lambda e, x: e.gelu_tanh(x),
    "silu": lambda e, x: e.silu(x),
    "identity": lambda _e, x: x,
}


class _Layer(NamedTuple):
    """One layer of each expert: weights [E, N, K], biases [E, N], and the blocks in which its source is rounded."""

    weights: Value
    bias: Value | None
    block: int | None = None


def _types(node: Node) -> list[Type]:
    return [node.needed(0).type]


@operator("MoE", domain=_MS, types=_types, whole=True)
def _mixture(e: Emit, node: Node) -> Value:
    return _mixed(e, node, [_Layer(node.needed(i), node.input(i + 1)) for i in (2, 4, 6) if i < 6 or node.input(i)])


@operator("QMoE", domain=_MS, types=_types, whole=True)
def _quantised_mixture(e: Emit, node: Node) -> Value:
    node.unused("weights_prepacked")
    if node.attr("quant_type", "int") != "int":
        raise node.refused(f"has weights of the kind `{node.attr('quant_type')}`; expected int")
    for position in range(15, 21):
        if node.input(position) is not None:
            raise node.refused(f"has its input {position}, which ONNX Runtime computes on no CPU")
    default, block = node.attr("expert_weight_bits", 4), int(node.attr("block_size", 0) or 0)
    level, layers = node.attr("accuracy_level", 0), []
    for layer, i in enumerate((2, 5, 8), 1):
        bits = node.attr(f"fc{layer}_expert_weight_bits") or default
        if layer == 3 and node.input(i) is None:
            continue
        weights = _real(e, node, i, 10 + layer, bits, block)
        is_rounded = bits == 8 or (bits == 4 and level == INTEGER_LEVEL)
        is_whole = block and weights.sizes[-1] % block == 0
        layers.append(_Layer(weights, node.input(i + 2), block if is_rounded and is_whole else None))
    return _mixed(e, node, layers, node.input(14))


def _real(e: Emit, node: Node, position: int, zeros_at: int, bits: int, block: int) -> Value:
    """Weights [E, N, K] of numbers with a scale for each row, or for each block of it."""
    if bits not in (2, 4, 8):
        raise node.refused(f"has weights of {bits} bits; expected 2, 4 or 8")
    stored = node.known(position, "the weights of its experts")
    scales = node.known(position + 1, "the scales of its experts")
    experts, n, k = *stored.shape[:2], stored.shape[-1] * 8 // bits
    numbers = unpacked(stored, bits, k).astype("float32")
    blocks = -(-k // block) if block else 1
    scales = shaped(node, "scales", scales, (experts, n, blocks)).astype("float32")
    places = np.arange(k) // (block or k)
    origin: Any = float(1 << (bits - 1))
    if node.input(zeros_at) is not None:
        zeros = node.known(zeros_at, "the zero points of its experts")
        rows, count = ((experts, n), blocks) if block else ((experts,), n)  # those of one row of bytes
        zeros = unpacked(shaped(node, "zero points", zeros, (*rows, -(-count * bits // 8))), bits, count)
        origin = zeros.reshape(scales.shape).astype("float32")[..., places]
    return e.const(((numbers - origin) * scales[..., places]).astype("float32"))


def _mixed(e: Emit, node: Node, layers: list[_Layer], weights: Value | None = None) -> Value:
    """Each row through every expert, in float32, with a share that is 0 for those that it does not take."""
    x, scores = node.needed(0), node.needed(1)
    if node.attr("use_sparse_mixer", 0):
        raise node.refused("has `use_sparse_mixer`, which ONNX Runtime computes on no CPU")
    if node.attr("swiglu_limit_after_activation", 0):
        raise node.refused("has `swiglu_limit_after_activation`")
    up, down, *gates = layers
    dims = x.sizes
    rows = e.cast(e.reshape(x, [1, product(dims[:-1]), dims[-1]]), "float32")
    count = up.weights.sizes[0]
    hidden = _each(e, rows, up)
    kind = node.attr("activation_type", "relu")
    if kind == "swiglu":
        hidden = _swiglu(e, node, hidden)
    else:
        if kind not in _ACTIVATIONS:
            raise node.refused(f"has the activation `{kind}`")
        hidden = _ACTIVATIONS[kind](e, hidden)
        node.unused("activation_alpha", "activation_beta", "swiglu_fusion", "swiglu_limit")
        for gate in gates:
            hidden = hidden * _each(e, rows, gate)
    share = e.transpose(_shares(e, node, scores, count, weights), [1, 0])
    mixed = e.sum(_each(e, hidden, down) * e.reshape(share, [count, product(dims[:-1]), 1]), axis=[0])
    return e.cast(e.reshape(mixed, dims), x.dtype)


def _each(e: Emit, x: Value, layer: _Layer) -> Value:
    if layer.block is not None:
        x = e.call(rounded, x, block=layer.block)
    out = e.matmul(x, e.cast(e.transpose(layer.weights, [0, 2, 1]), "float32"))
    return out if layer.bias is None else out + e.cast(e.expand_dims(layer.bias, axis=1), "float32")


def _swiglu(e: Emit, node: Node, x: Value) -> Value:
    """``g · sigmoid(alpha · g) · (u + beta)`` of pairs of neighbouring columns, or of halves."""
    fusion, limit = node.attr("swiglu_fusion", 0), node.attr("swiglu_limit")
    alpha, beta = float(node.attr("activation_alpha", 1.0)), float(node.attr("activation_beta", 0.0))
    *lead, width = x.sizes
    if fusion == 1:
        gate, up = pieces(e, e.reshape(x, [*lead, width // 2, 2]), len(lead) + 1, 2)
    elif fusion == 2:
        gate, up = split_last(e, x, [width // 2, width // 2])
    else:
        raise node.refused("has swiglu of weights that are apart (`swiglu_fusion` 0)")
    if limit is not None:
        gate, up = e.minimum(gate, limit), e.maximum(e.minimum(up, limit), -limit)
    return gate * e.sigmoid(gate * alpha) * (up + beta)


def _shares(e: Emit, node: Node, scores: Value, count: Any, weights: Value | None) -> Value:
    """``(rows, experts)``: the share that each expert has in a row; 0 for those that are not among its best.

    Of equal scores the last ones are the best, as in ONNX Runtime. Shares that are not normalized are those of all
    experts; those of ``QMoE`` always are, as in ONNX Runtime on a CPU, whatever the attribute says.
    """
    k = int(node.attr("k", 1))
    scores = e.cast(scores, "float32")
    shares = e.softmax(scores, axis=-1) if weights is None else e.cast(weights, "float32")
    best = e.topk(e.flip(scores, axis=-1), k=k, axis=-1, ret_type="indices", largest=True, dtype="int64")
    each, places = e.reshape(best, [*scores.sizes[:-1], k, 1]), e.flip(e.places(count), axis=0)
    taken = e.cast(e.equal(each, places), "float32")  # (rows, k, experts)
    kept = shares * e.sum(taken, axis=[-2])
    normalizes = node.attr("normalize_routing_weights", 0)
    if not normalizes and (node.op == "MoE" or weights is not None):
        return kept
    total = e.sum(kept, axis=[-1], keepdims=True)
    if weights is not None:  # a row of zeros has shares of 0
        total = e.where(e.equal(total, 0.0), 1.0, total)
    return kept / total
