"""Fusion inside a lowered region: elementwise chains become post-ops of the primitive in front of them.

    src, weights              src, weights, bias, z
        |                           |
   convolution                 convolution
        |                      bias                  the first add of a constant per channel
     add(bias)       ──>       post_ops: relu,       any length, any order
        |                                add z       z: defined before the convolution, any broadcast
      relu
        |
      add(z)

A step is taken only if its input has no other reader, and oneDNN has an implementation with it: the lowering of the
whole chain says how far that goes.
"""

from __future__ import annotations

from ...vendor import Node, PortableGraph, PostOp
from .attention import fuse_attention
from .bfloat16 import compute_in_bfloat16, note_widened
from .common import ARITHMETIC
from .library import fused
from .numerics import exact_means, keep_infinities, keep_nan_of_bounds, keep_nan_of_softmax
from .products import merge_matmuls
from .quantize import write_out
from .quantized import read_integers, write_integers
from .quantized_links import RANGES, kept
from .views import VIEWS, divisor_of, move_up, read_parts, sink_views

#: primitive → kinds of post-ops that oneDNN documents for it
_ANCHORS = {
    "convolution": ("eltwise", "binary"),
    "deconvolution": ("eltwise", "binary"),
    "matmul": ("eltwise", "binary"),
    "compressed_matmul": ("eltwise", "binary"),
    "pooling": ("eltwise", "binary"),
    "reduction": ("eltwise", "binary"),
    "resampling": ("eltwise", "binary"),
    "softmax": ("eltwise", "binary"),
    "binary": ("eltwise", "binary"),
    "eltwise": ("binary",),
    "batch_normalization": ("eltwise",),
}
_POST_OPS = ("eltwise", "binary")
#: operands that cannot change places: oneDNN's max and min answer with the second one when there is a NaN
_ORDERED = ("div", "max", "min", "max_of_numbers", "min_of_numbers")
_BIAS_AXIS = {"convolution": 1, "deconvolution": 1, "matmul": -1}
#: oneDNN's own limit on a primitive's post-ops
_MAX_POST_OPS = 32


def fuse_post_ops(graph: PortableGraph) -> PortableGraph:
    """Fuse every chain of elementwise nodes into the node that produces its input, then join products of one row."""
    exact_means(graph)
    sink_views(graph)
    read_integers(graph)
    compute_in_bfloat16(graph)
    fuse_attention(graph)
    keep_nan_of_softmax(graph)
    keep_nan_of_bounds(graph)
    keep_infinities(graph)
    _fuse_all(graph)
    write_integers(graph)
    if write_out(graph):
        _fuse_all(graph)
    read_parts(graph)
    merge_matmuls(graph)
    note_widened(graph)
    return graph.prune().validate()


def _fuse_all(graph: PortableGraph) -> None:
    if len(graph.nodes) < 2:
        return
    constants = graph.constant_tensors()
    graph.nodes.sort(key=lambda n: not constants.issuperset(n.outputs))  # nodes that are known at load come first
    fuser, nodes = _Fuser(graph), list(graph.nodes)
    for node in nodes:
        if node in graph.nodes:
            fuser.fuse_readers(node)


class _Fuser:
    def __init__(self, graph: PortableGraph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self._constants = graph.constant_tensors()
        self._outputs = set(graph.outputs)
        self._aliased = {graph.outputs[i.alias] for i in graph.inputs if i.alias is not None}
        self._is_static = not graph.symbols

    def fuse_readers(self, node: Node) -> None:
        """Fuse the only reader of ``node`` into it, then the only reader of that, and so on."""
        chain, reason = self._chain(node)
        taken = len(chain)
        if self._is_static and chain:
            # its operands as inputs; constants of the region stay constants
            count, refusal = fused(self.graph.isolate(chain[-1][0], self._constants))
            taken, reason = sum(len(joined.post_ops) <= count for joined, _ in chain), refusal or reason
        if taken:
            for _, user in chain[:taken]:
                self.nodes.remove(user)
                node.stands_for(user)
            joined = chain[taken - 1][0]
            self.nodes.rewire(node, joined.inputs, joined.outputs)
            node.post_ops = joined.post_ops
        for reader in self.nodes.readers(node.outputs[0]):
            if reader.kind in _POST_OPS and node.kind in _ANCHORS:
                reader.apart = reader.apart or reason

    def _chain(self, node: Node) -> tuple[list[tuple[Node, Node]], str]:
        """``node`` joined with one, two … of the nodes behind it, these nodes, and the reason why there are no more."""
        chain: list[tuple[Node, Node]] = []
        last = node
        while True:
            users = self.nodes.readers(last.outputs[0])
            candidate: Node | str = self._why_none(last, users)
            if not candidate:
                is_eltwise = users[0].kind == "eltwise"
                candidate = (
                    self._with_eltwise(last, users[0]) if is_eltwise else self._with_binary(last, users[0], node)
                )
            if isinstance(candidate, str):
                return chain, candidate
            chain.append((candidate, users[0]))
            last = candidate

    def _why_none(self, node: Node, users: list[Node]) -> str:
        """The reason why no reader of ``node`` can be fused into it; empty if its only reader may be."""
        allowed, out = _ANCHORS.get(node.kind, ()), node.outputs[0]
        reads = self.nodes.read_count(out)
        if out in self._outputs:
            return f"the result of {node.function} leaves the region"
        if reads != 1:
            return f"the result of {node.function} is read {reads} times"
        if len(node.post_ops) >= _MAX_POST_OPS:
            return f"{node.function} has {_MAX_POST_OPS} operators fused into it, which is oneDNN's limit"
        if users[0].kind not in allowed:
            return f"oneDNN fuses no {users[0].function} into {node.function}"
        if node.result_scaling is not None or users[0].is_scaled:
            return "the value between them has a scale or a zero point"
        if users[0].outputs[0] in self._aliased:
            return f"the result of {users[0].function} is written over an input of the region"
        if users[0].post_ops:
            return f"{users[0].function} has operators of its own fused into it"
        if users[0].kind == "binary" and self._dtype(out) in RANGES:
            return f"the value between them is rounded to {self._dtype(out)}"
        before, after = self._dtype(out), self._dtype(users[0].outputs[0])
        return "" if before == after else f"the dtype changes from {before} to {after}"

    def _dtype(self, tensor: int) -> str:
        return self.graph.tensors[tensor].dtype

    def _with_eltwise(self, node: Node, user: Node) -> Node:
        op = PostOp("eltwise", user.attrs["alg"], user.attrs["alpha"], user.attrs["beta"])
        return _joined(node, user, node.inputs, [*node.post_ops, *kept(self._dtype(node.outputs[0])), op])

    def _with_binary(self, node: Node, user: Node, place_of: Node) -> Node | str:
        alg, out = user.attrs["alg"], node.outputs[0]
        place = user.inputs.index(out)
        other = user.inputs[1 - place]
        shape = self.graph.tensors[user.outputs[0]].shape
        if alg not in ARITHMETIC:
            return f"oneDNN fuses no {alg} into another operator"
        if self.graph.tensors[out].shape != shape:
            return f"{alg} broadcasts {list(self.graph.tensors[out].shape)} to {list(shape)}"
        if not self._is_known_before(place_of, other):  # the other producer may take it
            return f"the other operand of {alg} is computed after {node.function}"
        ops = list(node.post_ops)
        if place == 1 and alg == "sub":
            ops.append(PostOp("eltwise", "linear", -1.0, 0.0))
            alg = "add"
        elif place == 1 and alg in _ORDERED:
            return f"the result of {node.function} is the second operand of {alg}"
        elif node.kind in _BIAS_AXIS and (divisor := divisor_of(self.graph, user)) is not None:
            # a sum of products is rounded anyway
            ops.append(PostOp("eltwise", "linear", 1 / divisor, 0.0))
            return _joined(node, user, node.inputs, ops)
        if alg == "add" and not ops and self._is_bias(node, other):
            return _joined(node, user, (*node.inputs, self._bias(node, other, place_of)), ops)
        ops.append(PostOp("binary", alg, input=len(node.inputs)))
        return _joined(node, user, (*node.inputs, other), ops)

    def _is_known_before(self, node: Node, tensor: int) -> bool:
        """Whether ``tensor`` is computed before ``node``; views, numbers and vectors are moved up to make it so."""

        def may_move(producer: Node, made: int) -> bool:
            return producer.kind in VIEWS or sum(d != 1 for d in self.graph.tensors[made].shape) < 2

        return move_up(self.graph, node, [tensor], may_move)

    def _is_bias(self, node: Node, other: int) -> bool:
        if node.kind not in _BIAS_AXIS or len(node.inputs) != 2 or other not in self._constants:
            return False
        shape = list(self.graph.tensors[other].shape)
        axis = _BIAS_AXIS[node.kind]
        channels = self.graph.tensors[node.outputs[0]].shape[axis]
        return shape[axis] == channels and all(d == 1 for i, d in enumerate(shape) if i != axis % len(shape))

    def _bias(self, node: Node, other: int, place_of: Node) -> int:
        """The operand in the shape of a bias: rank 1 for a convolution, as it is for a matmul."""
        if node.kind == "matmul":
            return other
        bias = self.graph.new_tensor(self._dtype(other), (self.graph.tensors[other].shape[1],))
        self._constants.add(bias)
        self.nodes.insert(Node("reshape", (other,), (bias,)), before=place_of)
        return bias


def _joined(node: Node, user: Node, inputs: tuple[int, ...], post_ops: list[PostOp]) -> Node:
    return Node(node.kind, inputs, user.outputs, node.attrs, post_ops, scalings=node.scalings)
