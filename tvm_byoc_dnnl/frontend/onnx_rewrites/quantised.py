"""Operators on quantised tensors as dequantise, compute, quantise: the form that both TVM and backends know.

    QLinearConv(x, w)  ->  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w)))

The integer operators become the same with scales of 1; sums beyond 2²⁴ are then rounded to float32.

An attribute that neither the rule here nor the standard operator knows is refused: it would be read past.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from ..onnx_nodes import attributes
from .builder import Builder, Nodes

_MS = "com.microsoft"


class _Quantised(Builder):
    """With the steps between integers and real numbers."""

    def compute(self, op: str, inputs: list[str], output: str | None = None) -> str:
        """The standard operator with all attributes that are left."""
        self.refuse_others(*onnx.defs.get_schema(op, self.graph.opset).attributes)
        return self.add(op, inputs, output, **self.attrs)

    def refuse_others(self, *known: str) -> None:
        """Name an attribute that none of these is."""
        others = sorted(set(self.attrs).difference(known))
        if others:
            raise UnsupportedError(
                f"no Relax equivalent for {self.old.op_type} (node `{self.old.name or self.old.output[0]}`) with the "
                f"attribute{'s' if len(others) > 1 else ''} {', '.join(others)}"
            )

    def image(self, data: str, rank: int | None) -> tuple[str, int] | None:
        """``data`` with its channels behind the first axis, and the rank of a result whose channels go last, or 0.

        The weights of a convolution lie as always. Nothing where the rank is not known (yet).
        """
        if not self.attrs.pop("channels_last", 0):
            return data, 0
        if rank is None:
            return None
        return self.add("Transpose", [data], perm=[0, rank - 1, *range(1, rank - 1)]), rank

    def dequantised(self, data: str, scale: str, zero: str, axis: int | None = None) -> str:
        """The real numbers of a quantised tensor; ``axis`` matters when each of its slices has a scale."""
        single = axis is None or self.graph.static_shape(scale) in ((), (1,))
        names = [data, *(self.scalar(n) for n in (scale, zero) if n)]
        attrs: dict[str, Any] = {} if single else {"axis": axis}
        return self.add("DequantizeLinear", names, **attrs)

    def quantised(self, data: str, scale: str, zero: str, like: str, last_rank: int = 0) -> Nodes:
        """The last step: quantise into the old node's output.

        Without a zero point it has the dtype of ``like``. ``last_rank``: the rank of a result whose channels go last.
        """
        kind = self.graph.elem_type(like)
        if not zero and kind:
            zero = self.constant_zero(kind)
        output = None if last_rank else self.old.output[0]
        whole = self.add("QuantizeLinear", [data, *(self.scalar(n) for n in (scale, zero) if n)], output)
        if last_rank:
            self.add("Transpose", [whole], self.old.output[0], perm=[0, *range(2, last_rank), 1])
        return self.nodes

    def constant_zero(self, kind: int) -> str:
        """The zero point that a tensor of an element type has if it has none."""
        zero = np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(kind))
        return self.graph.add_constant(f"{self.old.output[0]}_zero", zero)

    def scalar(self, name: str) -> str:
        """A constant of one element as a scalar: ONNX allows shape (1,) for it in some operators."""
        value = self.graph.constant(name)
        if value is None or value.shape != (1,):
            return name
        return self.graph.add_constant(f"{name}_scalar", value.reshape(()))

    def wide(self, scale: str) -> str:
        """A scale as float32: sums of products in float16 are off by more than a step of the result."""
        if self.graph.elem_type(scale) not in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
            return scale
        value = self.graph.constant(scale)
        if value is not None:
            return self.graph.add_constant(f"{scale}_wide", value.astype("float32"))
        return self.add("Cast", [scale], to=TensorProto.FLOAT)

    def bias(self, data: str, x_scale: str, w_scale: str) -> str:
        """An int32 bias, whose scale is the product of the operands'."""
        values: list[Any] = [self.graph.constant(n) for n in (data, x_scale, w_scale)]
        if any(v is None for v in values):
            scale = self.add("Mul", [x_scale, w_scale])
            return self.add("Mul", [self.add("Cast", [data], to=TensorProto.FLOAT), scale])
        whole, xs, ws = values
        return self.graph.add_constant(f"{data}_float", (whole * (xs * ws).reshape(-1)).astype("float32"))


def _conv(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = _Quantised(graph, node)
    x, xs, xz, w, ws, wz, ys, yz, bias = b.inputs[:9]
    image = b.image(x, graph.rank(w))
    if image is None:
        return None
    data, weight = b.dequantised(image[0], xs, xz), b.dequantised(w, ws, wz, axis=0)
    inputs = [data, weight, b.bias(bias, xs, ws)] if bias else [data, weight]
    return b.quantised(b.compute("Conv", inputs), ys, yz, x, image[1])


def _matmul(graph: Graph, node: onnx.NodeProto) -> Nodes:
    b = _Quantised(graph, node)
    x, xs, xz, w, ws, wz, ys, yz = b.inputs[:8]
    for name in (xs, ws):
        if (graph.rank(name) or 0) > 1:
            raise UnsupportedError(
                f"no Relax equivalent for {node.op_type} (node `{node.name or node.output[0]}`) with scales `{name}` "
                f"of shape {list(graph.dims(name) or ())}; expected one, or one per row or column"
            )
    xs, ws, ys = map(b.wide, (xs, ws, ys))
    data, weight = b.dequantised(x, xs, xz, axis=-2), b.dequantised(w, ws, wz, axis=-1)
    return b.quantised(b.compute("MatMul", [data, weight]), ys, yz, x)


def _gemm(graph: Graph, node: onnx.NodeProto) -> Nodes:
    b = _Quantised(graph, node)
    b.refuse_others("alpha", "transA", "transB")
    x, xs, xz, w, ws, wz, bias, ys, yz = b.inputs[:9]
    axis = 0 if b.attrs.get("transB") else 1
    inputs = [b.dequantised(x, xs, xz), b.dequantised(w, ws, wz, axis=axis)]
    if bias:
        inputs.append(b.add("Mul", [b.bias(bias, xs, ws), b.number(b.attrs.get("alpha", 1.0), ws)]))
    if ys:
        return b.quantised(b.compute("Gemm", inputs), ys, yz, x)
    b.compute("Gemm", inputs, node.output[0])
    return b.nodes


def _elementwise(op: str, operands: int = 1) -> Any:
    """Operators with so many (data, scale, zero point), then the result's scale and zero point."""

    def rule(graph: Graph, node: onnx.NodeProto) -> Nodes:
        b = _Quantised(graph, node)
        data = [b.dequantised(*b.inputs[3 * i : 3 * i + 3]) for i in range(operands)]
        ys, yz = b.inputs[3 * operands : 3 * operands + 2]
        return b.quantised(b.compute(op, data), ys, yz, b.inputs[0])

    return rule


def _pool(op: str) -> Any:
    def rule(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
        b = _Quantised(graph, node)
        x, xs, xz, ys, yz = b.inputs[:5]
        image = b.image(x, graph.rank(x))
        if image is None:
            return None
        return b.quantised(b.compute(op, [b.dequantised(image[0], xs, xz)]), ys, yz, x, image[1])

    return rule


def _softmax(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Before opset 13 of the standard, which an attribute names, all axes from ``axis`` on are one."""
    b = _Quantised(graph, node)
    b.refuse_others("axis", "opset")
    x, xs, xz, ys, yz = b.inputs[:5]
    is_old, rank = int(b.attrs.get("opset", 13)) < 13, graph.rank(x)
    axis = int(b.attrs.get("axis", -1))
    if rank is None:
        return None
    axis %= rank
    data = b.dequantised(x, xs, xz)
    if axis == rank - 1:
        return b.quantised(b.add("Softmax", [data], axis=axis), ys, yz, x)
    if is_old:
        shares = b.add("Softmax", [b.add("Flatten", [data], axis=axis)], axis=1)
        return b.quantised(b.add("Reshape", [shares, b.add("Shape", [x])]), ys, yz, x)
    swapped = [*range(rank)]
    swapped[axis], swapped[-1] = swapped[-1], axis
    shares = b.add("Softmax", [b.add("Transpose", [data], perm=swapped)], axis=rank - 1)
    return b.quantised(b.add("Transpose", [shares], perm=swapped), ys, yz, x)


def _concat(graph: Graph, node: onnx.NodeProto) -> Nodes:
    b = _Quantised(graph, node)
    ys, yz, *rest = node.input
    data = [b.dequantised(*rest[i : i + 3]) for i in range(0, len(rest), 3)]
    return b.quantised(b.compute("Concat", data), ys, yz, rest[0])


def _integer(op: str, axes: tuple[int | None, int]) -> Any:
    """``op`` of integers minus their zero points, as int32, or as float32 where only that is read."""

    def rule(graph: Graph, node: onnx.NodeProto) -> Nodes:
        b = _Quantised(graph, node)
        x, w, xz, wz = b.inputs[:4]
        operands = []
        for data, zero, axis in ((x, xz, axes[0]), (w, wz, axes[1])):
            shape = graph.static_shape(zero) if zero else ()
            size = shape[0] if shape else 1
            one = np.ones(() if size == 1 else (size,), "float32")
            scale = graph.add_constant(f"{data}_one", one)
            operands.append(b.dequantised(data, scale, zero, axis))
        if _is_read_as_float(graph, node.output[0]):
            b.compute(op, operands, node.output[0])
        else:
            b.add("Cast", [b.compute(op, operands)], node.output[0], to=TensorProto.INT32)
        return b.nodes

    return rule


def _is_read_as_float(graph: Graph, name: str) -> bool:
    """Whether each reader converts the integers to float32, so that no integers are needed."""
    readers, is_output = graph.read_by(name)
    return not is_output and all(n.op_type == "Cast" and attributes(n)["to"] == TensorProto.FLOAT for n in readers)


def _dynamic(graph: Graph, node: onnx.NodeProto) -> Nodes:
    """Scale and zero point are those of the range of the source; the scale is 1 where all elements are zero."""
    b = _Quantised(graph, node)
    x, (quantised, scale, zero) = b.inputs[0], node.output
    null, one = b.number(0, x), b.number(1, x)
    ends = []
    for reduce, pick in (("ReduceMin", "Min"), ("ReduceMax", "Max")):
        end = b.add(reduce, [x], keepdims=0)
        b.settle()  # where all is an infinity beyond 0, the end is 0, whatever TVM answers
        ends.append(b.add(pick, [end, null]))
    low, high = ends
    span = b.add("Sub", [high, low])
    is_range = b.add("Min", [b.add("Mul", [span, b.number(float(np.finfo("float32").max), x)]), one])  # 0 or 1
    b.add("Add", [b.add("Div", [span, b.number(255, x)]), b.add("Sub", [one, is_range])], scale)
    origin = graph.add_constant(f"{zero}_origin", np.zeros((), "uint8"))
    b.add("QuantizeLinear", [b.add("Neg", [b.add("Div", [low, scale])]), one, origin], zero)
    b.add("QuantizeLinear", [x, scale, zero], quantised)
    return b.nodes


RULES = {
    ("", "DynamicQuantizeLinear"): _dynamic,
    ("", "QLinearConv"): _conv,
    (_MS, "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    ("", "ConvInteger"): _integer("Conv", (None, 0)),
    ("", "MatMulInteger"): _integer("MatMul", (-2, -1)),
    (_MS, "QGemm"): _gemm,
    (_MS, "QLinearAdd"): _elementwise("Add", 2),
    (_MS, "QLinearMul"): _elementwise("Mul", 2),
    (_MS, "QLinearSigmoid"): _elementwise("Sigmoid"),
    (_MS, "QLinearLeakyRelu"): _elementwise("LeakyRelu"),
    (_MS, "QLinearSoftmax"): _softmax,
    (_MS, "QLinearAveragePool"): _pool("AveragePool"),
    (_MS, "QLinearGlobalAveragePool"): _pool("GlobalAveragePool"),
    (_MS, "QLinearConcat"): _concat,
}
