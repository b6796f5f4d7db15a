"""A small language model as ONNX Runtime's exporter for generation writes it, of Llama's or Qwen's kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["LanguageModel"]


@dataclass(frozen=True)
class LanguageModel:
    """What distinguishes the models; weights are drawn from ``seed``."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 97
    longest: int = 64
    bits: int = 0
    bias: bool = False  # behind queries, keys and values, as Qwen2 has it
    head_norms: bool = False  # as Qwen3 has them
    window: int = -1
    softcap: float = 0.0
    slides: bool = False  # the caches hold the last rows only
    sinks: bool = False
    seed: int = 0

    @property
    def width(self) -> int:
        """Of a head."""
        return self.hidden // self.heads

    def model(self) -> onnx.ModelProto:
        """The model, with open batch, sequence and past."""
        return _Writer(self).model()


class _Writer:
    def __init__(self, of: LanguageModel) -> None:
        self.of, self.rng = of, np.random.default_rng(of.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: list[str], outputs: list[str] | str, domain: str = "", **attrs: Any) -> Any:
        names = [outputs] if isinstance(outputs, str) else outputs
        first = next(filter(None, names))
        self.nodes.append(helper.make_node(op, inputs, names, f"/{first}/{op}", domain=domain, **attrs))
        return outputs if isinstance(outputs, str) else names

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def normal(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> str:
        return self.constant(name, (self.rng.standard_normal(shape) * scale + mean).astype("float32"))

    def product(self, name: str, x: str, k: int, n: int) -> str:
        """A product with weights [k, n], which are stored in few bits where the model is."""
        bits = self.of.bits
        if not bits:
            return str(self.node("MatMul", [x, self.normal(f"{name}.w", k, n, scale=k**-0.5)], name))
        blocks = -(-k // 32)
        stored = self.rng.integers(0, 256, (n, blocks, 32 * bits // 8)).astype("uint8")
        scales = (self.rng.random((n, blocks)) * 2 + 1).astype("float32") * np.float32(2 * k**-0.5 / (1 << bits))
        operands = [x, self.constant(f"{name}.q", stored), self.constant(f"{name}.s", scales)]
        attrs = {"K": k, "N": n, "bits": bits, "block_size": 32, "accuracy_level": 0}
        return str(self.node("MatMulNBits", operands, name, "com.microsoft", **attrs))

    def model(self) -> onnx.ModelProto:
        """The graph: lengths of the mask, the layers, the head."""
        of = self.of
        self.node("ReduceSum", ["attention_mask", self.constant("axis", np.array([1]))], "sums", keepdims=0)
        self.node("Sub", ["sums", self.constant("one", np.array(1))], "ends")
        self.node("Cast", ["ends"], "seqlens_k", to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], "mask_shape")
        self.node("Gather", ["mask_shape", self.constant("second", np.array(1))], "length", axis=0)
        self.node("Cast", ["length"], "total", to=TensorProto.INT32)
        angles = np.arange(of.longest)[:, None] / 10000 ** (np.arange(of.width // 2)[None] * 2 / of.width)
        self.constant("cos", np.cos(angles).astype("float32"))
        self.constant("sin", np.sin(angles).astype("float32"))
        x = self.node("Gather", [self.normal("table", of.vocabulary, of.hidden), "input_ids"], "embedded")
        normal = self.node(
            "SimplifiedLayerNormalization",
            [x, self.normal("norm_0", of.hidden, scale=0.1, mean=1)],
            "normal_0",
            axis=-1,
            epsilon=1e-6,
            stash_type=1,
        )
        for layer in range(of.layers):
            x, normal = self.layer(layer, x, normal)
        logits = self.product("logits", normal, of.hidden, of.vocabulary)
        return self.finished(logits)

    def layer(self, layer: int, x: str, normal: str) -> tuple[str, str]:
        """Attention, then the gated products; gives the sum and its norm."""
        of, at = self.of, f"layer_{layer}"
        queries = self.queries(at, normal)
        pasts = [f"past_key_values.{layer}.{n}" for n in ("key", "value")]
        presents = [f"present.{layer}.{n}" for n in ("key", "value")]
        sinks = [self.normal(f"{at}_sinks", of.heads)] if of.sinks else []
        attended = self.node(
            "GroupQueryAttention",
            [*queries, *pasts, "seqlens_k", "total", "cos", "sin", "", "", *sinks],
            [f"{at}_attended", *presents],
            "com.microsoft",
            num_heads=of.heads,
            kv_num_heads=of.kv_heads,
            scale=of.width**-0.5,
            do_rotary=1,
            rotary_interleaved=0,
            local_window_size=of.window,
            softcap=of.softcap,
            **({"sliding_window_cache": 1} if of.slides else {}),
        )[0]
        out = self.product(f"{at}_out", attended, of.hidden, of.hidden)
        normal, x = self.skip(f"{at}_middle", x, out)
        wide = 2 * of.hidden
        gate, up = (self.product(f"{at}_{n}", normal, of.hidden, wide) for n in ("gate", "up"))
        open_ = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{at}_sigmoid")], f"{at}_open")
        down = self.product(f"{at}_down", self.node("Mul", [open_, up], f"{at}_gated"), wide, of.hidden)
        normal, x = self.skip(f"{at}_last", x, down, is_last=layer == of.layers - 1)
        return x, normal

    def queries(self, at: str, x: str) -> list[str]:
        """Packed queries, keys and values, or the three, each head with a norm of its own."""
        of = self.of
        sizes = [of.hidden, of.kv_heads * of.width, of.kv_heads * of.width]
        packed = self.product(f"{at}_qkv", x, of.hidden, sum(sizes))
        if of.bias:
            packed = self.node("Add", [packed, self.normal(f"{at}_bias", sum(sizes), scale=0.1)], f"{at}_biased")
        if not of.head_norms:
            return [packed, "", ""]
        parts = [f"{at}_{n}" for n in "qkv"]
        self.node("Split", [packed, self.constant(f"{at}_sizes", np.array(sizes))], parts, axis=-1)
        normed = []
        for part, size in zip(parts[:2], sizes, strict=False):
            apart = self.constant(f"{part}_apart", np.array([0, 0, -1, of.width]))
            heads = self.node("Reshape", [part, apart], f"{part}_heads")
            scale = self.normal(f"{part}_norm", of.width, scale=0.1, mean=1)
            attrs = {"axis": -1, "epsilon": 1e-6, "stash_type": 1}
            even = self.node("SimplifiedLayerNormalization", [heads, scale], f"{part}_even", **attrs)
            flat = self.constant(f"{part}_flat", np.array([0, 0, size]))
            normed.append(self.node("Reshape", [even, flat], f"{part}_again"))
        return [*normed, parts[2]]

    def skip(self, at: str, x: str, more: str, *, is_last: bool = False) -> list[str]:
        """The norm of a sum, and the sum, which nothing reads in the end."""
        scale = self.normal(f"{at}_norm", self.of.hidden, scale=0.1, mean=1)
        outputs = [f"{at}_normal"] if is_last else [f"{at}_normal", "", "", f"{at}_sum"]
        self.node("SkipSimplifiedLayerNormalization", [x, more, scale], outputs, "com.microsoft", epsilon=1e-6)
        return [outputs[0], outputs[-1]]

    def finished(self, logits: str) -> onnx.ModelProto:
        """The model with its inputs and outputs."""
        of, make = self.of, helper.make_tensor_value_info
        lengths = ["past_sliding_length"] * 2 if of.slides else ["past_sequence_length", "total_sequence_length"]
        past, present = (["batch_size", of.kv_heads, length, "kv_cache_dim"] for length in lengths)
        names = [f"{i}.{n}" for n in ("key", "value") for i in range(of.layers)]
        inputs = [
            make("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
            make("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
            *(make(f"past_key_values.{n}", TensorProto.FLOAT, past) for n in names),
        ]
        outputs = [
            make(logits, TensorProto.FLOAT, ["batch_size", "sequence_length", of.vocabulary]),
            *(make(f"present.{n}", TensorProto.FLOAT, present) for n in names),
        ]
        graph = helper.make_graph(self.nodes, "main_graph", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
