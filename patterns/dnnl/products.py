"""Products: of matrices, and the Einstein sums that are made of them; convolutions and transposed ones, 1-D to 3-D; and
products with weights of 8 or 4 bits, which a kernel of ours reads as they are stored.

Several matrix products of one row become one.

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

Compressed weights:

    x @ permute_dims(reshape(dequantize(q, scale, zero), (N, K)))

`tvm_byoc_dnnl.prepare.compression` writes this form, for the option ``weights`` and for models that store such weights.
Where the source is rounded in the same blocks (`tvm_byoc_dnnl.whole.rounded`), whole numbers are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, is_tuple, wildcard

from ...vendor import (
    ROUNDED,
    GraphBuilder,
    Node,
    PortableGraph,
    Reject,
    Value,
    block_of,
    constant_numpy,
    dtype_of,
    pattern_example,
    register_lowering,
    register_pattern,
    require,
)
from .common import (
    Match,
    algorithm,
    canonical_layout,
    floats,
    from_layout,
    ints,
    option,
    pattern,
    product,
    require_float,
    size_of,
    to_layout,
)
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


def _algorithm(graph: PortableGraph) -> dict[str, str]:
    """The attribute ``alg`` that says what the user's options say; none for the defaults."""
    tile = option(graph, "winograd_tile")
    if not option(graph, "fast_convolution"):
        return {"alg": "direct"}
    return {"alg": "winograd_2x2"} if tile == 2 else algorithm(graph)


def _split_groups(g: GraphBuilder, weights: Value, groups: int) -> Value:
    """``[G·A, B, k…]`` → ``[G, A, B, k…]``."""
    first, *rest = weights.shape
    channels = size_of(first, f"weights of symbolic shape {weights.shape}")
    return g.reshape(weights, (groups, channels // groups, *rest))


def _convolved(g: GraphBuilder, call: Any, kind: str, weight_order: str) -> Value:
    op, attrs = call.op.name, call.attrs
    src, weights = g.operands(call)
    require_float(op, src, weights)
    require(all(isinstance(d, int) for d in weights.shape), f"weights of symbolic shape {weights.shape}")
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    out_layout = str(attrs.out_layout) or data_layout
    canonical = canonical_layout(data_layout, "NC")
    spatial = len(canonical) - 2
    src = to_layout(g, src, data_layout, canonical)
    require(isinstance(src.shape[1], int), f"a source of symbolic shape {src.shape}, whose channels are open")
    weights = to_layout(g, weights, kernel_layout, canonical_layout(kernel_layout, weight_order))
    groups = int(attrs.groups)
    if groups > 1:
        weights = _split_groups(g, weights, groups)
    if kind == "deconvolution":  # oneDNN wants [G,] O, I
        lead = weights.ndim - spatial - 2
        weights = g.permute(weights, [*range(lead), lead + 1, lead, *range(lead + 2, weights.ndim)])
    padding = ints(attrs.padding)
    pad_end = padding[spatial:]
    if kind == "deconvolution":  # output padding is less padding at the end
        pad_end = [p - more for p, more in zip(pad_end, ints(attrs.output_padding), strict=True)]
    shape = from_layout(g.shape_of(call.ty), out_layout, canonical)
    node: dict[str, Any] = {
        "strides": ints(attrs.strides),
        "dilations": ints(attrs.dilation),
        "pad_begin": padding[:spatial],
        "pad_end": pad_end,
    }
    if kind == "convolution":
        node.update(_algorithm(g.graph))
    out = g.emit(kind, [src, weights], shape, dtype_of(call.ty), **node)
    return to_layout(g, out, canonical, out_layout)


@register_lowering("dnnl", ["relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"])
def convolution(g: GraphBuilder, call: Any) -> Value:
    """Convolution with groups, dilation and asymmetric padding, in any unblocked layout."""
    return _convolved(g, call, "convolution", "OI")


@register_lowering("dnnl", ["relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"])
def deconvolution(g: GraphBuilder, call: Any) -> Value:
    """Transposed convolution; output padding is less padding at the end."""
    return _convolved(g, call, "deconvolution", "IO")


def _weights(data: Any, parts: dict[str, Any]) -> Any:
    real = is_op("relax.dequantize")(data, parts["scale"], parts["zero"])
    parts["real"] = real
    return is_op("relax.permute_dims")(is_op("relax.reshape")(real, wildcard()))


def _register(name: str, bits: int) -> None:
    parts = {key: is_const() for key in ("data", "scale", "zero")}
    stored: Any = parts["data"]
    if bits == 4:
        four = parts["four"] = is_const()
        low = is_op("relax.right_shift")(is_op("relax.left_shift")(stored, four), four)
        high = is_op("relax.right_shift")(stored, four)
        stored = is_op("relax.reshape")(is_op("relax.stack")(is_tuple([low, high])), wildcard())
    x = parts["x"] = wildcard()
    source = parts["rounded"] = is_op(ROUNDED)(x)
    pattern = is_op("relax.matmul")(source | x, _weights(stored, parts))

    def lower(g: GraphBuilder, match: Match) -> Value:
        return _compressed(g, match, bits)

    def example() -> tvm.IRModule:
        return _example(bits)

    register_pattern("dnnl", name, pattern, annotations=parts, lower=lower, example=example)


def _compressed(g: GraphBuilder, match: Match, bits: int) -> Value:
    """The product as a node of its own kind."""
    x, data, scale, zero = (g.value(match[name]) for name in ("x", "data", "scale", "zero"))
    out = g.shape_of(match["root"].ty)
    require_float("relax.matmul", x)
    require(x.dtype == "float32", f"weights of {bits} bits with a source of dtype {x.dtype}; only float32 is taken")
    require(data.dtype == "int8", f"weights of {bits} bits that are stored as {data.dtype}")
    require(int(match["real"].attrs.axis) % 2 == 0 and data.ndim == 2, "scales along another axis than the columns")
    require(bits == 8 or int(constant_numpy(match["four"])) == 4, "shifts by another number than 4")
    (n, k), group = (out[-1], x.shape[-1]), data.shape[1]
    assert isinstance(n, int)
    assert isinstance(k, int)
    assert isinstance(group, int)
    group = group * 8 // bits
    groups = k // group
    require(group % 8 == 0 and groups * group == k, f"groups of {group} weights, which do not divide {k} by eights")
    require(scale.shape == (n * groups,), f"scales of shape {scale.shape} for {n} columns of {groups} groups")
    inputs = [
        g.reshape(x, (product(x.shape[:-1]), k)),
        g.reshape(data, (n, k * bits // 8)),
        g.reshape(scale, (n, groups)),
    ]
    zeros = zero.constant
    if zeros is None or zeros.any():
        require(zero.shape == scale.shape and zero.dtype == "int8", f"zero points of shape {zero.shape}, {zero.dtype}")
        inputs.append(g.reshape(g.emit("reorder", [zero], zero.shape, "float32"), (n, groups)))
    attrs: dict[str, Any] = {"group_size": group}
    if scale.constant is not None and _is_narrow(scale.constant):
        attrs["scale_bits"] = 16  # as zero points are, too
    if (rounded := match.get("rounded")) is not None:
        block = block_of(rounded)
        require(block == group, f"a source that is rounded in blocks of {block}, but groups of {group} weights")
        attrs["alg"] = "int8"
    rows = product(x.shape[:-1])
    return g.reshape(g.emit("compressed_matmul", inputs, (rows, n), **attrs), out)


def _is_narrow(scales: np.ndarray) -> bool:
    """Whether float16 says them exactly, as those of files that store them so."""
    with np.errstate(over="ignore"):
        return np.array_equal(scales, scales.astype("float16"))


def _example(bits: int) -> tvm.IRModule:
    """One product; any bytes are weights of either width."""
    columns, depth, group = 40, 64, 32
    groups = columns * depth // group
    rng = np.random.default_rng(bits)
    stored = relax.const(rng.integers(-128, 128, (groups, group * bits // 8)).astype("int8"))
    scales = relax.const((rng.random(groups) + 0.5).astype("float32"))
    zeros = relax.const(np.zeros(groups, "int8"))

    def product_with(x: Any) -> Any:
        data = stored
        if bits == 4:
            four = relax.const(np.int8(4), "int8")
            low, high = R.right_shift(R.left_shift(data, four), four), R.right_shift(data, four)
            data = R.reshape(R.stack([low, high], -1), (groups, group))
        real = R.dequantize(data, scales, zeros, axis=0, out_dtype="float32")
        return R.matmul(x, R.permute_dims(R.reshape(real, (columns, depth))))

    return pattern_example(product_with, (3, depth))()


_register("compressed_matmul_int8", 8)
_register("compressed_matmul_int4", 4)
