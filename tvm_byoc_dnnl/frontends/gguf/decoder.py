"""The decoder in a GGUF file, with the operators and the names of onnxruntime-genai's model builder.

Of the architectures ``llama``, ``qwen2`` and ``qwen3`` a file says with its tensors whether products have a bias and
heads a norm of their own. What it says and this graph does not compute is refused.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...core.errors import InputError, UnsupportedError
from . import File, Stored, joined, stored

_logger = logging.getLogger("tvm_byoc_dnnl")

_MS = "com.microsoft"
#: architecture → whether rotary positions turn pairs of neighbours, in place of halves of a head
_TURNS_PAIRS = {"llama": 1, "qwen2": 0, "qwen3": 0}


def read_decoder(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model of a file, and its constants by name, whose data are not in the model."""
    return _Writer(File(path)).model()


class _Sizes(NamedTuple):
    layers: int
    hidden: int
    heads: int
    own: int
    width: int
    longest: int
    epsilon: float

    @classmethod
    def of(cls, file: File, arch: str) -> _Sizes:
        heads = file.get(f"{arch}.attention.head_count", int)
        hidden = file.get(f"{arch}.embedding_length", int)
        width = file.get(f"{arch}.attention.key_length", int, hidden // heads)
        if file.get(f"{arch}.attention.value_length", int, width) != width:
            raise UnsupportedError(f"{file.path} has keys and values of different lengths, which are not computed")
        if (parts := file.get("split.count", int, 0, least=0)) > 1:
            raise UnsupportedError(f"{file.path} is one of {parts} parts; join them: llama-gguf-split --merge")
        if file.get(f"{arch}.expert_count", int, 0, least=0):
            raise UnsupportedError(f"{file.path} is a mixture of experts, which is not read from GGUF files")
        return cls(
            file.get(f"{arch}.block_count", int),
            hidden,
            heads,
            file.get(f"{arch}.attention.head_count_kv", int, heads),
            width,
            file.get(f"{arch}.context_length", int),
            file.get(f"{arch}.attention.layer_norm_rms_epsilon", float),
        )


class _Writer:
    """Nodes and constants while they are made; names of results are those of their first output."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._arch = file.get("general.architecture", str)
        if self._arch not in _TURNS_PAIRS:
            known = ", ".join(_TURNS_PAIRS)
            raise UnsupportedError(f"{file.path} has the architecture {self._arch!r}; expected one of {known}")
        self._of = _Sizes.of(file, self._arch)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}
        self._read: set[str] = set()
        self._stored: dict[str, Stored | None] = {}
        self._sums: dict[tuple[str, int], str] = {}
        self._unpacked: set[str] = set()

    def _node(self, op: str, inputs: list[str], name: str, *more: str, domain: str = "", **attrs: Any) -> str:
        self._nodes.append(helper.make_node(op, inputs, [name, *more], name or more[-1], domain=domain, **attrs))
        return name

    def _constant(self, name: str, value: Any, dtype: str = "int64") -> str:
        self._constants.setdefault(name, np.asarray(value, dtype))
        return name

    def _reshape(self, x: str, name: str, shape: list[int]) -> str:
        text = "x".join(map(str, shape))
        return self._node("Reshape", [x, self._constant(f"shape.{text}", shape)], name)

    def _has(self, name: str) -> bool:
        return name in self._file.tensors

    def _tensor(self, name: str, *shape: int) -> Any:
        if not self._has(name):
            raise InputError(f"{self._file.path} has no tensor {name}; convert the model again")
        self._read.add(name)
        tensor = self._file.tensors[name]
        dims = tuple(int(d) for d in reversed(tensor.shape))
        if dims != shape:
            raise InputError(f"{self._file.path}: {name} has the shape {list(dims)}; expected {list(shape)}")
        return tensor

    def _floats(self, name: str, *shape: int) -> str:
        from gguf.quants import dequantize

        tensor = self._tensor(name, *shape)
        if name not in self._constants:
            kind = tensor.tensor_type.name
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                what = f"{self._file.path}: {name} is of type {kind}"
                raise UnsupportedError(f"{what}, which the package gguf cannot read") from error
            if kind not in ("F32", "F16", "BF16"):
                self._unpacked.add(kind)
            self._constant(name, np.array(values.reshape(shape), "float32"), "float32")
        return name

    def _blocks(self, name: str, rows: int, columns: int) -> Stored | None:
        """A tensor's numbers, scales and shifts, if it is stored so."""
        tensor = self._tensor(name, rows, columns)
        if name not in self._stored:
            self._stored[name] = stored(tensor.tensor_type.name, tensor.data, columns)
        return self._stored[name]

    def _operands(self, name: str, found: Stored) -> list[str]:
        parts = {f"{name}.numbers": (found.numbers, "uint8"), f"{name}.scales": (found.scales, "float32")}
        return [self._constant(part, value, dtype) for part, (value, dtype) in parts.items()]

    def _product(self, x: str, name: str, columns: int, rows: int, result: str) -> str:
        """``x`` [.., columns] times the transposed tensor [rows, columns], and its bias if the file has one."""
        found = self._blocks(f"{name}.weight", rows, columns)
        if found is None:
            turned = f"{name}.turned"
            self._node("Transpose", [self._floats(f"{name}.weight", rows, columns)], turned, perm=[1, 0])
            self._node("MatMul", [x, turned], result)
        else:
            result = self._multiplied(x, name, found, result)
        if self._has(f"{name}.bias"):
            result = self._node("Add", [result, self._floats(f"{name}.bias", rows)], f"{result}.biased")
        return result

    def _multiplied(self, x: str, name: str, weights: Stored, result: str) -> str:
        """``x`` times weights as they are stored."""
        rows, blocks = weights.scales.shape
        columns = blocks * weights.block
        attrs = {"K": columns, "N": rows, "bits": weights.bits, "block_size": weights.block}
        self._node("MatMulNBits", [x, *self._operands(f"{name}.weight", weights)], result, domain=_MS, **attrs)
        if weights.shifts is None:
            return result
        shifts = self._constant(f"{name}.weight.turned_shifts", weights.shifts.T, "float32")
        moved = self._node("MatMul", [self._summed(x, columns, weights.block), shifts], f"{result}.moved")
        return self._node("Add", [result, moved], f"{result}.whole")

    def _summed(self, x: str, columns: int, block: int) -> str:
        """The sum of each block of a row, which its shift is multiplied by."""
        if (x, block) not in self._sums:
            apart = self._reshape(x, f"{x}.in_{block}", [0, 0, columns // block, block])
            axes = self._constant("axes.last", [-1])
            self._sums[x, block] = self._node("ReduceSum", [apart, axes], f"{x}.sums_{block}", keepdims=0)
        return self._sums[x, block]

    def _embedded(self, words: int) -> str:
        of, name = self._of, "token_embd.weight"
        found = self._blocks(name, words, of.hidden)
        if found is None:
            return self._node("Gather", [self._floats(name, words, of.hidden), "input_ids"], "embedded")
        attrs = {"bits": found.bits, "block_size": found.block, "gather_axis": 0, "quantize_axis": 1}
        numbers, scales = self._operands(name, found)
        rows = self._node("GatherBlockQuantized", [numbers, "input_ids", scales], "embedded", domain=_MS, **attrs)
        if found.shifts is None:
            return rows
        table = self._constant(f"{name}.shifts", found.shifts, "float32")
        shifts = self._node("Gather", [table, "input_ids"], "shifts")
        blocks = of.hidden // found.block
        apart = self._reshape(rows, "embedded.apart", [0, 0, blocks, found.block])
        whole = self._node("Add", [apart, self._reshape(shifts, "shifts.apart", [0, 0, blocks, 1])], "embedded.whole")
        return self._reshape(whole, "embedded.rows", [0, 0, of.hidden])

    def _norm(self, x: str, name: str, width: int, result: str) -> str:
        attrs: dict[str, Any] = {"axis": -1, "epsilon": self._of.epsilon, "stash_type": 1}
        return self._node("SimplifiedLayerNormalization", [x, self._floats(name, width)], result, **attrs)

    def _normed_sum(self, x: str, more: str, name: str, at: str) -> tuple[str, str]:
        outputs = [f"{at}.normed", "", "", f"{at}.sum"]
        operands = [x, more, self._floats(name, self._of.hidden)]
        self._node("SkipSimplifiedLayerNormalization", operands, *outputs, domain=_MS, epsilon=self._of.epsilon)
        return outputs[0], outputs[-1]

    def _heads(self, x: str, at: str, part: str, count: int) -> str:
        """Queries, keys or values, each head with its norm if the file has one."""
        of, name = self._of, f"{at}.attn_{part}"
        flat = self._product(x, name, of.hidden, count * of.width, name)
        if not self._has(f"{name}_norm.weight"):
            return flat
        apart = self._reshape(flat, f"{name}.heads", [0, 0, count, of.width])
        normed = self._norm(apart, f"{name}_norm.weight", of.width, f"{name}.normed")
        return self._reshape(normed, f"{name}.flat", [0, 0, count * of.width])

    def _queries(self, x: str, at: str) -> list[str]:
        """Queries, keys and values, or all in one product if they are stored alike and nothing stands between."""
        of = self._of
        counts = {"q": of.heads, "k": of.own, "v": of.own}
        names = {f"{at}.attn_{part}": count * of.width for part, count in counts.items()}
        found = [self._blocks(f"{name}.weight", rows, of.hidden) for name, rows in names.items()]
        weights = joined([f for f in found if f is not None]) if None not in found else None
        biases = [f"{name}.bias" for name in names if self._has(f"{name}.bias")]
        has_norms = any(self._has(f"{name}_norm.weight") for name in names)
        if weights is None or len(biases) % 3 or has_norms:
            return [self._heads(x, at, part, count) for part, count in counts.items()]
        packed = self._multiplied(x, f"{at}.attn_qkv", weights, f"{at}.attn_qkv")
        if biases:
            parts = [self._constants.pop(self._floats(f"{name}.bias", rows)) for name, rows in names.items()]
            bias = self._constant(f"{at}.attn_qkv.bias", np.concatenate(parts), "float32")
            packed = self._node("Add", [packed, bias], f"{packed}.biased")
        return [packed, "", ""]

    def _layer(self, layer: int, x: str, normed: str) -> tuple[str, str]:
        of, at = self._of, f"blk.{layer}"
        queries = self._queries(normed, at)
        pasts, presents = ([f"{n}.{layer}.{kind}" for kind in ("key", "value")] for n in ("past_key_values", "present"))
        inputs = [*queries, *pasts, "seqlens_k", "total", "cos", "sin"]
        attrs = {"num_heads": of.heads, "kv_num_heads": of.own, "do_rotary": 1}
        attrs["rotary_interleaved"] = _TURNS_PAIRS[self._arch]
        attended = self._node("GroupQueryAttention", inputs, f"{at}.attended", *presents, domain=_MS, **attrs)
        out = self._product(attended, f"{at}.attn_output", of.heads * of.width, of.hidden, f"{at}.attn_output")
        normed, x = self._normed_sum(x, out, f"{at}.ffn_norm.weight", f"{at}.middle")
        wide = self._file.get(f"{self._arch}.feed_forward_length", int)
        gate, up = (self._product(normed, f"{at}.ffn_{n}", of.hidden, wide, f"{at}.ffn_{n}") for n in ("gate", "up"))
        silu = self._node("Mul", [gate, self._node("Sigmoid", [gate], f"{at}.sigmoid")], f"{at}.silu")
        gated = self._node("Mul", [silu, up], f"{at}.gated")
        down = self._product(gated, f"{at}.ffn_down", wide, of.hidden, f"{at}.ffn_down")
        following = f"blk.{layer + 1}.attn_norm" if layer + 1 < of.layers else "output_norm"
        normed, x = self._normed_sum(x, down, f"{following}.weight", f"{at}.end")
        return x, normed

    def _angles(self) -> None:
        """Cosine and sine of each position and column."""
        of, arch, file = self._of, self._arch, self._file
        turned = file.get(f"{arch}.rope.dimension_count", int, of.width)
        base = file.get(f"{arch}.rope.freq_base", float, 10000.0)
        scaling = file.get(f"{arch}.rope.scaling.type", str, "none")
        if scaling not in ("none", "linear"):
            raise UnsupportedError(f"{file.path}: {arch}.rope.scaling.type is {scaling!r}; expected none or linear")
        factor = file.get(f"{arch}.rope.scaling.factor", float, 1.0) if scaling == "linear" else 1.0
        speed = float(base) ** (-np.arange(0, turned, 2, dtype="float64") / turned) / factor
        if self._has("rope_freqs.weight"):
            speed = speed / self._constants[self._floats("rope_freqs.weight", turned // 2)]
            del self._constants["rope_freqs.weight"]
        angles = np.arange(of.longest)[:, None] * speed
        self._constant("cos", np.cos(angles), "float32")
        self._constant("sin", np.sin(angles), "float32")

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        of = self._of
        self._node("ReduceSum", ["attention_mask", self._constant("axes.second", [1])], "lengths", keepdims=0)
        self._node("Sub", ["lengths", self._constant("one", 1)], "ends")
        self._node("Cast", ["ends"], "seqlens_k", to=TensorProto.INT32)
        self._node("Shape", ["attention_mask"], "longest", start=1, end=2)
        self._node("Cast", ["longest"], "total", to=TensorProto.INT32)
        self._angles()
        words = int(self._file.tensors["token_embd.weight"].shape[-1]) if self._has("token_embd.weight") else 0
        x = self._embedded(words)
        normed = self._norm(x, "blk.0.attn_norm.weight", of.hidden, "normed")
        for layer in range(of.layers):
            x, normed = self._layer(layer, x, normed)
        head = "output" if self._has("output.weight") else "token_embd"
        logits = self._product(normed, head, of.hidden, words, "head")
        self._node("Identity", [logits], "logits")
        if left := sorted(self._file.tensors.keys() - self._read):
            raise UnsupportedError(f"{self._file.path} has the tensor {left[0]}, which is not computed")
        if self._unpacked:
            types = ", ".join(sorted(self._unpacked))
            _logger.warning("%s: weights of the types %s are computed in float32", self._file.path.name, types)
        return self._finished(words), self._constants

    def _finished(self, words: int) -> onnx.ModelProto:
        of, make = self._of, helper.make_tensor_value_info
        lengths = ("past_sequence_length", "total_sequence_length")
        past, present = (["batch_size", of.own, length, of.width] for length in lengths)
        names = [f"{i}.{kind}" for kind in ("key", "value") for i in range(of.layers)]
        inputs = [
            make("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
            make("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]),
            *(make(f"past_key_values.{n}", TensorProto.FLOAT, past) for n in names),
        ]
        outputs = [
            make("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", words]),
            *(make(f"present.{n}", TensorProto.FLOAT, present) for n in names),
        ]
        light = [
            TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
            for name, array in self._constants.items()
        ]
        graph = helper.make_graph(self._nodes, "decoder", inputs, outputs, light)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
