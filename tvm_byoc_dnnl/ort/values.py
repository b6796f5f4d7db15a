"""Tensors and bindings under ONNX Runtime's names."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from ..core.errors import ByocError, short
from .options import Fail, typed

_NAMES = {
    TensorProto.FLOAT: "float",
    TensorProto.DOUBLE: "double",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.BOOL: "bool",
    TensorProto.STRING: "string",
    **{getattr(TensorProto, f"{u}INT{w}"): f"{u}int{w}".lower() for u in ("", "U") for w in (8, 16, 32, 64)},
}


def tensor_type(element: int) -> str:
    """ONNX Runtime's name of a tensor's type: ``tensor(float)``."""
    return f"tensor({_NAMES.get(element) or TensorProto.DataType.Name(element).lower()})"


def type_name(declared: TypeProto) -> str:
    """The same of any type: ``seq(tensor(float))``, ``optional(tensor(int64))``, ``map(string,tensor(float))``."""
    kind = declared.WhichOneof("value")
    inner = getattr(declared, kind) if kind else declared.tensor_type
    if kind == "map_type":
        return f"map({_NAMES[inner.key_type]},{type_name(inner.value_type)})"
    if kind in ("sequence_type", "optional_type"):
        return f"{'seq' if kind == 'sequence_type' else 'optional'}({type_name(inner.elem_type)})"
    return ("sparse_" if kind == "sparse_tensor_type" else "") + tensor_type(inner.elem_type)


def type_of(array: np.ndarray) -> str:
    """The same of an array."""
    try:
        return tensor_type(helper.np_dtype_to_tensor_dtype(array.dtype))
    except (KeyError, ValueError):
        return tensor_type(TensorProto.STRING) if array.dtype.kind in "OSU" else f"an array of {array.dtype}"


def numpy_dtype(element_type: Any) -> np.dtype:
    """A dtype, given as NumPy's or as a number of ONNX."""
    try:
        is_number = isinstance(element_type, int)
        dtype = helper.tensor_dtype_to_np_dtype(element_type) if is_number else np.dtype(element_type)
        helper.np_dtype_to_tensor_dtype(dtype)
    except (KeyError, TypeError, ValueError) as error:
        raise RuntimeError(f"Not a valid numpy type: {short(element_type)}") from error
    return dtype


def _on_cpu(device: str) -> None:
    if typed("device_type", device, str).lower() != "cpu":
        raise RuntimeError(f"device {device!r} is not available; this package computes on the CPU")


class NodeArg:
    """An input or output of a model.

    Attributes
    ----------
    name, type : str
        Its name, and its type as in ``tensor(float)``.
    shape : list
        Its sizes; a name, or `None`, for an open one.
    """

    def __init__(self, info: ValueInfoProto) -> None:
        self.name: str = info.name
        tensor = info.type.tensor_type  # an empty one, where it is of another kind
        self._element: int = tensor.elem_type
        self._kind: str = info.type.WhichOneof("value") or "tensor_type"
        self.type: str = type_name(info.type)
        self.shape: list[int | str | None] = list(map(_size, tensor.shape.dim))

    @cached_property
    def _dtype(self) -> np.dtype:
        return numpy_dtype(self._element)

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


class ModelMetadata:
    """What a model says about itself."""

    def __init__(self, model: ModelProto) -> None:
        self.producer_name: str = model.producer_name
        self.graph_name: str = model.graph.name
        self.domain: str = model.domain
        self.description: str = model.doc_string
        self.graph_description: str = model.graph.doc_string
        self.version: int = model.model_version if model.HasField("model_version") else 2**63 - 1
        self.custom_metadata_map: dict[str, str] = {p.key: p.value for p in model.metadata_props}


class OrtValue:
    """A tensor in the memory of the CPU.

    Parameters
    ----------
    array : numpy.ndarray
        Its memory, which is not copied.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = typed("array", array, np.ndarray)

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """The tensor of an array."""
        _on_cpu(device_type)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OSUMmc":
            raise RuntimeError("Creation of OrtValues is currently only supported from non-string numpy arrays")
        return cls(numpy_obj if numpy_obj.flags.c_contiguous else numpy_obj.copy())

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray, onnx_element_type: int) -> OrtValue:
        """The tensor of an array's memory, read as another dtype of as many bytes, such as bfloat16."""
        dtype = numpy_dtype(typed("onnx_element_type", onnx_element_type, int))
        if typed("data", data, np.ndarray).dtype.itemsize != dtype.itemsize:
            raise RuntimeError(f"got an array of {data.dtype}; expected {dtype.itemsize} bytes a number, for {dtype}")
        return cls(np.ascontiguousarray(data).view(dtype).reshape(data.shape))

    @classmethod
    def from_dlpack(cls, data: Any) -> OrtValue:
        """The tensor of an object that has DLPack's methods, such as PyTorch's, which is not copied."""
        return cls(np.from_dlpack(data))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """A new tensor whose numbers are not set."""
        _on_cpu(device_type)
        return cls(np.empty(tuple(shape), numpy_dtype(element_type)))

    def numpy(self) -> np.ndarray:
        """Its array."""
        return self._array

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Its type: ``tensor(float)``."""
        return tensor_type(self.element_type())

    def element_type(self) -> int:
        """The number of its dtype in ONNX."""
        return int(helper.np_dtype_to_tensor_dtype(self._array.dtype))

    def device_name(self) -> str:
        """Where it lies."""
        return "cpu"

    def data_ptr(self) -> int:
        """The address of its first element."""
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Its size."""
        return int(self._array.nbytes)

    def has_value(self) -> bool:
        """Whether there is one."""
        return True

    def is_tensor(self) -> bool:
        """Whether it is a tensor."""
        return True

    def is_tensor_sequence(self) -> bool:
        """Whether it is a list of tensors."""
        return False

    def is_sparse_tensor(self) -> bool:
        """Whether it is a sparse tensor."""
        return False

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Write other numbers into its memory."""
        if typed("np_arr", np_arr, np.ndarray).shape != self._array.shape or np_arr.dtype != self._array.dtype:
            got, want = (f"{a.dtype.name}{list(a.shape)}" for a in (np_arr, self._array))
            raise RuntimeError(f"got an array {got} for a tensor {want}; expected the same dtype and shape")
        np.copyto(self._array, np_arr)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype, copy=bool(copy)) if copy or dtype else self._array


class _Session(Protocol):
    def run(self, output_names: Sequence[str] | None, input_feed: Any, run_options: Any = None) -> list[Any]: ...
    def get_inputs(self) -> list[Any]: ...
    def get_outputs(self) -> list[Any]: ...
    def get_overridable_initializers(self) -> list[Any]: ...


class IOBinding:
    """Inputs and outputs of a session's next calls.

    Parameters
    ----------
    session : InferenceSession
        The session.
    """

    def __init__(self, session: _Session) -> None:
        self._known = {a.name for a in (*session.get_inputs(), *session.get_overridable_initializers())}
        self._results_known = {a.name for a in session.get_outputs()}
        self._inputs: dict[str, Any] = {}
        #: name → the memory that takes the output, or `None` for new memory
        self._outputs: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an input to an array."""
        self._inputs[_named(name, self._known)] = arr_on_cpu

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind an input to memory by its address."""
        self._inputs[_named(name, self._known)] = _at(device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a tensor."""
        self._inputs[_named(name, self._known)] = typed("ortvalue", ortvalue, OrtValue).numpy()

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory by its address, or to new memory."""
        _on_cpu(device_type)
        _named(name, self._results_known)
        if buffer_ptr is None:
            self._outputs[name] = None
        elif element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        else:
            self._outputs[name] = OrtValue(_at(device_type, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a tensor, which the next calls write to."""
        self._outputs[_named(name, self._results_known)] = typed("ortvalue", ortvalue, OrtValue)

    def synchronize_inputs(self) -> None:
        """Wait for copies between devices; there are none."""

    synchronize_outputs = synchronize_inputs

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last call, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """The same as arrays."""
        return [result.numpy() for result in self._results]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()
        self._results = []

    def _run(self, session: _Session, options: Any) -> None:
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        try:
            values = session.run(list(self._outputs), self._inputs, options)
        except (ByocError, ValueError) as error:
            raise Fail(f"Error in execution: {error}") from error
        self._results = []
        for value, into in zip(values, self._outputs.values(), strict=True):
            if into is None:
                self._results.append(OrtValue(value))
                continue
            into.update_inplace(value)
            self._results.append(into)


def _named(name: str, known: set[str]) -> str:
    if typed("name", name, str) not in known:
        raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list {sorted(known)}")
    return name


def _at(device: str, element_type: Any, shape: Sequence[int], address: int) -> np.ndarray:
    _on_cpu(device)
    dtype = numpy_dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_uint8 * count).from_address(address)
    return np.ctypeslib.as_array(memory).view(dtype).reshape(tuple(shape))
