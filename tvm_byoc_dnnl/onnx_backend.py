"""The package behind ONNX's own backend interface, ``onnx.backend.base``.

    from tvm_byoc_dnnl import onnx_backend

    prepared = onnx_backend.prepare(model)
    (y,) = prepared.run([x])

ONNX's tools and its test suite call `prepare`, `run_model`, `run_node`, `supports_device` and `is_compatible`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

from .api import DEFAULT_COMPILER, compile
from .core.errors import ByocError, InputError, UnsupportedError
from .core.tensor_info import STORED
from .frontends import to_relax
from .frontends.onnx.inputs import deciding_inputs, with_constants
from .runtime import lightest
from .runtime.base import BaseRunner

_KEPT = 8  # compiled forms of one model, the least recently used goes first


class PreparedModel(BackendRep):
    """A model that is ready to run.

    It is compiled at once, unless some of its inputs decide what is compiled (target shapes, axes, bounds): then a call
    compiles for its values, and the last few forms are kept.

    Attributes
    ----------
    input_names : list of str
        The model's inputs in order, without those that only repeat an initialiser.
    deciding : list of str
        The inputs whose values are compiled in.
    """

    def __init__(self, model: onnx.ModelProto, **options: Any) -> None:
        self.model = model
        self._options = options
        initialised = {t.name for t in model.graph.initializer}
        self._inputs = {i.name: i.type for i in model.graph.input if i.name not in initialised}
        self.input_names = list(self._inputs)
        self.deciding = [name for name in deciding_inputs(model) if name in self._inputs]
        self._lock = Lock()
        self._forms: OrderedDict[tuple[Any, ...], BaseRunner] = OrderedDict()
        if not self.deciding:
            self._forms[()] = self.build(model)

    def build(self, model: onnx.ModelProto) -> BaseRunner:
        """What runs one form of the model."""
        return lightest(compile(model, **self._options))

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Parameters
        ----------
        inputs : sequence or mapping of arrays, or an array
            In the model's order, by name, or the only one.

        Returns
        -------
        tuple of numpy.ndarray
            The outputs in the model's order.
        """
        if kwargs:
            raise InputError(f"run takes inputs alone; got {', '.join(sorted(kwargs))}")
        given = self._named(inputs)
        values = {name: given.pop(name) for name in self.deciding}
        return self.outputs(self._form(values)(*given.values()))

    def outputs(self, result: Any) -> tuple[Any, ...]:
        """The results of a compiled form, one item per output; a sequence is a list."""
        results = (result,) if len(self.model.graph.output) == 1 else tuple(result)
        return tuple(_as_declared(r, o) for r, o in zip(results, self.model.graph.output, strict=True))

    def _form(self, values: Mapping[str, np.ndarray]) -> BaseRunner:
        key = tuple((str(v.dtype), v.shape, v.tobytes()) for v in values.values())
        with self._lock:  # calls may come from several threads
            form = self._forms.get(key)
            if form is None:
                tensors = {name: numpy_helper.from_array(v, name) for name, v in values.items()}
                form = self._forms[key] = self.build(with_constants(self.model, tensors))
                if len(self._forms) > _KEPT:
                    self._forms.popitem(last=False)
            self._forms.move_to_end(key)
            return form

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        expected = ", ".join(f"`{n}`" for n in self.input_names) or "none"
        if isinstance(inputs, Mapping):
            unknown = [n for n in inputs if n not in self._inputs]
            missing = [n for n in self.input_names if n not in inputs]
            if unknown or missing:
                raise InputError(f"got the inputs {', '.join(inputs) or 'none'}; expected {expected}")
            return {n: _array(inputs[n]) for n in self.input_names}
        if len(inputs) != len(self.input_names):
            raise InputError(f"got {len(inputs)} inputs, expected {len(self.input_names)}: {expected}")
        return {n: _array(v) for n, v in zip(self.input_names, inputs, strict=True)}


class Backend(OnnxBackend):
    """ONNX models on the CPU, through TVM and the compilers registered with this package.

    The class methods take ``compiler`` (see `compile`) besides ONNX's own arguments.
    """

    prepared: type[PreparedModel] = PreparedModel

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU: ``CPU``, or ``CPU:0``."""
        return device in ("CPU", "CPU:0")

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be imported.

        Where inputs decide shapes or axes, only a call can tell; the answer is then yes.
        """
        if not cls.supports_device(device):
            return False
        if deciding_inputs(model):
            return True
        try:
            to_relax(model)
        except ByocError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Check and compile a model.

        Raises
        ------
        InputError
            If the device is not the CPU.
        UnsupportedError
            If there is no equivalent for an operator.
        """
        super().prepare(model, device)
        return cls._prepare(model, device, kwargs)

    @classmethod
    def _prepare(cls, model: onnx.ModelProto, device: str, options: dict[str, Any]) -> PreparedModel:
        if not cls.supports_device(device):
            raise InputError(f"the device is {device!r}; expected 'CPU'")
        return cls.prepared(model, **{"compiler": DEFAULT_COMPILER, **options})

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Prepare a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator.

        Parameters
        ----------
        node : NodeProto
            The operator.
        inputs : sequence of arrays
            Its inputs, without those that it leaves out.
        outputs_info : sequence of (dtype, shape), optional
            The types of its outputs; by default those that ONNX infers.
        **kwargs
            ``opset_version``, and what `prepare` takes.
        """
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        super().run_node(node, inputs, device, outputs_info, opset_version=version)
        arrays = [_array(v) for v in inputs]
        names = list(dict.fromkeys(n for n in node.input if n))
        if len(arrays) != len(names):
            raise InputError(f"got {len(arrays)} inputs for {node.op_type}, expected {len(names)}: {', '.join(names)}")
        outputs = [o for o in node.output if o]
        described = list(outputs_info or [])
        graph = helper.make_graph(
            [node],
            node.op_type,
            [_value(n, a.dtype, a.shape) for n, a in zip(names, arrays, strict=True)],
            [_value(o, *d) for o, d in zip(outputs, described)]
            + [helper.make_empty_tensor_value_info(o) for o in outputs[len(described) :]],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        if not described:
            model = onnx.shape_inference.infer_shapes(model)
        return cls._prepare(model, device, kwargs).run(arrays)


def _value(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _as_declared(result: Any, declared: onnx.ValueInfoProto) -> Any:
    """A result, where it is of fewer than 8 bits in the dtype that the model says."""
    kind = declared.type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(kind) if kind else None
    if str(dtype) not in STORED:
        return result
    return result.astype(dtype) if "int" in str(dtype) else result.view(dtype)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, (list, tuple, type(None))):
        raise UnsupportedError(f"an input is a {type(value).__name__}; only tensors can be given, no sequences")
    if isinstance(value, np.ndarray):
        return value
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
