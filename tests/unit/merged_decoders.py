"""Small decoders with random weights, merged as Hugging Face Optimum writes them: an `If` with a past, or without."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, DEPTH, LAYERS, VOCABULARY, MOST = 2, 8, 2, 19, 40
WIDTH = HEADS * DEPTH
KINDS = ("whisper", "t5", "bart", "marian")


class Graph:
    """Nodes in the making, with names that start with that of the graph."""

    def __init__(self, name: str, weights: dict[str, np.ndarray], seed: int) -> None:
        self.name, self.weights = name, weights
        self.nodes: list[onnx.NodeProto] = []
        self.random = np.random.default_rng(seed)

    def add(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """The name of a node's result."""
        names = [self.constant(x) if not isinstance(x, str) else x for x in inputs]
        made = [f"{self.name}_{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, f"{self.name}_{op}_{len(self.nodes)}", **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, value: Any) -> str:
        """A constant of the branch."""
        name = f"{self.name}_constant_{len(self.nodes)}"
        tensor = numpy_helper.from_array(np.asarray(value))
        self.nodes.append(helper.make_node("Constant", [], [name], name, value=tensor))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A weight, which both branches have in common."""
        if name not in self.weights:
            self.weights[name] = self.random.standard_normal(shape).astype("float32") / 4
        return name

    def size(self, x: str, axis: int) -> str:
        """A size as a vector of one element, as PyTorch computes it."""
        taken = self.add("Gather", self.add("Shape", x), np.array(axis), axis=0)
        return self.add("Unsqueeze", taken, np.array([0]))

    def linear(self, x: str, name: str, inner: int, outer: int, bias: bool = True) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", inner, outer))
        return self.add("Add", product, self.weight(f"{name}.bias", outer)) if bias else product

    def heads(self, x: str) -> str:
        """``(batch, steps, width)`` as ``(batch, heads, steps, depth)``."""
        shape = self.add("Concat", self.size(x, 0), np.array([-1]), np.array([HEADS]), np.array([DEPTH]), axis=0)
        return self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 2, 1, 3])

    def attention(self, q: str, k: str, v: str, bias: str | None) -> str:
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.add("Div", scores, np.float32(DEPTH**0.5))
        if bias is not None:
            scores = self.add("Add", scores, bias)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        shape = self.add("Concat", self.size(mixed, 0), np.array([-1]), np.array([WIDTH]), axis=0)
        return self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), shape)

    def norm(self, x: str, name: str, kind: str) -> str:
        scale = self.weight(f"{name}.scale", WIDTH)
        if kind == "t5":
            power = self.add("ReduceMean", self.add("Pow", x, np.float32(2)), axes=[-1])
            root = self.add("Sqrt", self.add("Add", power, np.float32(1e-6)))
            return self.add("Mul", scale, self.add("Div", x, root))
        return self.add("LayerNormalization", x, scale, self.weight(f"{name}.shift", WIDTH), axis=-1)


def _position(g: Graph, kind: str, hidden: str, past: str | None) -> tuple[str, str]:
    """The states with their positions, and the bias of the scores: future steps count nothing."""
    steps = g.size("input_ids", 1)
    before = g.size(past, 2) if past else g.constant(np.array([0]))
    total = g.add("Add", before, steps)
    squeezed = [g.add("Squeeze", n, np.array([0])) for n in (before, total)]
    rows = g.add("Range", squeezed[0], squeezed[1], np.array(1))
    columns = g.add("Range", np.array(0), squeezed[1], np.array(1))
    if kind in ("whisper", "marian"):  # rows of a table, from the length of the past on
        table = g.weight("positions", MOST, WIDTH)
        hidden = g.add("Add", hidden, g.add("Slice", table, before, total, np.array([0])))
    elif kind == "bart":
        index = g.add("Add", rows, np.array(2))
        hidden = g.add("Add", hidden, g.add("Gather", g.weight("positions", MOST + 2, WIDTH), index))
    column = g.add("Unsqueeze", rows, np.array([1]))
    row = g.add("Unsqueeze", columns, np.array([0]))
    future = g.add("Less", column, row)
    bias = g.add("Where", future, np.float32(-3e4), np.float32(0))
    bias = g.add("Unsqueeze", bias, np.array([0, 1]))
    if kind == "t5":  # buckets of distances, which grow with the logarithm
        distance = g.add("Neg", g.add("Min", g.add("Sub", row, column), np.array(0)))
        as_float = g.add("Cast", g.add("Max", distance, np.array(1)), to=TensorProto.FLOAT)
        far = g.add("Mul", g.add("Log", g.add("Div", as_float, np.float32(4))), np.float32(1.5))
        far = g.add("Add", g.add("Cast", far, to=TensorProto.INT64), np.array(4))
        bucket = g.add("Where", g.add("Less", distance, np.array(4)), distance, g.add("Min", far, np.array(7)))
        relative = g.add("Transpose", g.add("Gather", g.weight("relative", 8, HEADS), bucket), perm=[2, 0, 1])
        bias = g.add("Add", g.add("Unsqueeze", relative, np.array([0])), bias)
    return hidden, bias


def _branch(kind: str, weights: dict[str, np.ndarray], has_past: bool) -> onnx.GraphProto:
    g = Graph("past" if has_past else "first", weights, 7)
    hidden = g.add("Gather", g.weight("embedding", VOCABULARY, WIDTH), "input_ids")
    hidden, bias = _position(g, kind, hidden, "past_key_values.0.decoder.key" if has_past else None)
    results = []
    for layer in range(LAYERS):
        past = f"past_key_values.{layer}"
        x = g.norm(hidden, f"{layer}.norm0", kind)
        q, k, v = (g.heads(g.linear(x, f"{layer}.self.{part}", WIDTH, WIDTH, kind != "t5")) for part in "qkv")
        if has_past:
            k, v = (g.add("Concat", f"{past}.decoder.{part}", new, axis=2) for part, new in (("key", k), ("value", v)))
        mixed = g.linear(g.attention(q, k, v, bias), f"{layer}.self.o", WIDTH, WIDTH, kind != "t5")
        hidden = g.add("Add", hidden, mixed)
        x = g.norm(hidden, f"{layer}.norm1", kind)
        q = g.heads(g.linear(x, f"{layer}.cross.q", WIDTH, WIDTH, kind != "t5"))
        if has_past:
            cross = [f"{past}.encoder.key", f"{past}.encoder.value"]
            given = [g.constant(np.zeros((0, HEADS, 1, DEPTH), "float32")) for _ in cross]
        else:
            cross = given = [
                g.heads(g.linear("encoder_hidden_states", f"{layer}.cross.{part}", WIDTH, WIDTH, kind != "t5"))
                for part in "kv"
            ]
        mixed = g.linear(g.attention(q, *cross, None), f"{layer}.cross.o", WIDTH, WIDTH, kind != "t5")
        hidden = g.add("Add", hidden, mixed)
        x = g.linear(g.norm(hidden, f"{layer}.norm2", kind), f"{layer}.up", WIDTH, 2 * WIDTH)
        if kind in ("t5", "marian"):
            x = g.add("Relu", x)
        else:
            erf = g.add("Erf", g.add("Div", x, np.float32(2**0.5)))
            x = g.add("Mul", g.add("Mul", x, g.add("Add", erf, np.float32(1))), np.float32(0.5))
        hidden = g.add("Add", hidden, g.linear(x, f"{layer}.down", 2 * WIDTH, WIDTH))
        results += [k, v, *given]
    logits = g.linear(g.norm(hidden, "last", kind), "head", WIDTH, VOCABULARY, False)
    names = [f"{g.name}_{name}" for name in outputs()]
    g.nodes += [helper.make_node("Identity", [r], [n]) for r, n in zip([logits, *results], names, strict=True)]
    return helper.make_graph(
        g.nodes, g.name, [], [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names]
    )


def outputs() -> list[str]:
    """The logits, and the keys and values of each layer."""
    parts = [f"{side}.{part}" for side in ("decoder", "encoder") for part in ("key", "value")]
    return ["logits", *(f"present.{layer}.{part}" for layer in range(LAYERS) for part in parts)]


def merged_decoder(kind: str) -> onnx.ModelProto:
    """A decoder that takes ``input_ids``, the encoder's states, the past and ``use_cache_branch``."""
    weights: dict[str, np.ndarray] = {}
    branches = {name: _branch(kind, weights, name == "then_branch") for name in ("else_branch", "then_branch")}
    choice = helper.make_node("If", ["use_cache_branch"], outputs(), "optimum::if", **branches)
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "steps"]),
        helper.make_tensor_value_info("encoder_hidden_states", TensorProto.FLOAT, ["batch", "frames", WIDTH]),
    ]
    for name in outputs()[1:]:
        length = "past_length" if "decoder" in name else "frames_out"
        shape = ["batch", HEADS, length, DEPTH]
        inputs.append(
            helper.make_tensor_value_info(name.replace("present", "past_key_values"), TensorProto.FLOAT, shape)
        )
    inputs.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs()]
    tensors = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph([choice], kind, inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
