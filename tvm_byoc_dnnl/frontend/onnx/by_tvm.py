"""Operators without an entry: a rule that rewrites the node, or TVM's converter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ..._compat import constant_numpy, is_a, is_constant
from ...errors import UnsupportedError
from ...handles import items
from ..onnx_graph import Graph
from ..onnx_importer import NamingImporter, converters
from ..onnx_rewrites import has_rule, rewritten
from ..onnx_rewrites.fold import folded
from .dim import Dim
from .emit import Emit, np_dtype
from .value import Node, Value

__all__ = ["NOT_ONNX", "NodeGraph", "TvmConverters", "elem_type", "folded", "has_rule", "is_converted", "rewritten"]

# Operators of ONNX Runtime's own domain that the importer means.
_CONTRIB = frozenset({"MatMulInteger16"})
#: Converters of TVM that mean no operator of ONNX, or, for Attention, not ONNX's.
NOT_ONNX = frozenset(
    {
        *("AllClassNMS", "Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "MatMulInteger16"),
        "SkipLayerNormalization",
    }
)


def is_converted(node: Node) -> bool:
    """Whether TVM has a converter for the operator: it looks at names only, whatever the domain."""
    if node.domain == "com.microsoft":
        return node.op in _CONTRIB
    return node.domain == "" and node.op in converters() and node.op not in NOT_ONNX


_SEQUENCES = frozenset({"SplitToSequence"})  # operators whose result is a list of tensors


class NodeGraph(Graph):
    """A graph of one node: what the rules and the folding ask is answered by the values that the node reads.

    Parameters
    ----------
    node : Node
        The node, with its ``proto``.
    value_of : function
        The value of a name that the node or its subgraphs read.
    read_by : function
        Who reads a result; see `Scope.read_by`.
    opset : int
        The version of ONNX's own domain, also for a node of another one.
    """

    def __init__(
        self,
        node: Node,
        value_of: Callable[[str], Value | None],
        read_by: Callable[[str], tuple[list[onnx.NodeProto], bool]],
        opset: int,
    ) -> None:
        self._values: dict[str, Value] = {}
        self._read_by = read_by
        assert node.proto is not None
        model = onnx.ModelProto()
        super().__init__(model)
        self.nodes = [node.proto]
        self.opset = opset
        for name in self.reads(node.proto):
            if not name or name in self._values:
                continue
            try:
                value = value_of(name)
            except KeyError:  # made inside of a subgraph
                continue
            if value is None:
                continue
            self._values[name] = value
            if value.is_constant:
                self._constants[name] = value.memory
            else:
                self.inputs.append(_declared(name, value))
        wanted = zip(node.proto.output, node.wanted, strict=False)
        self.outputs = [helper.make_empty_tensor_value_info(o) for o, is_wanted in wanted if o and is_wanted]

    def constant(self, name: str) -> np.ndarray | None:
        """The value of ``name`` if it is known now."""
        value = self._values.get(name)
        return value.known if value is not None and value.is_constant else super().constant(name)

    def dims(self, name: str) -> Any:
        """Dims of a value, ``None`` when even the rank is unknown."""
        value = self._values.get(name)
        if value is None:
            return super().dims(name)
        return None if value.dims is None else tuple(str(d) if isinstance(d, Dim) else d for d in value.dims)

    def elem_type(self, name: str) -> int:
        """ONNX element type of a value, 0 when unknown."""
        value = self._values.get(name)
        return super().elem_type(name) if value is None else elem_type(value)

    def is_read(self, name: str) -> bool:
        """Whether anything needs a result."""
        return any(o.name == name for o in self.outputs)

    def read_by(self, name: str) -> tuple[list[onnx.NodeProto], bool]:
        """The nodes that read a result, and whether it is a result of the graph around."""
        return self._read_by(name)

    def added(self) -> dict[str, np.ndarray]:
        """The constants that rules have added."""
        return {name: np.asarray(self._constants[name]) for name in self._constants if name not in self._values}


def elem_type(value: Value) -> int:
    """ONNX's element type of a value, 0 when it is unknown."""
    if not value.dtype or value.dtype == "string":
        return onnx.TensorProto.STRING if value.dtype else 0
    return int(helper.np_dtype_to_tensor_dtype(np_dtype(value.dtype)))


def _declared(name: str, value: Value) -> onnx.ValueInfoProto:
    if value.is_sequence or not value.dtype:
        return helper.make_empty_tensor_value_info(name)
    dims = None if value.dims is None else [str(d) if isinstance(d, Dim) else d for d in value.dims]
    return helper.make_tensor_value_info(name, elem_type(value), dims)


class TvmConverters:
    """TVM's converters, called with values."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._importer = NamingImporter(emit.bb)

    def convert(self, node: Node) -> list[Value]:
        """The results of a node."""
        assert node.proto is not None
        attrs = self._importer.parsed(node.proto.attribute)
        attrs["tvm_custom"] = {"name": node.name, "num_outputs": len(node.proto.output)}
        try:
            result = self._importer.converted(node.op, [self._given(v) for v in self._agreed(node)], attrs, node.opset)
        except UnsupportedError:
            raise
        except Exception as err:
            line = (str(err).strip() or type(err).__name__).splitlines()[0]
            raise UnsupportedError(
                f"TVM's ONNX importer refuses this model: {line} (node `{node.name}`, {node.op})"
            ) from err
        if node.op in _SEQUENCES:
            return [Value(items=self._results(result))]
        return self._results(result)

    def _agreed(self, node: Node) -> list[Value | None]:
        """The inputs, with equal sizes where TVM needs them.

        To scatter elements it takes as many indices as the data has elements along the other axes, and no fewer.
        """
        if node.op not in ("Scatter", "ScatterElements"):
            return node.inputs
        data, indices, updates = (node.needed(i) for i in range(3))
        if data.dims is None or indices.dims is None or updates.dims is None:
            raise node.refused("reads a tensor of unknown rank")
        along = node.attrs.get("axis", 0) % max(1, len(data.dims))
        pairs = enumerate(zip(indices.dims, data.dims, strict=True))
        wanted = [own if axis == along else size for axis, (own, size) in pairs]
        return [data, self._emit.agree(indices, wanted), self._emit.agree(updates, wanted)]

    def _given(self, value: Value | None) -> Any:
        if value is None:
            return None
        if value.items is not None:
            return relax.Tuple([self._given(item) for item in value.items])
        return self._emit.tensor(value)

    def _results(self, result: Any) -> list[Value]:
        ty: Any = getattr(result, "ty", None)
        if is_a(result, relax.Tuple):
            return [self._value(part) for part in items(result.fields)]
        if is_a(ty, relax.TupleType):
            return [self._value(self._emit.bb.emit(relax.TupleGetItem(result, i))) for i in range(len(ty.fields))]
        return [self._value(result)]

    def _value(self, expr: Any) -> Value:
        if is_constant(expr) and expr.ty.ndim >= 0:
            return Value(expr, constant_numpy(expr)) if constant_numpy(expr).size <= 64 else Value(expr)
        return Value(expr)
