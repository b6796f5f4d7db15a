"""Conversions between integers and real numbers, and the rules by which the nodes around them take them over.

Every conversion to integers rounds, and clamps to the range of its dtype. **Each step of a model keeps its round and
its clamp**, whatever it is fused with. A rewrite has three ways to see to that, and there is no fourth:

* the integers stay a tensor: storing them rounds and clamps;
* both become steps between two post-ops (`kept`);
* the rewrite proves that they do nothing: for all 256 bytes (`quantized.change_scale`), or because integers are
  moved, picked or read again at the same scale.

A clamp does something even where the next one is wider, and at the lower end it may be the model's only relu:
quantisers leave a relu out where a zero point does its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...vendor import Node, PortableGraph, PostOp, Scaling
from .common import PRODUCTS
from .library import fused
from .quantize import is_dequantize, is_quantize
from .views import VIEWS, move_up, only_reader

#: kinds whose result is the same for a source of any zero point
_NORMALIZATIONS = ("softmax", "layer_normalization")
#: kinds that give each element of the result some element of the source
_MOVERS = (*VIEWS, "slice", "shuffle", "gather", "concat")
#: the largest magnitude of weights of which two neighbours times 255 fit in 16 bits
_SMALL = 64
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def kept(dtype: str, point: int = 0) -> list[PostOp]:
    """What storing a value in ``dtype`` does to it, as steps on the value less the zero point ``point``."""
    if dtype not in RANGES:
        return []
    low, high = (float(end - point) for end in RANGES[dtype])
    return [PostOp("eltwise", "round"), PostOp("eltwise", "clip", low, high)]


class Links:
    """The conversions of a graph, and the rules by which they are taken over."""

    def __init__(self, graph: PortableGraph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self.constants = graph.constant_tensors()

    # ---------------------------------------------------------------- scales and zero points
    def scale(self, scaling: Scaling) -> np.ndarray | None:
        """The scale or scales, where they are known and above zero."""
        known = None if scaling.scale is None else self.graph.value_of(scaling.scale)
        return known if known is not None and bool((known > 0).all()) else None

    def zero_point(self, scaling: Scaling) -> int | None:
        """The zero point, where it is one and known."""
        if scaling.zero_point is None:
            return 0
        known = self.graph.value_of(scaling.zero_point)
        return int(known.reshape(-1)[0]) if known is not None and known.size == 1 else None

    def numbers(self, scaling: Scaling) -> tuple[float, int] | None:
        """Scale and zero point of a whole tensor, where both are known."""
        scale, point = self.scale(scaling), self.zero_point(scaling)
        return (
            None if scaling.axis is not None or scale is None or point is None else (float(scale.reshape(-1)[0]), point)
        )

    def number(self, tensor: int) -> float | None:
        """The number that a tensor of one element holds, where it is known, dequantised or not."""
        while (node := self.nodes.producer(tensor)) is not None and node.kind in VIEWS:
            tensor = node.inputs[0]
        scaling = self.numbers(node.scalings[0]) if node is not None and is_dequantize(node) else (1.0, 0)
        stored = self.graph.value_of(node.inputs[0] if node is not None and is_dequantize(node) else tensor)
        if scaling is None or stored is None or stored.size != 1:
            return None
        return (float(stored.reshape(-1)[0]) - scaling[1]) * scaling[0]

    def are_equal(self, a: Scaling, b: Scaling) -> bool:
        """Whether two scalings of a whole tensor are one."""
        if a.axis is not None or b.axis is not None:
            return False
        (first, second), points = (self.scale(a), self.scale(b)), (self.zero_point(a), self.zero_point(b))
        of_one_scale = first is not None and second is not None and first.item() == second.item()
        of_one_point = None not in points and points[0] == points[1]
        return (a.scale == b.scale or of_one_scale) and (a.zero_point == b.zero_point or of_one_point)

    def dequantized(self, tensor: int) -> Node | None:
        """The conversion that makes ``tensor`` of bytes with one scale, if it is one."""
        node = self.nodes.producer(tensor)
        if node is None or not is_dequantize(node) or node.scalings[0].axis is not None:
            return None
        return node if self.dtype(node.inputs[0]) in RANGES else None

    def dtype(self, tensor: int) -> str:
        """The dtype of a tensor."""
        return self.graph.tensors[tensor].dtype

    def only_reader(self, tensor: int) -> Node | None:
        """The one node that reads ``tensor``; ``None`` if it is read elsewhere too."""
        return only_reader(self.graph, tensor)

    # ---------------------------------------------------------------- movements
    def raise_quantize(self, node: Node) -> None:
        """Quantise before a movement instead of after it: the result is the same, and it moves integers."""
        waiting = [node]
        while waiting:
            quantize = waiting.pop()
            scaling = quantize.result_scaling
            if not is_quantize(quantize) or scaling is None or scaling.axis is not None:
                continue
            (out,) = quantize.outputs
            mover = self.nodes.producer(quantize.inputs[0])
            if mover is None or self.only_reader(quantize.inputs[0]) is not quantize or not self._may_follow(mover):
                continue
            if mover.kind in ("pooling", "resampling") and self.scale(scaling) is None:
                continue
            if mover.kind != "concat" and is_dequantize(self.nodes.producer(mover.inputs[0])):
                continue  # that one is moved behind it
            if not self._is_known_before(scaling, mover):
                continue
            sources = list(mover.inputs)
            for place in self._data(mover):
                source = sources[place]
                made = self.graph.insert("reorder", [source], self.graph.tensors[source].shape, self.dtype(out), mover)
                made.stands_for(quantize)
                self.nodes.rescale(made, {}, scaling)
                sources[place] = made.outputs[0]
                waiting.append(made)
            self.nodes.remove(quantize)
            self.nodes.rewire(mover, sources, [out])

    def lower_dequantize(self, node: Node) -> bool:
        """Dequantise after a movement instead of before it."""
        conversions = [self.dequantized(node.inputs[place]) for place in self._data(node)]
        first = conversions[0] if conversions else None
        if first is None or not self._may_follow(node, first.scalings[0]):
            return False
        scaling = first.scalings[0]
        if any(
            c is None
            or not self.are_equal(c.scalings[0], scaling)
            or self.dtype(c.inputs[0]) != self.dtype(first.inputs[0])
            for c in conversions
        ):
            return False
        sources = list(node.inputs)
        for place, conversion in zip(self._data(node), conversions, strict=True):
            assert conversion is not None
            sources[place] = conversion.inputs[0]
        (out,) = node.outputs
        if node.kind == "eltwise":  # a relu of what is at least 0
            self.graph.replace({out: node.inputs[0]})
            return True
        if node.kind == "pad":
            node.attrs = {**node.attrs, "value": float(self.zero_point(scaling) or 0)}
        inner = self.graph.new_tensor(self.dtype(first.inputs[0]), self.graph.tensors[out].shape)
        after = Node("reorder", (inner,), (out,), scalings={0: scaling})
        after.stands_for(first)
        self.nodes.rewire(node, sources, [inner])
        self.nodes.insert(after, node)
        self.nodes.move(after, after=node)
        return True

    def _data(self, node: Node) -> range:
        """The positions of the inputs whose elements ``node`` moves."""
        return range(len(node.inputs) if node.kind == "concat" else 1)

    def _may_follow(self, node: Node, scaling: Scaling | None = None) -> bool:
        """Whether a conversion may change places with ``node``; ``scaling`` is that of one in front of it."""
        if node.post_ops or node.is_scaled:
            return False
        if node.kind in ("pooling", "resampling"):
            picks = node.attrs["alg"] in ("max", "nearest")
            return picks and (scaling is None or self.scale(scaling) is not None)
        if scaling is not None and node.kind == "pad":
            return node.attrs["value"] == 0 and self.zero_point(scaling) is not None
        if scaling is not None and node.kind == "eltwise" and node.attrs["alg"] == "relu":
            source = self.nodes.producer(node.inputs[0])
            assert source is not None
            least = RANGES[self.dtype(source.inputs[0])][0]
            return self.scale(scaling) is not None and self.zero_point(scaling) == least
        return node.kind in _MOVERS

    def _is_known_before(self, scaling: Scaling, node: Node) -> bool:
        """Whether scale and zero point are there when ``node`` runs; their own conversions are moved up to it."""

        def may_move(producer: Node, tensor: int) -> bool:
            return tensor in self.constants or producer.kind in ("reshape", "reorder")

        return move_up(self.graph, node, scaling.tensors, may_move)

    def is_one_primitive(self, node: Node) -> bool:
        """Whether oneDNN has one implementation of a node with all of its steps; taken for granted for open sizes."""
        return bool(self.graph.symbols) or not fused(self.graph.isolate(node, self.constants))[1]

    def _around(self, node: Node) -> tuple[Node, Node, Scaling] | None:
        """The conversion to real numbers in front of ``node``, and the one behind it to integers of this scaling."""
        before, after = self.dequantized(node.inputs[0]), self.only_reader(node.outputs[0])
        if node.post_ops or node.is_scaled or before is None or after is None or not is_quantize(after):
            return None
        assert after.result_scaling is not None
        return before, after, after.result_scaling

    def skip_round_trip(self, node: Node) -> bool:
        """Let the readers of integers that are dequantised and quantised alike read them as they are."""
        if not is_quantize(node) or node.result_scaling is None:
            return False
        before = self.dequantized(node.inputs[0])
        if before is None or self.dtype(before.inputs[0]) != self.dtype(node.outputs[0]):
            return False
        if self.scale(node.result_scaling) is None or not self.are_equal(before.scalings[0], node.result_scaling):
            return False
        self.graph.replace({node.outputs[0]: before.inputs[0]})
        self.nodes.remove(node)
        return True

    def average_integers(self, node: Node) -> bool:
        """Average the integers themselves where source and result have one scale; padding has to be the zero point.

        A half is rounded to the even neighbour of what is above the zero point: an odd one is taken off before.
        """
        averages = {"pooling": ("avg_include_padding", "avg_exclude_padding"), "resampling": ("linear",)}
        if node.attrs.get("alg") not in averages.get(node.kind, ()) or (found := self._around(node)) is None:
            return False
        before, after, result = found
        scaling = before.scalings[0]
        if self.scale(scaling) is None or not self.are_equal(scaling, result):
            return False
        if self.dtype(before.inputs[0]) != self.dtype(after.outputs[0]):
            return False
        pads, point = [*node.attrs.get("pad_begin", ()), *node.attrs.get("pad_end", ())], self.zero_point(scaling)
        if point is None or (node.attrs["alg"] == "avg_include_padding" and any(pads) and point != 0):
            return False
        steps = [("linear", float(-point)), ("round", 0.0), ("linear", float(point))] if point % 2 else []
        post_ops = [PostOp("eltwise", alg, 1.0, beta) for alg, beta in steps]
        integers = Node(node.kind, before.inputs, after.outputs, node.attrs, post_ops)
        if post_ops and not self.is_one_primitive(integers):
            return False
        self.nodes.remove(after)
        self.nodes.rewire(node, before.inputs, after.outputs)
        node.post_ops = post_ops
        node.stands_for(after)
        return True

    def normalize_integers(self, node: Node) -> None:
        """Let a softmax or a layer norm read and write integers; a zero point of its source changes nothing."""
        if node.kind not in _NORMALIZATIONS or node.attrs.get("alg", "accurate") != "accurate":
            return
        if (found := self._around(node)) is None:
            return
        before, after, result = found
        last = len(self.graph.tensors[node.inputs[0]].shape) - 1
        is_last = node.attrs.get("axis", last) == last  # the one that our kernel knows
        if not is_last or result.axis is not None or not self._is_known_before(result, node):
            return
        self.nodes.remove(after)
        self.nodes.rewire(node, (*before.inputs, *node.inputs[1:]), after.outputs)
        self.nodes.rescale(node, {0: Scaling(before.scalings[0].scale)}, result)
        node.stands_for(before, after)

    # ---------------------------------------------------------------- products
    def read_product(self, node: Node) -> str:
        """Let a product read integers; else the reason why it cannot, empty where nothing is quantised."""
        found = [self._behind_views(node.inputs[place]) for place in (0, 1)]
        named = list(zip(("source", "weights"), found, strict=True))
        if all(conversion is None for _, (conversion, _) in named):
            return ""
        for name, (conversion, _) in named:
            if conversion is None:
                return f"the {name} of the {node.kind} are no dequantised integers"
        (source, before), (weights, over) = found
        assert source is not None
        assert weights is not None
        if not {self.dtype(source.inputs[0]), self.dtype(weights.inputs[0])} <= {*RANGES}:
            types = f"{self.dtype(source.inputs[0])} and {self.dtype(weights.inputs[0])}"
            return f"products on integers take int8 and uint8, not {types}"
        if source.scalings[0].axis is not None:
            return "the source has a scale or a zero point for each channel"
        scaling = weights.scalings[0]
        axis = self._axis_behind(node, scaling.axis, over)
        groups = len(self.graph.tensors[node.inputs[1]].shape) - len(self.graph.tensors[node.inputs[0]].shape)
        channels = len(self.graph.tensors[node.inputs[1]].shape) - 1 if node.kind == "matmul" else groups
        if scaling.axis is not None and axis != channels:
            return f"the scales of the weights extend along axis {axis}, not along the channels of the result"
        integers = (self._seen(source.inputs[0], before, node), self._seen(weights.inputs[0], over, node))
        self.nodes.rewire(node, (*integers, *node.inputs[2:]))
        self.nodes.rescale(node, {0: source.scalings[0], 1: replace(scaling, axis=axis)})
        node.source = [*source.source, *weights.source, *node.source]
        node.calls = [*source.calls, *weights.calls, *node.calls]
        return ""

    def has_small_weights(self, node: Node) -> bool:
        """Whether no two of its weights, times the largest uint8, exceed 16 bits: then vpmaddubsw is exact."""
        if 1 not in node.scalings or self.dtype(node.inputs[0]) != "uint8":
            return False
        tensor = node.inputs[1]
        while (view := self.nodes.producer(tensor)) is not None and view.kind in VIEWS:
            tensor = view.inputs[0]
        known = self.graph.value_of(tensor)
        return known is not None and int(np.abs(known.astype("int16")).max(initial=0)) <= _SMALL

    def _behind_views(self, tensor: int) -> tuple[Node | None, list[Node]]:
        """The conversion behind reshapes and permutations of an operand, and these in order."""
        views: list[Node] = []
        node = self.nodes.producer(tensor)
        while node is not None and node.kind in VIEWS:
            views.insert(0, node)
            node = self.nodes.producer(node.inputs[0])
        return (node if node is not None and is_dequantize(node) else None), views

    def _axis_behind(self, node: Node, axis: int | None, views: Sequence[Node]) -> int | None:
        """The axis behind views; -1 if there is none."""
        for view in views:
            before, after = (self.graph.tensors[t].shape for t in (*view.inputs, *view.outputs))
            if axis is None:
                break
            if view.kind == "permute":
                axis = int(view.attrs["axes"].index(axis))
            elif node.kind != "matmul" and axis == 0 and len(after) == len(before) + 1 and after[2:] == before[1:]:
                axis = 1  # of all groups
            else:
                axis = next((i for i in range(len(after)) if after[i:] == before[axis:]), -1)
            if axis < 0:
                break
        return axis

    def _seen(self, tensor: int, views: Sequence[Node], before: Node) -> int:
        """The integers through the same views as the real numbers."""
        for view in views:
            shape = self.graph.tensors[view.outputs[0]].shape
            tensor = self.graph.insert(view.kind, [tensor], shape, self.dtype(tensor), before, **view.attrs).outputs[0]
        return tensor

    def write_sum(self, node: Node) -> None:
        """Let a product without scales write the whole numbers themselves, which are float32 in between otherwise."""
        product = self.nodes.producer(node.inputs[0]) if node.kind == "reorder" and not node.is_scaled else None
        if product is None or product.kind not in PRODUCTS or 1 not in product.scalings or node.post_ops:
            return
        has_unit = all((scale := self.scale(s)) is not None and (scale == 1).all() for s in product.scalings.values())
        is_alone = self.only_reader(node.inputs[0]) is node and len(product.inputs) == 2 and not product.post_ops
        if self.dtype(node.outputs[0]) != "int32" or product.result_scaling is not None or not has_unit or not is_alone:
            return
        reader = self.only_reader(node.outputs[0])
        self.nodes.remove(node)
        product.stands_for(node)
        is_plain = reader is not None and reader.kind == "reorder" and not reader.is_scaled and not reader.post_ops
        if reader is not None and is_plain and self.dtype(reader.outputs[0]) == "float32":  # which the product writes
            self.nodes.remove(reader)
            self.nodes.rewire(product, outputs=reader.outputs)
            product.stands_for(reader)
            return
        points = {place: Scaling(None, s.zero_point, s.axis) for place, s in product.scalings.items()}
        self.nodes.rewire(product, outputs=node.outputs)
        self.nodes.rescale(product, {place: s for place, s in points.items() if s.tensors})

    def write_product(self, quantize: Node) -> str:
        """Let the product in front of a conversion write the integers; else the reason why it stays apart."""
        (tensor,), scaling = quantize.inputs, quantize.result_scaling
        product = self.nodes.producer(tensor)
        if product is None or product.kind not in PRODUCTS:
            return "" if product is None else f"{product.kind} does not write integers"
        if 1 not in product.scalings:
            return f"the {product.kind} in front of it is computed in float32"
        if self.only_reader(tensor) is not quantize:
            return f"the real result of {product.kind} is read elsewhere too"
        assert scaling is not None
        if scaling.axis is not None:
            return "the result has a scale for each channel"
        if not self._is_known_before(scaling, product):
            return f"its scale is computed after {product.kind}"
        self.nodes.remove(quantize)
        self.nodes.rewire(product, outputs=quantize.outputs)
        self.nodes.rescale(product, product.scalings, scaling)
        product.stands_for(quantize)
        return ""
