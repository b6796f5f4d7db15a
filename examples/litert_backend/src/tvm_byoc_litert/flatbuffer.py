"""A .tflite model while it is written, by the object API of the schema that LiteRT's wheel contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from tvm_byoc_dnnl import Reject

__all__ = ["Model", "Scale", "Value", "require"]


def require(condition: bool, reason: str) -> None:
    """Refuse, unless the condition holds."""
    if not condition:
        raise Reject(reason)


@dataclass(frozen=True)
class Scale:
    """What integers stand for: ``(integer - zero) * scale``, one number or one for each place of ``axis``."""

    scale: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 0


@dataclass(eq=False)
class Value:
    """A tensor of the model; ``data`` if it is a constant."""

    index: int
    shape: list[int]
    dtype: str
    scale: Scale | None = None
    data: np.ndarray | None = None
    producer: Any = None  # the operator whose first result it is, and its name
    made_by: str = ""
    moved: Value | None = None  # the tensor that has the same numbers in other places
    twin: Value | None = None  # the same numbers as int8, or as uint8


class Model:
    """Tensors and operators; `finish` makes the bytes."""

    def __init__(self) -> None:
        self._model, self._graph = schema.ModelT(), schema.SubGraphT()
        self._model.version, self._model.subgraphs = 3, [self._graph]
        self._model.buffers, self._model.operatorCodes = [schema.BufferT()], []
        self._graph.tensors, self._graph.operators = [], []
        self._codes: dict[int, int] = {}

    def value(
        self, shape: Sequence[int], dtype: str, scale: Scale | None = None, data: np.ndarray | None = None
    ) -> Value:
        """A new tensor."""
        tensor = schema.TensorT()
        tensor.name = f"t{len(self._graph.tensors)}"
        tensor.shape, tensor.type = np.array(shape, np.int32), getattr(schema.TensorType, dtype.upper())
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            tensor.buffer = len(self._model.buffers)
            self._model.buffers.append(buffer)
        self._graph.tensors.append(tensor)
        value = Value(len(self._graph.tensors) - 1, list(shape), dtype, None, data)
        if scale is not None:
            self.set_scale(value, scale)
        return value

    def constant(self, array: Any, dtype: str | None = None, scale: Scale | None = None) -> Value:
        """A tensor of these numbers."""
        array = np.asarray(array, dtype)
        return self.value(array.shape, str(array.dtype), scale, array)

    def set_scale(self, value: Value, scale: Scale) -> None:
        """Say what the integers of a tensor stand for, which all that read it must agree on."""
        require(value.scale in (None, scale), f"integers that are read as {value.scale} and as {scale}")
        if value.moved is not None and value.scale is None:
            self.set_scale(value.moved, scale)
        value.scale = scale
        form = schema.QuantizationParametersT()
        form.scale, form.zeroPoint = np.array(scale.scale, np.float32), np.array(scale.zero, np.int64)
        form.quantizedDimension = scale.axis
        self._graph.tensors[value.index].quantization = form

    def emit(
        self,
        name: str,
        inputs: Sequence[Value],
        shape: Sequence[int],
        dtype: str = "float32",
        scale: Scale | None = None,
        options: str = "",
        **fields: Any,
    ) -> Value:
        """The result of one operator; ``options`` is the name of its table of options, whose ``fields`` follow."""
        return self.emit_all(name, inputs, [self.value(shape, dtype, scale)], options, **fields)[0]

    def emit_all(
        self, name: str, inputs: Sequence[Value], results: list[Value], options: str = "", **fields: Any
    ) -> list[Value]:
        """The same for several results."""
        operator = schema.OperatorT()
        operator.opcodeIndex = self._code(getattr(schema.BuiltinOperator, name))
        operator.inputs = [value.index for value in inputs]
        operator.outputs = [value.index for value in results]
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, f"{options}T")()
            for field, content in fields.items():
                setattr(operator.builtinOptions, field, content)
        self._graph.operators.append(operator)
        results[0].producer, results[0].made_by = operator, name
        return results

    def _code(self, code: int) -> int:
        if code not in self._codes:
            entry = schema.OperatorCodeT()
            entry.builtinCode, entry.deprecatedBuiltinCode, entry.version = code, min(code, 127), 1
            self._codes[code] = len(self._model.operatorCodes)
            self._model.operatorCodes.append(entry)
        return self._codes[code]

    def finish(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> bytes:
        """The model as a flatbuffer."""
        self._graph.inputs, self._graph.outputs = [v.index for v in inputs], [v.index for v in outputs]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
