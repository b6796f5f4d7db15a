"""Models for `bench.load`: ONNX files that are nearly all weights, built in code with seeded noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["MODELS", "WeightyModel"]

_OPSET = 17  # the first with LayerNormalization


class _Builder:
    """Nodes and weights of one graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Noise of a size that keeps activations near 1."""
        noise = self._rng.standard_normal(shape, "float32")
        noise *= np.float32(scale if scale is not None else 1 / np.sqrt(shape[0]))
        return self.constant(noise)

    def constant(self, value: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def linear(self, x: str, inner: int, outer: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.weight(inner, outer)), self.weight(outer, scale=0.02))

    def norm(self, x: str, width: int) -> str:
        ones = self.constant(np.ones(width, "float32"))
        return self.node("LayerNormalization", x, ones, self.weight(width, scale=0.02), axis=-1)

    def model(self, inputs: list[onnx.ValueInfoProto], output: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "model", inputs, [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _bert_base(words: int = 128, width: int = 768, heads: int = 12, layers: int = 12) -> onnx.ModelProto:
    """An encoder of BERT-base's shape: its embeddings, attention and feed-forward layers, no pooler."""
    b = _Builder()
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, (1, words))
    x = b.node("Gather", b.weight(30522, width, scale=1.0), "input_ids")
    x = b.norm(b.node("Add", x, b.weight(1, words, width, scale=1.0)), width)
    split = b.constant(np.array([1, words, heads, width // heads]))
    merge = b.constant(np.array([1, words, width]))
    root = b.constant(np.array((width // heads) ** -0.5, "float32"))
    half, one, sqrt2 = (b.constant(np.array(v, "float32")) for v in (0.5, 1.0, 2**0.5))
    for _ in range(layers):
        q, k, v = (b.node("Reshape", b.linear(x, width, width), split) for _ in range(3))
        q, v = (b.node("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = b.node("Mul", b.node("MatMul", q, b.node("Transpose", k, perm=[0, 2, 3, 1])), root)
        mixed = b.node("Transpose", b.node("MatMul", b.node("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = b.norm(b.node("Add", x, b.linear(b.node("Reshape", mixed, merge), width, width)), width)
        h = b.linear(x, width, 4 * width)
        gelu = b.node("Add", b.node("Erf", b.node("Div", h, sqrt2)), one)
        h = b.node("Mul", b.node("Mul", h, half), gelu)
        x = b.norm(b.node("Add", x, b.linear(h, 4 * width, width)), width)
    return b.model([ids], x, (1, words, width))


def _dense(width: int = 4096, layers: int = 16) -> onnx.ModelProto:
    """1 GB of square matrices: nothing but weights."""
    b = _Builder()
    x = "x"
    for _ in range(layers):
        x = b.node("Relu", b.linear(x, width, width))
    return b.model([helper.make_tensor_value_info("x", TensorProto.FLOAT, (8, width))], x, (8, width))


@dataclass(frozen=True)
class WeightyModel:
    """One row of the table."""

    name: str
    build: Callable[[], onnx.ModelProto]

    def inputs(self, model: onnx.ModelProto) -> list[np.ndarray]:
        """Seeded inputs: noise, or words below 1000."""
        rng = np.random.default_rng(1)
        arrays = []
        for value in model.graph.input:
            shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
            words = value.type.tensor_type.elem_type == TensorProto.INT64
            arrays.append(rng.integers(0, 1000, shape) if words else rng.standard_normal(shape, "float32"))
        return arrays


MODELS = {m.name: m for m in (WeightyModel("bert_base", _bert_base), WeightyModel("dense_1gb", _dense))}
