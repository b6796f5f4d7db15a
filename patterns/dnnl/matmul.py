"""Matrix products, and the Einstein sums that are made of them. Several matrix products of one row become one.

        x [1, K]                           x [1, K]
       /    |    \\                            |
    @ W1  @ W2  @ W3        ──>        @ [W1 | W2 | W3]        the weights joined once, when the module loads
     + b1  + b2  + b3                  + [b1 | b2 | b3]
     relu  relu  relu                       relu
       \\    |    /                       /     |    \\
                                    columns of the result, read where they are

Only for one row (a token of a decoder, the heads after a global pooling): its columns are then contiguous pieces, so
their readers read the same data as before, and the starts of all products but one are saved. With more rows the
pieces are strided, and whether joined products are faster depends on the numbers of rows and threads. So they are left
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

from ...vendor import GraphBuilder, Node, PortableGraph, Reject, Value, register_lowering, require
from .common import Match, algorithm, floats, pattern, product, require_float
from .reduce import reduced
from .shape import permute
from .views import VIEWS, move_up


def _product(g: GraphBuilder, a: Value, b: Value, shape: Sequence[Any], dtype: str) -> Value:
    """One node, with what the user's options say of it."""
    return g.emit("matmul", [a, b], shape, dtype, **algorithm(g.graph))


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


def _transposed_example(x: Any) -> Any:
    weights = np.random.default_rng(0).uniform(-1, 1, (7, 13)).astype("float32")
    return R.matmul(x, R.permute_dims(relax.const(weights)))


_x, _turned = wildcard(), is_op("relax.permute_dims")(is_const())
_root, _parts = is_op("relax.matmul")(_x, _turned), {"x": _x, "turned": _turned}
pattern("matmul_transposed", _root, _parts, _transposed, _transposed_example, (3, 13))


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


# ---------------------------------------------------------------- several products of one row
def merge_matmuls(graph: PortableGraph) -> None:
    """Join the products of each tensor that may be joined; runs on fused graphs, whose products have their bias."""
    constants = graph.constant_tensors()
    groups: dict[tuple[object, ...], list[Node]] = {}
    delivered = _delivered(graph)
    for node in graph.nodes:
        if node.kind == "matmul" and why_apart(graph, node, constants, delivered) is None:
            groups.setdefault(_common(graph, node), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(graph, nodes)


def why_apart(graph: PortableGraph, node: Node, constants: set[int], delivered: set[int]) -> str | None:
    """The reason why a product cannot be joined with others of its input; ``None`` if it can.

    ``delivered``: tensors that are outputs of the region, through views or not.
    """
    shape = graph.tensors[node.outputs[0]].shape
    if len(shape) != 2 or shape[0] != 1:
        return f"a product of shape {list(shape)}: only the columns of one row lie together"
    if not isinstance(shape[1], int):
        return f"a symbolic number of columns, {shape[1]}"
    if node.is_scaled:
        return "operands with scales or zero points"
    if any(op.kind != "eltwise" for op in node.post_ops):
        return "a post-op with an operand of its own"
    if node.inputs[0] in constants or not constants.issuperset(node.inputs[1:]):
        return "weights or a bias that are known at run time only"
    if node.outputs[0] in delivered:
        return "a result of the region: its columns would have to be copied there"
    return None


def _delivered(graph: PortableGraph) -> set[int]:
    """The region's outputs, and the tensors of which they are views."""
    found = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.kind in VIEWS and found.intersection(node.outputs):
            found.update(node.inputs)
    return found


def _common(graph: PortableGraph, node: Node) -> tuple[object, ...]:
    """The properties in which products must agree to be joined."""
    types = tuple((graph.tensors[t].dtype, len(graph.tensors[t].shape)) for t in (*node.inputs[1:], *node.outputs))
    root = node.inputs[0]  # each product may have a reshape of its own; the result has rank 2, so they are alike
    while (view := graph.nodes.producer(root)) is not None and view.kind == "reshape":
        root = view.inputs[0]
    return root, types, tuple((op.alg, op.alpha, op.beta) for op in node.post_ops), repr(node.attrs)


def _merge(graph: PortableGraph, nodes: list[Node]) -> None:
    first = nodes[0]
    places = range(1, len(first.inputs))
    operands = [first.inputs[0], *(_joined(graph, first, [n.inputs[p] for n in nodes]) for p in places)]
    widths = [graph.tensors[n.outputs[0]].shape[1] for n in nodes]
    dtype = graph.tensors[first.outputs[0]].dtype
    total = sum(w for w in widths if isinstance(w, int))
    whole = graph.new_tensor(dtype, (1, total))
    joined = Node("matmul", tuple(operands), (whole,), dict(first.attrs), list(first.post_ops))
    joined.stands_for(*nodes)
    graph.nodes.insert(joined, first)
    begin = 0
    for node, width in zip(nodes, widths, strict=True):
        assert isinstance(width, int)
        slice_ = Node("slice", (whole,), node.outputs, {"begin": [0, begin], "steps": [1, 1]})
        begin += width
        graph.nodes.insert(slice_, first)
    for node in nodes:
        graph.nodes.remove(node)


def _joined(graph: PortableGraph, first: Node, tensors: Sequence[int]) -> int:
    """The constants side by side; computed once."""
    move_up(graph, first, tensors)
    shapes = [graph.tensors[t].shape for t in tensors]
    columns = sum(s[-1] for s in shapes if isinstance(s[-1], int))
    axis = len(shapes[0]) - 1
    shape = (*shapes[0][:-1], columns)
    return graph.insert("concat", tensors, shape, graph.tensors[tensors[0]].dtype, before=first, axis=axis).outputs[0]
