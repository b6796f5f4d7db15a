"""MNN, on its CPU backend in full precision; its converter's time counts as part of the first result."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import MNN
import numpy as np

from . import Run
from .converted import convert, output_shapes, shaped

_CAFFE = MNN.Tensor_DimensionType_Caffe  # axes as in ONNX
_DTYPES = {
    "float32": MNN.Halide_Type_Float,
    "int32": MNN.Halide_Type_Int,
    "int64": MNN.Halide_Type_Int,  # MNN has no wider integers
}


def load(path: str, threads: int) -> tuple[Run, str]:
    """Convert an ONNX file and open a session."""
    names = _input_names(path)
    shapes = output_shapes(path)
    with TemporaryDirectory() as folder:
        file = Path(folder, "model.mnn")
        convert("mnnconvert", ["-f", "ONNX", "--modelFile", path, "--MNNModel", str(file), "--bizCode", "bench"], file)
        interpreter = MNN.Interpreter(str(file))
    session = interpreter.createSession({"numThread": threads, "backend": "CPU", "precision": "high"})
    slots = interpreter.getSessionInputAll(session)

    def run(inputs: list) -> list:
        for name, array in zip(names, inputs, strict=True):
            kind = _DTYPES[str(array.dtype)]
            data = array.astype("int32") if array.dtype.kind == "i" else array
            slots[name].copyFrom(MNN.Tensor(array.shape, kind, np.ascontiguousarray(data), _CAFFE))
        interpreter.runSession(session)
        results = interpreter.getSessionOutputAll(session)
        return [shaped(_read(results[name]), shape) for name, shape in shapes.items()]

    return run, version("MNN")


def _input_names(path: str) -> list[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    constants = {t.name for t in graph.initializer}
    return [i.name for i in graph.input if i.name not in constants]


def _read(tensor: MNN.Tensor) -> np.ndarray:
    shape = tensor.getShape()
    host = MNN.Tensor(shape, tensor.getDataType(), np.zeros(shape, "float32"), _CAFFE)
    tensor.copyToHostTensor(host)
    return np.array(host.getNumpyData())
