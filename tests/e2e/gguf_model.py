"""Small GGUF files with random weights from a seed, and their logits by definition, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

__all__ = ["TYPES", "GgufModel", "random_blocks"]

#: type → where its float16 numbers lie in a block
TYPES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def random_blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes [rows, …] of a type, whose weights are about 1 / √columns."""
    size, width = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows * columns // size, width), dtype="uint8")
    whole = {"Q8_0": 128, "Q6_K": 2000, "Q4_K": 300, "Q5_K": 600, "Q3_K": 100}.get(kind, 16)
    for at in TYPES.get(kind, [108]):
        scale = (rng.random(len(blocks)) + 0.5) / whole / np.sqrt(columns)
        blocks[:, at : at + 2] = scale.astype("float16")[:, None].view("uint8")
    return blocks.reshape(rows, -1)


@dataclass
class GgufModel:
    """What distinguishes the files; a weight whose name ends with a key of ``kinds`` is stored in that type."""

    arch: str = "llama"
    kinds: dict[str, str] = field(default_factory=dict)
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    own: int = 2
    width: int = 16
    wide: int = 96
    words: int = 61
    longest: int = 64
    tied: bool = False
    turns: int | None = None
    factors: bool = False
    scaling: float = 0.0
    seed: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def write(self, path: Path, tokenizer: Any = None, gives: bool = True) -> dict[str, np.ndarray]:
        """Write the file; ``gives`` the weights as real numbers, by name. ``tokenizer(writer)`` adds one."""
        rng, real = np.random.default_rng(self.seed), {}
        writer = GGUFWriter(path, self.arch)
        writer.add_block_count(self.layers)
        writer.add_context_length(self.longest)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.wide)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.own)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(5000.0)
        if self.width != self.hidden // self.heads:
            writer.add_key_length(self.width)
            writer.add_value_length(self.width)
        if self.turns:
            writer.add_rope_dimension_count(self.turns)
        if self.scaling:
            writer.add_string(f"{self.arch}.rope.scaling.type", "linear")
            writer.add_float32(f"{self.arch}.rope.scaling.factor", self.scaling)
        for name, value in self.values.items():
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
        if tokenizer is not None:
            tokenizer(writer)
        for name, shape in self.shapes().items():
            if name in self.left_out:
                continue
            kind = next((k for end, k in self.kinds.items() if name.endswith(end)), "F32")
            if len(shape) == 2 and kind in ("F32", "F16"):
                array = (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(f"float{kind[1:]}")
                writer.add_tensor(name, array)
                real[name] = array.astype("float64")
            elif len(shape) == 2:
                array = random_blocks(rng, kind, *shape)
                writer.add_tensor(name, array, raw_dtype=GGMLQuantizationType[kind])
                if gives:
                    real[name] = dequantize(array, GGMLQuantizationType[kind]).astype("float64")
            else:
                array = (rng.standard_normal(shape) * 0.1 + (0 if name.endswith("bias") else 1.5)).astype("float32")
                writer.add_tensor(name, array)
                real[name] = array.astype("float64")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return real

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, by name."""
        queries, keys = self.heads * self.width, self.own * self.width
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.words, self.hidden)}
        if not self.tied:
            shapes["output.weight"] = (self.words, self.hidden)
        if self.factors:
            shapes["rope_freqs.weight"] = ((self.turns or self.width) // 2,)
        shapes["output_norm.weight"] = (self.hidden,)
        for i in range(self.layers):
            own: dict[str, tuple[int, ...]] = {
                "attn_norm": (self.hidden,),
                "ffn_norm": (self.hidden,),
                "attn_q": (queries, self.hidden),
                "attn_k": (keys, self.hidden),
                "attn_v": (keys, self.hidden),
                "attn_output": (self.hidden, queries),
                "ffn_gate": (self.wide, self.hidden),
                "ffn_up": (self.wide, self.hidden),
                "ffn_down": (self.hidden, self.wide),
            }
            if self.arch == "qwen3":
                own |= {"attn_q_norm": (self.width,), "attn_k_norm": (self.width,)}
            shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in own.items()}
            if self.arch == "qwen2":
                sizes = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
                shapes |= {f"blk.{i}.{name}.bias": (size,) for name, size in sizes.items()}
        return shapes

    # ---- by definition ------------------------------------------------------------------------------

    def logits(self, w: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
        """Logits [rows, words] of the tokens of one sequence."""
        x = w["token_embd.weight"][ids]
        for i in range(self.layers):
            at = f"blk.{i}"
            normed = _norm(x, w[f"{at}.attn_norm.weight"])
            q, k, v = (normed @ w[f"{at}.attn_{n}.weight"].T + w.get(f"{at}.attn_{n}.bias", 0) for n in "qkv")
            q, k, v = (a.reshape(len(ids), -1, self.width) for a in (q, k, v))
            if self.arch == "qwen3":
                q, k = _norm(q, w[f"{at}.attn_q_norm.weight"]), _norm(k, w[f"{at}.attn_k_norm.weight"])
            q, k = self._turned(q, w), self._turned(k, w)
            k, v = (np.repeat(a, self.heads // self.own, axis=1) for a in (k, v))
            scores = np.einsum("inh,jnh->nij", q, k) / np.sqrt(self.width)
            scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            x = x + np.einsum("nij,jnh->inh", shares, v).reshape(len(ids), -1) @ w[f"{at}.attn_output.weight"].T
            normed = _norm(x, w[f"{at}.ffn_norm.weight"])
            gate, up = (normed @ w[f"{at}.ffn_{n}.weight"].T for n in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{at}.ffn_down.weight"].T
        head = w["token_embd.weight" if self.tied else "output.weight"]
        return np.asarray(_norm(x, w["output_norm.weight"]) @ head.T)

    def _turned(self, x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
        """Rotary positions: neighbours of llama, halves of the others."""
        turns = self.turns or self.width
        speed = 5000.0 ** (-np.arange(0, turns, 2) / turns) / (self.scaling or 1.0) / w.get("rope_freqs.weight", 1.0)
        angles = (np.arange(len(x))[:, None] * speed)[:, None, :]
        first = slice(0, turns, 2) if self.arch == "llama" else slice(0, turns // 2)
        second = slice(1, turns, 2) if self.arch == "llama" else slice(turns // 2, turns)
        a, b, out = x[..., first], x[..., second], x.copy()
        out[..., first] = a * np.cos(angles) - b * np.sin(angles)
        out[..., second] = a * np.sin(angles) + b * np.cos(angles)
        return out


def _norm(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights)
