"""Models with open sizes, as exporters write them: shapes are computed by nodes of the graph.

Each has seeded random weights and any size that is asked for: a text encoder of open batch and length, an image
network of open height and width, a text decoder whose cache is an input and an output, and a model of speech.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["decoder", "encoder", "image_network", "speech_decoder", "speech_encoder"]

_LOWEST = float(np.finfo("float32").min)


class Net:
    """Nodes and weights in the making."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        """A node; arrays and lists of numbers among the inputs become constants."""
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        made = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, name=f"{op}_{len(self.nodes)}", **attrs))
        return made[0] if outputs == 1 else made

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, std: float | None = None) -> np.ndarray:
        """Noise that keeps activations near 1."""
        std = std or float(np.sqrt(2.0 / np.prod(shape[1:] if len(shape) == 4 else shape[:1])))
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(std)

    def dim(self, value: str, axis: int) -> str:
        """One dim of a value, as a vector of one number."""
        return self("Unsqueeze", self("Gather", self("Shape", value), np.int64(axis)), np.array([0]))

    def scalar_dim(self, value: str, axis: int) -> str:
        return self("Gather", self("Shape", value), np.int64(axis))

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        product = self("MatMul", x, self.weight(inputs, outputs, std=inputs**-0.5))
        return self("Add", product, self.weight(outputs, std=0.1))

    def norm(self, x: str, width: int) -> str:
        scale = (1 + self.weight(width, std=0.1)).astype("float32")
        return self("LayerNormalization", x, scale, self.weight(width, std=0.1), axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        erf = self("Erf", self("Div", x, np.float32(np.sqrt(2.0))))
        return self("Mul", self("Mul", x, self("Add", erf, np.float32(1))), np.float32(0.5))

    def heads(self, x: str, count: int, size: int) -> str:
        """Batch, length, width → batch, head, length, part of the width."""
        shape = self("Concat", self.dim(x, 0), self.dim(x, 1), np.array([count]), np.array([size]), axis=0)
        return self("Transpose", self("Reshape", x, shape), perm=[0, 2, 1, 3])

    def joined(self, x: str, width: int) -> str:
        """The reverse of `heads`."""
        x = self("Transpose", x, perm=[0, 2, 1, 3])
        return self("Reshape", x, self("Concat", self.dim(x, 0), self.dim(x, 1), np.array([width]), axis=0))

    def attention(self, query: str, key: str, value: str, mask: str, size: int) -> str:
        scores = self("MatMul", query, self("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self("Add", self("Div", scores, np.float32(np.sqrt(size))), mask)
        return self("MatMul", self("Softmax", scores, axis=-1), value)

    def mlp(self, x: str, width: int, hidden: int) -> str:
        return self.dense(self.gelu(self.dense(x, width, hidden)), hidden, width)

    def model(
        self,
        inputs: Mapping[str, tuple[int, Sequence[int | str]]],
        outputs: Mapping[str, tuple[str, Sequence[int | str] | None]],
    ) -> onnx.ModelProto:
        for name, (made, _) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [made], [name], name=f"give_{name}"))
        graph = helper.make_graph(
            self.nodes,
            "open_model",
            [helper.make_tensor_value_info(n, kind, list(dims)) for n, (kind, dims) in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, (_, dims) in outputs.items()],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def encoder(
    layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 30522, positions: int = 512, seed: int = 0
) -> onnx.ModelProto:
    """A text encoder of BERT's structure: inputs ``input_ids`` and ``attention_mask`` of open batch and length."""
    net = Net(seed)
    ids, mask = "input_ids", "attention_mask"
    length = net.dim(ids, 1)
    places = net("Slice", np.arange(positions)[None], np.array([0]), length, np.array([1]))
    words = net("Gather", net.weight(vocabulary, width, std=1.0), ids)
    x = net("Add", words, net("Gather", net.weight(positions, width, std=1.0), places))
    x = net.norm(x, width)
    # the mask, widened to (batch, 1, length, length), as older exporters write `expand`
    shape = net("Concat", net.dim(ids, 0), np.array([1]), length, length, axis=0)
    ones = net(
        "ConstantOfShape",
        net("Reshape", net("Shape", shape), np.array([-1])),
        value=numpy_helper.from_array(np.array([1], "int64")),
    )
    minus = net("Mul", ones, np.int64(-1))
    wanted = net("Where", net("Equal", shape, minus), ones, shape)
    wide = net("Expand", net("Unsqueeze", net("Unsqueeze", mask, np.array([1])), np.array([2])), wanted)
    inverse = net("Sub", np.float32(1), net("Cast", wide, to=TensorProto.FLOAT))
    bias = net("Where", net("Cast", inverse, to=TensorProto.BOOL), np.float32(_LOWEST), inverse)
    size = width // heads
    for _ in range(layers):
        query, key, value = (net.heads(net.dense(x, width, width), heads, size) for _ in range(3))
        mixed = net.joined(net.attention(query, key, value, bias, size), width)
        x = net.norm(net("Add", net.dense(mixed, width, width), x), width)
        x = net.norm(net("Add", net.mlp(x, width, 4 * width), x), width)
    text = (TensorProto.INT64, ("batch", "length"))
    return net.model({ids: text, mask: text}, {"states": (x, ("batch", "length", width))})


def image_network(width: int = 32, depth: int = 3, seed: int = 0) -> onnx.ModelProto:
    """A U-Net whose picture is ``2*h`` × ``2*w`` and halved ``depth`` times.

    The first way back up copies pixels to the size of the picture before it, the others convolve transposed and are cut
    to it.
    """
    net = Net(seed)
    widths = [width << level for level in range(depth + 1)]
    x, channels, kept = "image", 3, []
    for level, own in enumerate(widths):
        if level:
            x = net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        for _ in range(2):
            bias = net.weight(own, std=0.1)
            x = net("Relu", net("Conv", x, net.weight(own, channels, 3, 3), bias, kernel_shape=[3, 3], pads=[1] * 4))
            channels = own
        kept.append((x, own))
    for skip, own in reversed(kept[:-1]):
        x = _grown(net, x, skip)
        weight = net.weight(own, channels, 1, 1)
        x = net("Relu", net("Conv", x, weight, net.weight(own, std=0.1), kernel_shape=[1, 1]))
        x = net("Concat", skip, x, axis=1)
        x = net("Relu", net("Conv", x, net.weight(own, 2 * own, 3, 3), kernel_shape=[3, 3], pads=[1] * 4))
        channels = own
    x = net("Conv", x, net.weight(2, channels, 1, 1), kernel_shape=[1, 1])
    return net.model(
        {"image": (TensorProto.FLOAT, ("batch", 3, "2*h", "2*w"))}, {"mask": (x, ("batch", 2, "2*h", "2*w"))}
    )


def _grown(net: Net, x: str, like: str) -> str:
    """``x`` resized to the height and width of ``like``, as exporters write ``interpolate(size=...)``."""
    sides = net("Concat", net.dim(like, 2), net.dim(like, 3), axis=0)
    front = net("Slice", net("Shape", x), np.array([0]), np.array([2]), np.array([0]))
    sizes = net("Concat", front, sides, axis=0)
    empty = net.constant(np.zeros(0, "float32"))
    return net(
        "Resize", x, "", empty, sizes, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


def decoder(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    kv_heads: int | None = None,
    vocabulary: int = 50257,
    positions: int = 1024,
    seed: int = 0,
) -> onnx.ModelProto:
    """A text decoder of GPT-2's structure with its cache as inputs and outputs, of open batch and lengths.

    Inputs are ``input_ids`` (batch, length), ``attention_mask`` (batch, past + length), ``position_ids`` and for each
    layer ``past_<i>_key`` and ``past_<i>_value`` (batch, kv_heads, past, part of the width); outputs ``logits`` and
    ``present_<i>_key`` and ``present_<i>_value``.
    """
    net = Net(seed)
    groups, size = kv_heads or heads, width // heads
    ids, mask = "input_ids", "attention_mask"
    # Small beside what the layers add: otherwise every token would be followed by itself.
    table = net.constant(net.weight(vocabulary, width, std=0.1))
    x = net("Gather", table, ids)
    x = net("Add", x, net("Gather", net.weight(positions, width, std=0.1), "position_ids"))
    # Causal: query i of the length sees keys up to past + i.
    past, length = net.scalar_dim("past_0_key", 2), net.scalar_dim(ids, 1)
    total = net("Add", past, length)
    query_at = net("Unsqueeze", net("Range", past, total, np.int64(1)), np.array([1]))
    key_at = net("Unsqueeze", net("Range", np.int64(0), total, np.int64(1)), np.array([0]))
    seen = net("LessOrEqual", key_at, query_at)
    given = net("Cast", net("Unsqueeze", net("Unsqueeze", mask, np.array([1])), np.array([1])), to=TensorProto.BOOL)
    both = net("And", net("Unsqueeze", net("Unsqueeze", seen, np.array([0])), np.array([0])), given)
    bias = net("Where", both, np.float32(0), np.float32(-1e9))
    cache, present = (TensorProto.FLOAT, ("batch", groups, "past", size)), {}
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {
        ids: (TensorProto.INT64, ("batch", "length")),
        mask: (TensorProto.INT64, ("batch", "past + length")),
        "position_ids": (TensorProto.INT64, ("batch", "length")),
    }
    for layer in range(layers):
        y = net.norm(x, width)
        query = net.heads(net.dense(y, width, width), heads, size)
        key, value = (net.heads(net.dense(y, width, groups * size), groups, size) for _ in range(2))
        for name, new in (("key", key), ("value", value)):
            inputs[f"past_{layer}_{name}"] = cache
            joined = net("Concat", f"past_{layer}_{name}", new, axis=2)
            present[f"present_{layer}_{name}"] = (joined, ("batch", groups, "past + length", size))
        key, value = (_repeated(net, present[f"present_{layer}_{n}"][0], groups, heads, size) for n in ("key", "value"))
        mixed = net.joined(net.attention(query, key, value, bias, size), width)
        x = net("Add", x, net.dense(mixed, width, width))
        x = net("Add", x, net.mlp(net.norm(x, width), width, 4 * width))
    logits = net("MatMul", net.norm(x, width), net("Transpose", table, perm=[1, 0]))
    return net.model(inputs, {"logits": (logits, ("batch", "length", vocabulary)), **present})


def _repeated(net: Net, x: str, groups: int, heads: int, size: int) -> str:
    """Keys or values of each group for all of its queries' heads, as exporters write ``repeat_kv``."""
    if groups == heads:
        return x
    times = np.array([heads // groups])
    batch, length = net.dim(x, 0), net.dim(x, 2)
    wide = net("Concat", batch, np.array([groups]), times, length, np.array([size]), axis=0)
    spread = net("Expand", net("Unsqueeze", x, np.array([2])), wide)
    return net("Reshape", spread, net("Concat", batch, np.array([heads]), length, np.array([size]), axis=0))


def speech_encoder(
    layers: int = 2, width: int = 64, heads: int = 4, frames: int = 3000, is_cross: bool = True, seed: int = 0
) -> onnx.ModelProto:
    """The encoder of a model of Whisper's structure: ``audio_features`` (batch, 80, frames) to ``hidden_states``.

    ``is_cross``: it also gives ``present_key_cross_<i>`` and ``present_value_cross_<i>`` for each layer of the decoder.
    """
    net, size = Net(seed), width // heads
    x, channels = "audio_features", 80
    for stride in (1, 2):
        weight = net.weight(width, channels, 3, std=(3 * channels) ** -0.5)
        x = net("Conv", x, weight, net.weight(width, std=0.1), kernel_shape=[3], pads=[1, 1], strides=[stride])
        x, channels = net.gelu(x), width
    x = net("Add", net("Transpose", x, perm=[0, 2, 1]), net.weight(frames // 2, width, std=0.1))
    for _ in range(layers):
        y = net.norm(x, width)
        query, key, value = (net.heads(net.dense(y, width, width), heads, size) for _ in range(3))
        mixed = net.joined(net.attention(query, key, value, np.float32(0), size), width)
        x = net("Add", x, net.dense(mixed, width, width))
        x = net("Add", x, net.mlp(net.norm(x, width), width, 4 * width))
    x = net.norm(x, width)
    outputs: dict[str, tuple[str, Sequence[int | str] | None]] = {
        "hidden_states": (x, ("batch", frames // 2, width)),
    }
    for name in _cross(layers) if is_cross else ():
        made = net.heads(net.dense(x, width, width), heads, size)
        outputs[f"present_{name}"] = (made, ("batch", heads, frames // 2, size))
    return net.model({"audio_features": (TensorProto.FLOAT, ("batch", 80, frames))}, outputs)


def speech_decoder(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocabulary: int = 500,
    positions: int = 448,
    frames: int = 3000,
    seed: int = 1,
) -> onnx.ModelProto:
    """The decoder that belongs to `speech_encoder`, with its cache as inputs and outputs, of open lengths.

    Inputs are ``input_ids`` (batch, length), ``past_key_self_<i>`` and ``past_value_self_<i>`` (batch, heads, past,
    part of the width), and what the encoder gives, as ``past_key_cross_<i>`` and ``past_value_cross_<i>``.
    """
    net, size, ids = Net(seed), width // heads, "input_ids"
    past, length = net.scalar_dim("past_key_self_0", 2), net.scalar_dim(ids, 1)
    total = net("Add", past, length)
    places = net("Range", past, total, np.int64(1))
    table = net.constant(net.weight(vocabulary, width, std=0.1))
    x = net("Add", net("Gather", table, ids), net("Gather", net.weight(positions, width, std=0.1), places))
    seen = net("LessOrEqual", net("Range", np.int64(0), total, np.int64(1)), net("Unsqueeze", places, np.array([1])))
    bias = net("Where", seen, np.float32(0), np.float32(-1e9))
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {ids: (TensorProto.INT64, ("batch", "length"))}
    present: dict[str, tuple[str, Sequence[int | str] | None]] = {}
    for layer in range(layers):
        y = net.norm(x, width)
        query, key, value = (net.heads(net.dense(y, width, width), heads, size) for _ in range(3))
        for part, new in (("key", key), ("value", value)):
            name = f"{part}_self_{layer}"
            inputs[f"past_{name}"] = (TensorProto.FLOAT, ("batch", heads, "past", size))
            joined = net("Concat", f"past_{name}", new, axis=2)
            present[f"present_{name}"] = (joined, ("batch", heads, "past + length", size))
        key, value = (present[f"present_{part}_self_{layer}"][0] for part in ("key", "value"))
        mixed = net.joined(net.attention(query, key, value, bias, size), width)
        x = net("Add", x, net.dense(mixed, width, width))
        query = net.heads(net.dense(net.norm(x, width), width, width), heads, size)
        key, value = (f"past_{part}_cross_{layer}" for part in ("key", "value"))
        mixed = net.joined(net.attention(query, key, value, np.float32(0), size), width)
        x = net("Add", x, net.dense(mixed, width, width))
        x = net("Add", x, net.mlp(net.norm(x, width), width, 4 * width))
    shape = ("batch", heads, frames // 2, size)
    inputs |= {f"past_{name}": (TensorProto.FLOAT, shape) for name in _cross(layers)}
    logits = net("MatMul", net.norm(x, width), net("Transpose", table, perm=[1, 0]))
    return net.model(inputs, {"logits": (logits, ("batch", "length", vocabulary)), **present})


def _cross(layers: int) -> list[str]:
    """Names of the keys and values that are made of what was heard."""
    return [f"{part}_cross_{layer}" for part in ("key", "value") for layer in range(layers)]
