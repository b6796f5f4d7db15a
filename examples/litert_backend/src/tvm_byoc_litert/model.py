"""A .tflite model while operators of Relax are written to it, by the object API of the schema in LiteRT's wheel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

import tvm_byoc_dnnl as byoc

#: what integers stand for, ``(integer - zero) * scale``: scales, zero points, and the axis along which they differ
Scale = tuple[tuple[float, ...], tuple[int, ...], int]
#: more axes than this many are too many for kernels of LiteRT, some of which end the process then
_RANK = 4
#: bounds of a clip → the activation that LiteRT has for them, and its number as part of another operator
ACTIVATIONS = {(0.0, math.inf): ("RELU", 1), (-1.0, 1.0): ("RELU_N1_TO_1", 2), (0.0, 6.0): ("RELU6", 3)}
#: of which the numbers of any dtype stay the same
MOVES = [f"relax.{name}" for name in ("permute_dims", "reshape", "flatten", "squeeze", "expand_dims")]
#: operators of tensors alone, and their names in LiteRT where these differ
_NAMES = (
    "abs ceil cos exp floor log rsqrt sin sqrt tanh add maximum minimum negative=NEG sigmoid=LOGISTIC nn.relu=RELU "
    "subtract=SUB multiply=MUL divide=DIV"
)
_SIMPLE = {f"relax.{name}": other or name.upper() for name, _, other in (n.partition("=") for n in _NAMES.split())}
#: how pixels lie, as LiteRT says it: whether corners are aligned, whether pixels have half centres
_RESIZES = {"half_pixel": (False, True), "align_corners": (True, False), "asymmetric": (False, False)}
#: operator → the name of its options, where that is another
_OPTIONS = (
    "MEAN=Reducer SUM=Reducer REDUCE_MAX=Reducer REDUCE_MIN=Reducer MAXIMUM=MaximumMinimum MINIMUM=MaximumMinimum "
    "BATCH_MATMUL=BatchMatMul MAX_POOL_2D=Pool2D AVERAGE_POOL_2D=Pool2D PADV2=PadV2"
)
_OPTIONS_OF = dict(name.split("=") for name in _OPTIONS.split())


def require(condition: bool, reason: str) -> None:
    """Refuse, unless the condition holds."""
    if not condition:
        raise byoc.Reject(reason)


@dataclass(eq=False)
class Value:
    """A tensor; it is part of a model from when an operator reads or makes it. ``data`` if it is a constant."""

    shape: Sequence[int]
    dtype: str = "float32"
    scale: Scale | None = None
    data: np.ndarray | None = None
    index: int = -1
    producer: Any = None

    def like(self, shape: Sequence[int] | None = None) -> Value:
        """A new tensor of the same kind of numbers."""
        return Value(self.shape if shape is None else shape, self.dtype, self.scale)


def constant(array: Any, dtype: Any = None, scale: Scale | None = None) -> Value:
    """A tensor of these numbers."""
    array = np.asarray(array, dtype)
    return Value(array.shape, str(array.dtype), scale, array)


def _axes(axes: Any, rank: int) -> list[int]:
    return [*range(rank)] if axes is None else [a % rank for a in map(int, axes)]


class Model(schema.ModelT):
    """Tensors and operators; `finish` makes the bytes."""

    def __init__(self) -> None:
        super().__init__()
        graph = schema.SubGraphT()
        self.version, self.subgraphs, self.buffers, self.operatorCodes = 3, [graph], [schema.BufferT()], []
        self._graph, self._codes, graph.tensors, graph.operators = graph, {}, [], []

    def _indices(self, values: Sequence[Value]) -> list[int]:
        for value in values:
            if value.index < 0:
                tensor, value.index = schema.TensorT(), len(self._graph.tensors)
                self._graph.tensors.append(tensor)
                tensor.shape = np.array(value.shape, np.int32)
                tensor.type = getattr(schema.TensorType, value.dtype.upper())
                if value.data is not None:
                    tensor.buffer, buffer = len(self.buffers), schema.BufferT()
                    buffer.data = np.frombuffer(np.ascontiguousarray(value.data).tobytes(), np.uint8)
                    self.buffers.append(buffer)
                if value.scale is not None:
                    tensor.quantization = form = schema.QuantizationParametersT()
                    form.scale, form.zeroPoint = np.float32(value.scale[0]), np.int64(value.scale[1])
                    form.quantizedDimension = value.scale[2]
        return [value.index for value in values]

    def emit(self, name: str, inputs: Sequence[Any], results: Any, **fields: Any) -> Any:
        """The result of an operator on tensors and integers, or a list of them; ``fields`` are its options."""
        operator, made = schema.OperatorT(), results if isinstance(results, list) else [results]
        inputs = [value if isinstance(value, Value) else constant(value, np.int32) for value in inputs]
        if name not in self._codes:
            self._codes[name] = entry = schema.OperatorCodeT()
            entry.builtinCode, entry.version = getattr(schema.BuiltinOperator, name), 1
            entry.deprecatedBuiltinCode = min(entry.builtinCode, 127)
            self.operatorCodes.append(entry)
        operator.opcodeIndex = [*self._codes].index(name)
        operator.inputs, operator.outputs = self._indices(inputs), self._indices(made)
        options = f"{_OPTIONS_OF.get(name, name.title().replace('_', ''))}Options"
        if hasattr(schema, f"{options}T"):
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            vars(operator.builtinOptions).update(fields)
        self._graph.operators.append(operator)
        made[0].producer = operator
        return results

    def finish(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> bytes:
        """The model as a flatbuffer."""
        self._graph.inputs, self._graph.outputs = self._indices(inputs), self._indices(outputs)
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def write(self, op: str, attrs: Any, x: list[Value], y: Any) -> Any:
        """The result of an operator on some tensors, or a list of several results, of the kind of ``y``."""
        for name in ("data_layout", "layout", "out_layout"):
            layout = str(getattr(attrs, name, ""))
            require(layout in ("NHWC", ""), f"{name} {layout}; this backend takes NHWC")
        if op not in _SIMPLE:
            return getattr(self, op.removeprefix("relax.").replace(".", "_"))(attrs, x, y)
        shapes = [v.shape for v in x]
        require(max(map(len, shapes)) <= _RANK or len(set(shapes)) == 1, f"broadcast of {shapes}")
        return self.emit(_SIMPLE[op], x, y)

    def nn_gelu(self, _attrs: Any, x: list[Value], y: Value, approximate: bool = False) -> Value:
        return self.emit("GELU", x, y, approximate=approximate)

    nn_gelu_tanh = partialmethod(nn_gelu, approximate=True)

    def nn_silu(self, _attrs: Any, x: list[Value], y: Value) -> Value:
        return self.emit("MUL", [x[0], self.emit("LOGISTIC", x, y.like())], y)

    def nn_leakyrelu(self, attrs: Any, x: list[Value], y: Value) -> Value:
        return self.emit("LEAKY_RELU", x, y, alpha=float(attrs.alpha))

    def reshape(self, _attrs: Any, x: list[Value], y: Value) -> Value:
        return self.emit("RESHAPE", [x[0], y.shape], y)

    flatten = squeeze = expand_dims = nn_batch_flatten = reshape

    def permute_dims(self, attrs: Any, x: list[Value], y: Value) -> Value:
        rank = len(y.shape)
        require(rank <= _RANK, f"a transpose of {rank} axes")
        return self.emit("TRANSPOSE", [x[0], _axes(attrs.axes or [*range(rank)][::-1], rank)], y)

    def concat(self, attrs: Any, x: list[Value], y: Value) -> Value:
        require(attrs.axis is not None, "concat of flattened tensors")
        require(len(set(x)) == len(x), "a concat that reads a tensor twice")
        return self.emit("CONCATENATION", x, y, axis=int(attrs.axis) % len(y.shape))

    def split(self, attrs: Any, x: list[Value], y: list[Value]) -> list[Value]:
        axis = int(attrs.axis) % len(x[0].shape)
        return self.emit("SPLIT_V", [x[0], [part.shape[axis] for part in y], axis], y, numSplits=len(y))

    def _window(self, attrs: Any, x: Value, size: Sequence[int], least: Any = 0) -> tuple[Value, dict[str, int]]:
        """The padded picture and the options of a window: LiteRT has two ways to pad, and PAD does what is left."""
        strides, dilation, padding = [*map(int, attrs.strides)], [*map(int, attrs.dilation)], [*map(int, attrs.padding)]
        same = []
        for length, stride, extent, step in zip(x.shape[1:3], strides, size, dilation):
            same.append(max((-(-length // stride) - 1) * stride + (extent - 1) * step + 1 - length, 0))
        is_same = any(padding) and padding == [same[0] // 2, same[1] // 2, -(-same[0] // 2), -(-same[1] // 2)]
        if any(padding) and (least is None or not is_same):
            is_same, (top, left, bottom, right) = False, padding
            amounts = [[0, 0], [top, bottom], [left, right], [0, 0]]
            padded = x.like([n + sum(pair) for n, pair in zip(x.shape, amounts)])
            fill = [constant(least, x.dtype, x.scale)] if least else []
            x = self.emit("PADV2" if fill else "PAD", [x, amounts, *fill], padded)
        return x, {"padding": 0 if is_same else 1, "strideH": strides[0], "strideW": strides[1]}

    def nn_conv2d(self, attrs: Any, x: list[Value], y: Value) -> Value:
        """A convolution of a picture and weights, perhaps with a bias."""
        require(x[1].data is not None, "weights are not constant")
        require(str(attrs.kernel_layout) == "OHWI", f"kernel_layout {attrs.kernel_layout}; this backend takes OHWI")
        weights, bias = x[1], x[2] if len(x) > 2 else constant(np.zeros(y.shape[3], np.float32))
        data, fields = self._window(attrs, x[0], weights.shape[1:3])
        fields |= dict(zip(("dilationHFactor", "dilationWFactor"), [*map(int, attrs.dilation)], strict=True))
        if not 1 < int(attrs.groups) == data.shape[3]:
            return self.emit("CONV_2D", [data, weights, bias], y, **fields)
        weights = constant(weights.data.transpose(3, 1, 2, 0), scale=weights.scale and (*weights.scale[:2], 3))
        fields["depthMultiplier"] = y.shape[3] // data.shape[3]
        return self.emit("DEPTHWISE_CONV_2D", [data, weights, bias], y, **fields)

    def matmul(self, _attrs: Any, x: list[Value], y: Value) -> Value:
        """A product, with a bias if it is one of weights."""
        a, b, *bias = x
        require(min(len(a.shape), len(b.shape)) > 1, "a product with a vector")
        require(len(y.shape) <= _RANK, f"a product of {len(y.shape)} axes")
        if b.data is None or len(b.shape) != 2:
            require(not bias, "a bias of a product of more than two axes")
            return self.emit("BATCH_MATMUL", x, y)
        inputs = [a, constant(b.data.T, scale=b.scale), *(bias or [constant(np.zeros(b.shape[1], np.float32))])]
        return self.emit("FULLY_CONNECTED", inputs, y, keepNumDims=len(y.shape) != 2)

    def nn_avg_pool2d(self, attrs: Any, x: list[Value], y: Value, name: str = "AVERAGE_POOL_2D") -> Value:
        height, width = map(int, attrs.pool_size)
        lowest = -np.inf if y.dtype == "float32" else -128
        least = lowest if name == "MAX_POOL_2D" else None if attrs.count_include_pad else 0
        require(not attrs.ceil_mode, "ceil_mode")
        require({*map(int, attrs.dilation)} == {1}, f"dilation {attrs.dilation} of pooling")
        data, fields = self._window(attrs, x[0], (height, width), least)
        require(data is x[0] or least != 0, f"padding {attrs.padding} of an average that is not in it")
        return self.emit(name, [data], y, filterHeight=height, filterWidth=width, **fields)

    nn_max_pool2d = partialmethod(nn_avg_pool2d, name="MAX_POOL_2D")

    def nn_adaptive_avg_pool2d(self, attrs: Any, x: list[Value], y: Value) -> Value:
        require([*y.shape[1:3]] == [1, 1], f"adaptive pooling to {y.shape[1:3]}; expected one result for each channel")
        return self.emit("MEAN", [x[0], [1, 2]], y, keepDims=True)

    def mean(self, attrs: Any, x: list[Value], y: Value, name: str = "MEAN") -> Value:
        rank, axes = len(x[0].shape), _axes(attrs.axis, len(x[0].shape))
        require(bool(axes) and rank <= _RANK, f"a reduction of {rank} axes over {axes}")
        return self.emit(name, [x[0], axes], y, keepDims=bool(attrs.keepdims))

    sum = partialmethod(mean, name="SUM")
    max = partialmethod(mean, name="REDUCE_MAX")
    min = partialmethod(mean, name="REDUCE_MIN")

    def nn_softmax(self, attrs: Any, x: list[Value], y: Value) -> Value:
        rank = len(y.shape)
        require(rank > 0 and int(attrs.axis) % rank == rank - 1, f"softmax along axis {attrs.axis} of {rank}")
        return self.emit("SOFTMAX", x, y, beta=1.0)

    def nn_layer_norm(self, attrs: Any, x: list[Value], y: Value) -> Value:
        rank, axes = len(y.shape), sorted(_axes(attrs.axes, len(y.shape)))
        require(rank <= _RANK and axes == [*range(rank - len(axes), rank)], f"axes {axes} of {rank}")
        narrow = y.like([*y.shape[: axes[0]], *[1] * len(axes)])
        centred = self.emit("SUB", [x[0], self.emit("MEAN", [x[0], axes], narrow.like(), keepDims=True)], y.like())
        square = self.emit("MUL", [centred, centred], y.like())
        variance = self.emit("MEAN", [square, axes], narrow.like(), keepDims=True)
        variance = self.emit("ADD", [variance, constant(attrs.epsilon, np.float32)], narrow.like())
        made = self.emit("MUL", [centred, self.emit("RSQRT", [variance], narrow)], y.like())
        made = self.emit("MUL", [made, x[1]], y.like()) if attrs.scale else made
        return self.emit("ADD", [made, x[2]], y.like()) if attrs.center else made

    def image_resize2d(self, attrs: Any, x: list[Value], y: Value) -> Value:
        method, where, rounds = map(str, (attrs.method, attrs.coordinate_transformation_mode, attrs.rounding_method))
        is_nearest = method == "nearest_neighbor" and f"{where} {rounds}" in ("asymmetric floor", "half_pixel round")
        require(is_nearest or (method == "linear" and where in _RESIZES), f"resize by {method}, {where}, {rounds}")
        halves = is_nearest and where == "half_pixel" and any(n % k for n, k in zip(y.shape[1:3], x[0].shape[1:3]))
        require(not halves, f"{x[0].shape} to {y.shape} rounds halves in a way of LiteRT's own")
        require(not any(map(float, attrs.roi)), f"resize of the part {attrs.roi}")
        name, (corners, half) = "RESIZE_NEAREST_NEIGHBOR" if is_nearest else "RESIZE_BILINEAR", _RESIZES[where]
        return self.emit(name, [x[0], y.shape[1:3]], y, alignCorners=corners, halfPixelCenters=half)


_METHODS = [n for n in vars(Model) if not n.startswith("_") and n not in ("write", "emit", "finish")]
#: what can be written
OPERATORS = [*_SIMPLE, *("relax." + name.replace("nn_", "nn.").replace("image_", "image.") for name in _METHODS)]
