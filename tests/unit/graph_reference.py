"""Portable graphs for tests: a small builder, and what the nodes mean, in NumPy and float64."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np

from tests.unit.recurrent_reference import recurrent

# Results of an integer type are rounded to even and saturated.
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}

_ERF = np.vectorize(math.erf, otypes=[np.float64])


class GraphBuilder:
    """Builds one portable graph; `input`, `constant` and `node` return tensor ids."""

    def __init__(self, name: str = "dnnl_0") -> None:
        self.name = name
        self.tensors: list[dict] = []
        self.inputs: list[dict] = []
        self.constants: list[dict] = []
        self.values: list[np.ndarray] = []  # of the constants
        self.nodes: list[dict] = []
        self.outputs: list[int] = []

    def tensor(self, shape: Any, dtype: str = "float32") -> int:
        self.tensors.append({"name": f"t{len(self.tensors)}", "dtype": dtype, "shape": list(shape)})
        return len(self.tensors) - 1

    def input(self, shape: Any, dtype: str = "float32") -> int:
        self.inputs.append({"tensor": self.tensor(shape, dtype)})
        return self.inputs[-1]["tensor"]

    def shape_input(self, dims: list) -> None:
        self.inputs.append({"shape": dims})

    def constant(self, value: np.ndarray, dtype: str | None = None) -> int:
        tensor = self.tensor(value.shape, dtype or str(value.dtype))
        self.constants.append({"tensor": tensor, "name": f"{self.name}_const_{len(self.constants)}"})
        self.values.append(value)
        return tensor

    def node(
        self,
        kind: str,
        inputs: list[Any],
        shape: Any,
        dtype: str = "float32",
        post_ops: Any = (),
        scaling: dict[str, int] | None = None,
        **attrs: Any,
    ) -> int:
        """Append a node; an input is an id or `scaled`, and ``scaling`` is the same for the output."""
        result = self.tensor(shape, dtype)
        output = {"tensor": result, **scaling} if scaling else result
        node: dict[str, Any] = {"kind": kind, "inputs": list(inputs), "outputs": [output]}
        node |= {"attrs": attrs, "post_ops": list(post_ops), "source": [f"test.{kind}"]}
        self.nodes.append(node)
        return result

    def document(self) -> dict:
        fields = ("tensors", "inputs", "constants", "nodes", "outputs")
        head = {"format": "tvm_byoc_dnnl.graph", "version": 2, "name": self.name}
        return head | {field: getattr(self, field) for field in fields}

    def json(self) -> str:
        return json.dumps(self.document())

    def const_names(self) -> list[str]:
        return [constant["name"] for constant in self.constants]

    def evaluate(self, arguments: list[np.ndarray]) -> list[np.ndarray]:
        """The outputs for tensor arguments, by the reference."""
        env: dict[int, np.ndarray] = {}
        for entry, value in zip((e for e in self.inputs if "tensor" in e), arguments, strict=True):
            env[entry["tensor"]] = value
        for entry, value in zip(self.constants, self.values, strict=True):
            env[entry["tensor"]] = value
        for node in self.nodes:
            values = [self._value(env, operand) for operand in node["inputs"]]
            extra = [op["input"] for op in node["post_ops"] if op["kind"] == "binary"]
            own = values[: min(extra, default=len(values))]
            output = node["outputs"][0]
            target = self.tensors[_id(output)]
            shape = target["shape"] if all(isinstance(d, int) for d in target["shape"]) else None
            result = KINDS[node["kind"]](own, node["attrs"], shape)
            for op in node["post_ops"]:
                if op["kind"] == "eltwise":
                    result = eltwise(op["alg"], result, op["alpha"], op["beta"])
                else:
                    result = BINARY[op["alg"]](result, values[op["input"]])
            result = self._stored(env, output, result)
            if target["dtype"] in RANGES:
                result = np.clip(np.rint(result), *RANGES[target["dtype"]])
            env[_id(output)] = result
        return [env[i] for i in self.outputs]

    def _parameters(self, env: dict[int, np.ndarray], operand: dict) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point in a shape that broadcasts over the operand."""
        shape = self.tensors[operand["tensor"]]["shape"]

        def along(name: str, default: float) -> np.ndarray:
            value = env[operand[name]].astype(np.float64) if name in operand else np.array([default])
            extent = [-1 if i == operand.get("axis") else 1 for i in range(len(shape))]
            if value.size != 1 and value.size != shape[operand["axis"]]:  # of grouped weights
                extent[:2] = shape[:2]
            return value.reshape(extent)

        return along("scale", 1.0), along("zero_point", 0.0)

    def _value(self, env: dict[int, np.ndarray], operand: Any) -> np.ndarray:
        """The numbers of an operand, in float64, which holds all products of bytes exactly."""
        stored = env[_id(operand)].astype(np.float64)
        if not isinstance(operand, dict):
            return stored
        scale, zero_point = self._parameters(env, operand)
        return (stored - zero_point) * scale

    def _stored(self, env: dict[int, np.ndarray], output: Any, value: np.ndarray) -> np.ndarray:
        if not isinstance(output, dict):
            return value
        scale, zero_point = self._parameters(env, output)
        quotient = value / scale
        return (np.rint(quotient) if self.tensors[output["tensor"]]["dtype"] in RANGES else quotient) + zero_point


def _id(operand: Any) -> int:
    return operand["tensor"] if isinstance(operand, dict) else operand


def eltwise(alg: str, x: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """One of oneDNN's element-wise algorithms."""
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    with np.errstate(all="ignore"):
        return {
            "relu": lambda: np.where(x > 0, x, alpha * x),
            "relu_of_numbers": lambda: np.where(x > 0, x, 0),
            "tanh": lambda: np.tanh(x),
            "elu": lambda: np.where(x > 0, x, alpha * np.expm1(x)),
            "square": lambda: x * x,
            "abs": lambda: np.abs(x),
            "sqrt": lambda: np.sqrt(x),
            "linear": lambda: alpha * x + beta,
            "soft_relu": lambda: np.logaddexp(0, alpha * x) / alpha,
            "hardsigmoid": lambda: np.clip(alpha * x + beta, 0, 1),
            "mish": lambda: x * np.tanh(np.logaddexp(0, x)),
            "logistic": lambda: sigmoid(x),
            "exp": lambda: np.exp(x),
            "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
            "gelu_erf": lambda: 0.5 * x * (1 + _ERF(x / math.sqrt(2))) if x.size else x,
            "swish": lambda: x * sigmoid(alpha * x),
            "log": lambda: np.log(x),
            "clip": lambda: np.clip(x, alpha, beta),
            "pow": lambda: alpha * np.power(x, beta),
            "round": lambda: np.rint(x),
            "hardswish": lambda: x * np.clip(alpha * x + beta, 0, 1),
        }[alg]()


BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "max_of_numbers": np.fmax,
    "min_of_numbers": np.fmin,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _windows(x: np.ndarray, kernel: Any, a: dict, fill: float) -> tuple[list, tuple[int, ...]]:
    """For every position of the kernel, the strided view of the padded source that it multiplies."""
    pads = [(0, 0), (0, 0), *zip(a["pad_begin"], a["pad_end"], strict=True)]
    padded = np.pad(x, pads, constant_values=fill)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, a["dilations"], strict=True)]
    out = tuple((padded.shape[i + 2] - e) // a["strides"][i] + 1 for i, e in enumerate(extents))
    views = []
    for position in itertools.product(*map(range, kernel)):
        index: list[slice] = [slice(None), slice(None)]
        for i, p in enumerate(position):
            start = p * a["dilations"][i]
            index.append(slice(start, start + (out[i] - 1) * a["strides"][i] + 1, a["strides"][i]))
        views.append((position, padded[tuple(index)]))
    return views, out


def _grouped(weights: np.ndarray, rank: int) -> np.ndarray:
    return weights if weights.ndim == rank + 1 else weights[None]


def convolution(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, w = inputs[0], _grouped(inputs[1], inputs[0].ndim)
    groups, per_group, in_per_group = w.shape[:3]
    views, out = _windows(x, w.shape[3:], a, 0.0)
    result = np.zeros((x.shape[0], groups, per_group, *out))
    for position, view in views:
        source = view.reshape(x.shape[0], groups, in_per_group, *out)
        kernel = w[(slice(None), slice(None), slice(None), *position)]
        result += np.einsum("ngi...,goi->ngo...", source, kernel)
    result = result.reshape(x.shape[0], groups * per_group, *out)
    return result + inputs[2].reshape(-1, *[1] * len(out)) if len(inputs) == 3 else result


def deconvolution(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, w = inputs[0], _grouped(inputs[1], inputs[0].ndim)
    groups, per_group, in_per_group = w.shape[:3]
    spatial = x.shape[2:]
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[3:], a["dilations"], strict=True)]
    whole = [(n - 1) * s + e for n, s, e in zip(spatial, a["strides"], extents, strict=True)]
    room = [max(0, -p) for p in a["pad_end"]]  # output padding
    result = np.zeros((x.shape[0], groups, per_group, *(n + r for n, r in zip(whole, room, strict=True))))
    source = x.reshape(x.shape[0], groups, in_per_group, *spatial)
    for position in itertools.product(*map(range, w.shape[3:])):
        index: list[slice] = [slice(None)] * 3
        for i, p in enumerate(position):
            start = p * a["dilations"][i]
            index.append(slice(start, start + (spatial[i] - 1) * a["strides"][i] + 1, a["strides"][i]))
        kernel = w[(slice(None), slice(None), slice(None), *position)]
        result[tuple(index)] += np.einsum("ngi...,goi->ngo...", source, kernel)
    result = result.reshape(x.shape[0], groups * per_group, *result.shape[3:])
    crop = [slice(None), slice(None)]
    for n, begin, end in zip(whole, a["pad_begin"], a["pad_end"], strict=True):
        crop.append(slice(begin, n - end))
    result = result[tuple(crop)]
    return result + inputs[2].reshape(-1, *[1] * len(spatial)) if len(inputs) == 3 else result


def matmul(inputs: list, a: dict, shape: Any) -> np.ndarray:
    result = inputs[0] @ inputs[1]
    return result + inputs[2] if len(inputs) == 3 else result


def pooling(inputs: list, a: dict, shape: Any) -> np.ndarray:
    fill = -np.inf if a["alg"] == "max" else 0.0
    views, _ = _windows(inputs[0], a["kernel"], a, fill)
    stack = np.stack([view for _, view in views])
    if a["alg"] == "max":
        return stack.max(0)
    if a["alg"] == "avg_include_padding":
        return stack.mean(0)
    ones, _ = _windows(np.ones_like(inputs[0]), a["kernel"], a, 0.0)
    return stack.sum(0) / np.stack([view for _, view in ones]).sum(0)


def softmax(inputs: list, a: dict, shape: Any) -> np.ndarray:
    shifted = inputs[0] - inputs[0].max(a["axis"], keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(a["axis"], keepdims=True))
    return log if a["alg"] == "log" else np.exp(log)


def batch_normalization(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, *stats = np.concatenate([inputs[0], *inputs[5:]], 1), *inputs[1:5]
    scale, shift, mean, variance = (s.reshape(-1, *[1] * (x.ndim - 2)) for s in stats)
    return (x - mean) / np.sqrt(variance + a["epsilon"]) * scale + shift


def layer_normalization(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, scale, shift = [*inputs, *[1, 0][len(inputs) - 1 :]]
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + a["epsilon"]) * scale + shift


def rms_normalization(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, scale = [*inputs, 1][:2]
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + a["epsilon"]) * scale


def lrn(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, size = inputs[0], a["local_size"]
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    axes = [1] if a["alg"] == "across_channels" else list(range(2, x.ndim))
    pads = [(before, after) if i in axes else (0, 0) for i in range(x.ndim)]
    squares = np.pad(x * x, pads)
    for axis in axes:
        squares = np.lib.stride_tricks.sliding_window_view(squares, size, axis).sum(-1)
    return x / (a["k"] + a["alpha"] * squares / size ** len(axes)) ** a["beta"]


def reduction(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, p, eps = inputs[0], a["p"], a["epsilon"]
    axes = tuple(i for i, d in enumerate(shape) if d == 1 and x.shape[i] != 1)
    total = lambda: (np.abs(x) ** p).sum(axes, keepdims=True)  # noqa: E731
    return {
        "max": lambda: x.max(axes, keepdims=True),
        "min": lambda: x.min(axes, keepdims=True),
        "sum": lambda: x.sum(axes, keepdims=True),
        "mul": lambda: x.prod(axes, keepdims=True),
        "mean": lambda: x.mean(axes, keepdims=True),
        "norm_lp_max": lambda: np.maximum(total(), eps) ** (1 / p),
        "norm_lp_sum": lambda: (total() + eps) ** (1 / p),
        "norm_lp_power_p_max": lambda: np.maximum(total(), eps),
        "norm_lp_power_p_sum": lambda: total() + eps,
    }[a["alg"]]()


def resampling(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x = inputs[0]
    for axis in range(2, x.ndim):
        n_in, n_out = x.shape[axis], shape[axis]
        at = (np.arange(n_out) + 0.5) * n_in / n_out
        if a["alg"] == "nearest":
            x = np.take(x, np.floor(at).astype(int), axis)
            continue
        left = np.floor(at - 0.5)
        weight = (at - 0.5 - left).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        low, high = (np.clip(left + i, 0, n_in - 1).astype(int) for i in (0, 1))
        x = np.take(x, low, axis) * (1 - weight) + np.take(x, high, axis) * weight
    return x


def shuffle(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, axis, size = inputs[0], a["axis"], a["group_size"]
    split = x.reshape(*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])
    return np.swapaxes(split, axis, axis + 1).reshape(x.shape)


def slice_(inputs: list, a: dict, shape: Any) -> np.ndarray:
    index = [slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(a["begin"], shape, a["steps"], strict=True)]
    return inputs[0][tuple(index)]


def pad(inputs: list, a: dict, shape: Any) -> np.ndarray:
    pads = list(zip(a["pad_begin"], a["pad_end"], strict=True))
    return np.pad(inputs[0], pads, constant_values=float(a["value"]))


def gather(inputs: list, a: dict, shape: Any) -> np.ndarray:
    data, indices = inputs
    size, indices = data.shape[a["axis"]], indices.astype(np.int64)
    if a["alg"] == "from_end":
        indices = np.where(indices < 0, indices + size, indices)
    mode = "wrap" if a["alg"] == "wrap" else "clip"
    return np.take(data, indices, a["axis"], mode=mode)


def compressed_matmul(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, stored, scales, *zeros = inputs
    if stored.shape[1] < x.shape[1]:  # two numbers in a byte, the lower half first
        pairs = stored.astype(np.int8)
        stored = np.stack([np.left_shift(pairs, 4) >> 4, pairs >> 4], -1).reshape(len(stored), -1)
    grouped = stored.astype(np.float64).reshape(*scales.shape, a["group_size"])
    centred = grouped - (zeros[0][..., None] if zeros else 0)
    if a.get("alg") == "int8":
        blocks = x.astype(np.float32).reshape(len(x), -1, a["group_size"])
        unit = np.maximum(np.abs(blocks).max(-1, keepdims=True) / np.float32(127), np.finfo(np.float32).tiny)
        x = (np.rint(blocks * (1 / unit)).astype(np.float64) * unit).reshape(x.shape)
    return x @ (centred * scales[..., None]).reshape(stored.shape).T


def attention(inputs: list, a: dict, shape: Any) -> np.ndarray:
    query, key, value, *bias = inputs
    if query.ndim == 4:
        key, value = (np.repeat(x, query.shape[1] // key.shape[1], 1) for x in (key, value))
    scores = query @ np.swapaxes(key, -1, -2) * a["scale"]
    if cap := a.get("softcap", 0):
        scores = cap * np.tanh(scores / cap)
    scores = scores + (bias[0] if bias else 0)
    shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    shares = shares / shares.sum(-1, keepdims=True)
    return (np.where(np.isnan(shares), 0, shares) if a["alg"] == "no_nan" else shares) @ value


def append(inputs: list, a: dict, shape: Any) -> np.ndarray:
    past, rows, starts, _ = inputs
    result = np.zeros(shape)
    result[:, :, : past.shape[2]] = past
    for b, start in enumerate(starts.astype(int)):
        for s in range(rows.shape[2]):
            if 0 <= start + s < shape[2]:
                result[b, :, start + s] = rows[b, :, s]
    return result


def cached_attention(inputs: list, a: dict, shape: Any) -> np.ndarray:
    query, key, value, starts, *sinks = inputs
    key, value = (np.repeat(x, query.shape[1] // key.shape[1], 1) for x in (key, value))
    scores = query @ np.swapaxes(key, -1, -2) * a["scale"]
    if a["softcap"]:
        scores = a["softcap"] * np.tanh(scores / a["softcap"])
    behind = starts[:, None, None] + np.arange(query.shape[2])[:, None] - np.arange(key.shape[2])
    seen = (behind >= 0) & ((behind < a["window"]) | (a["window"] == 0))
    shares = np.exp(np.where(seen[:, None], scores, -np.inf))
    extra = np.exp(sinks[0])[:, None, None] if sinks else 0
    return shares / (shares.sum(-1, keepdims=True) + extra) @ value


def rotary(inputs: list, a: dict, shape: Any) -> np.ndarray:
    x, cos, sin = inputs
    pairs, result = cos.shape[-1], x.copy()
    step = 2 if a["alg"] == "neighbours" else 1
    first, second = (slice(at, 2 * pairs if step == 2 else at + pairs, step) for at in (0, 1 if step == 2 else pairs))
    turned = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)[:, None]
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


KINDS = {
    "convolution": convolution,
    "deconvolution": deconvolution,
    "matmul": matmul,
    "pooling": pooling,
    "eltwise": lambda inputs, a, shape: eltwise(a["alg"], inputs[0], a["alpha"], a["beta"]),
    "binary": lambda inputs, a, shape: BINARY[a["alg"]](*inputs),
    "prelu": lambda inputs, a, shape: np.where(inputs[0] > 0, inputs[0], inputs[0] * inputs[1]),
    "softmax": softmax,
    "batch_normalization": batch_normalization,
    "layer_normalization": layer_normalization,
    "rms_normalization": rms_normalization,
    "lrn": lrn,
    "reduction": reduction,
    "resampling": resampling,
    "concat": lambda inputs, a, shape: np.concatenate(inputs, a["axis"]),
    "shuffle": shuffle,
    "reorder": lambda inputs, a, shape: inputs[0],
    "reshape": lambda inputs, a, shape: inputs[0].reshape(shape),
    "permute": lambda inputs, a, shape: inputs[0].transpose(a["axes"]),
    "slice": slice_,
    "expand": lambda inputs, a, shape: np.broadcast_to(inputs[0], shape),
    "pad": pad,
    "gather": gather,
    "lookup": lambda inputs, a, shape: np.asarray(a["table"])[inputs[0].astype("int64") & 255],
    "compressed_matmul": compressed_matmul,
    "append": append,
    "attention": attention,
    "cached_attention": cached_attention,
    "recurrent": recurrent,
    "rotary": rotary,
}
