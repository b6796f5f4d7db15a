"""Matrix products, and the Einstein sums that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax.dpl import is_op, wildcard

from ...vendor import GraphBuilder, Reject, Value, register_lowering, require
from .common import Match, algorithm, constant, floats, pattern, product, require_float
from .reduce import reduced
from .shape import permute


def _product(g: GraphBuilder, a: Value, b: Value, shape: Sequence[Any], dtype: str) -> Value:
    """One node, with what the user's options say of it."""
    return g.emit("matmul", [a, b], shape, dtype, **algorithm(g.graph.options))


@register_lowering("dnnl", "relax.matmul")
def matmul(g: GraphBuilder, call: Any) -> Value:
    """NumPy's matmul: operands of rank 1 and batch axes that broadcast included."""
    return _matmul(g, g.value(call.args[0]), g.value(call.args[1]), call.ty)


def _matmul(g: GraphBuilder, a: Value, b: Value, result: Any) -> Value:
    require_float("relax.matmul", a, b)
    out_shape, dtype = g.shape_of(result), str(result.dtype)
    if a.ndim == 1:
        a = g.reshape(a, (1, *a.shape))
    if b.ndim == 1:
        b = g.reshape(b, (*b.shape, 1))
    m, n = a.shape[-2], b.shape[-1]
    if b.ndim == 2 and a.ndim > 2:
        # one tall product instead of a batch of small ones
        rows = product(a.shape[:-1])
        return g.reshape(_product(g, g.reshape(a, (rows, a.shape[-1])), b, (rows, n), dtype), out_shape)
    rank = max(a.ndim, b.ndim)
    a, b = (g.reshape(v, (1,) * (rank - v.ndim) + v.shape) for v in (a, b))
    batch = [y if x == 1 else x for x, y in zip(a.shape[:-2], b.shape[:-2], strict=True)]
    return g.reshape(_product(g, a, b, (*batch, m, n), dtype), out_shape)


def _transposed(g: GraphBuilder, match: Match) -> Value:
    """Constant weights are packed from the order in which they are stored."""
    return _matmul(g, g.value(match["x"]), permute(g, match["turned"]), match["root"].ty)


_x, _turned = wildcard(), is_op("relax.permute_dims")(constant())
pattern("matmul_transposed", is_op("relax.matmul")(_x, _turned), {"x": _x, "turned": _turned}, _transposed)


@register_lowering("dnnl", "relax.outer")
def outer(g: GraphBuilder, call: Any) -> Value:
    """Every product of an element of one vector with one of another."""
    a, b = floats(g, call)
    return g.binary("mul", g.reshape(a, (*a.shape, 1)), b, g.shape_of(call.ty))


# ---------------------------------------------------------------- einsum
class _Labelled:
    """A tensor with a letter for each axis."""

    def __init__(self, g: GraphBuilder, value: Value, labels: str) -> None:
        self.g, self.value, self.labels = g, value, labels
        self.sizes = dict(zip(labels, value.shape, strict=True))

    def summed(self, wanted: str) -> _Labelled:
        """Without the axes whose letter is not among ``wanted``."""
        gone = [i for i, label in enumerate(self.labels) if label not in wanted]
        kept = "".join(label for label in self.labels if label in wanted)
        value = reduced(self.g, self.value, gone, "sum")
        return _Labelled(self.g, self.g.reshape(value, [self.sizes[label] for label in kept]), kept)

    def ordered(self, labels: str) -> Value:
        """Its axes in this order, of which it has all."""
        return self.g.permute(self.value, [self.labels.index(label) for label in labels])

    def times(self, other: _Labelled, wanted: str) -> _Labelled:
        """The product of two, summed over the letters that are not among ``wanted``."""
        a, b = self.summed(wanted + other.labels), other.summed(wanted + self.labels)
        shared = [label for label in a.labels if label in b.labels]
        for label in shared:
            require(a.sizes[label] == b.sizes[label], f"einsum with {label} of {a.sizes[label]} and {b.sizes[label]}")
        batch = "".join(label for label in shared if label in wanted)
        summed = "".join(label for label in shared if label not in wanted)
        left = "".join(label for label in a.labels if label not in b.labels)
        right = "".join(label for label in b.labels if label not in a.labels)
        sizes, lead = {**a.sizes, **b.sizes}, [a.sizes[label] for label in batch]
        dims = {part: [sizes[label] for label in part] for part in (left, summed, right)}
        shape = (*lead, *dims[left], *dims[right])
        if not summed:
            first = self.g.reshape(a.ordered(batch + left), (*lead, *dims[left], *(1 for _ in right)))
            second = self.g.reshape(b.ordered(batch + right), (*lead, *(1 for _ in left), *dims[right]))
            return _Labelled(self.g, self.g.binary("mul", first, second, shape), batch + left + right)
        m, k, n = (product(dims[part]) for part in (left, summed, right))
        first = self.g.reshape(a.ordered(batch + left + summed), (*lead, m, k))
        second = self.g.reshape(b.ordered(batch + summed + right), (*lead, k, n))
        out = _product(self.g, first, second, (*lead, m, n), first.dtype)
        return _Labelled(self.g, self.g.reshape(out, shape), batch + left + right)


@register_lowering("dnnl", "relax.einsum")
def einsum(g: GraphBuilder, call: Any) -> Value:
    """Einstein sums as matrix products, from left to right."""
    operands = g.values(call.args[0])
    require_float(call.op.name, *operands)
    inputs, output = _subscripts(str(call.attrs.subscripts), operands)
    terms = [_Labelled(g, value, labels) for value, labels in zip(operands, inputs, strict=True)]
    out = terms[0]
    for i, term in enumerate(terms[1:], 2):
        out = out.times(term, output + "".join(inputs[i:]))
    return out.summed(output).ordered(output)


def _subscripts(text: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of each operand and of the result."""
    left, arrow, output = text.replace(" ", "").partition("->")
    inputs = left.split(",")
    if not arrow:  # in alphabetical order, those that stand once
        output = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    for labels in (*inputs, output):
        if "." in labels or len(set(labels)) != len(labels):
            raise Reject(f"einsum {text!r}: only letters are taken, each once in an operand")
    require(len(inputs) == len(operands), f"einsum {text!r} of {len(operands)} operands")
    for labels, value in zip(inputs, operands, strict=True):
        require(len(labels) == value.ndim, f"einsum {text!r} with an operand of rank {value.ndim}")
    return inputs, output
