"""The engines that can be compared: one function and one row of a table each.

The function imports what the engine needs, which no time counts, and returns
``load(path, threads, **options) -> (run, version)``, where ``run`` takes the list of the model's inputs and returns the
list of its outputs, all NumPy arrays. MNN and ncnn have file formats of their own: the time of their converters counts
as part of the first result.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

__all__ = ["ENGINES", "PROBE", "REFERENCE", "Engine", "Load", "Run"]

Run = Callable[[list[np.ndarray]], list[np.ndarray]]
Load = Callable[..., tuple[Run, str]]


@dataclass(frozen=True)
class Engine:
    #: imports the engine and returns what loads models; a function of a module, for it is called in another process
    loader: Callable[[], Load]
    #: name in tables
    label: str
    #: module that must be importable
    requires: str
    #: passed to what loads models
    options: Mapping[str, Any] = field(default_factory=dict)
    #: largest accepted difference from the reference, as a share of the largest reference value
    tolerance: float = 1e-3
    #: take part in so many rounds only: for engines that need seconds per run
    max_rounds: int | None = None
    #: set in the engine's process before anything is imported there
    env: Mapping[str, str] = field(default_factory=dict)


class _Requests:
    """A call of our runner, or a request that is answered by a future."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __call__(self, inputs: list) -> list:
        outputs = self._runner(*inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    def submit(self, inputs: list) -> Future:
        return self._runner.submit(*inputs)


def byoc() -> Load:
    """This package; ``options`` are those of `byoc.compile`, the thread count comes from the environment.

    It alone runs compiled libraries as well.
    """
    import tvm_byoc_dnnl
    from tvm_byoc_dnnl.core.compilation import stage
    from tvm_byoc_dnnl.frontends.onnx import importer  # noqa: F401
    from tvm_byoc_dnnl.pipeline.executable import is_library

    tvm_byoc_dnnl.compilers()  # imports the vendors

    def load(path: str, threads: int, **options: Any) -> tuple[Run, str]:
        ex = None if is_library(path) else tvm_byoc_dnnl.compile(path, **options)
        workers = max(1, len(os.sched_getaffinity(0)) // threads)
        with stage("load"):
            runner: Any = tvm_byoc_dnnl.Runner(ex, workers=workers) if ex else tvm_byoc_dnnl.load(path, workers=workers)
        return _Requests(runner), tvm_byoc_dnnl.__version__

    return load


def onnxruntime() -> Load:
    """ONNX Runtime's CPU provider, all of its own rewrites on; every input of the file must be given."""
    import onnxruntime as ort

    def load(path: str, threads: int) -> tuple[Run, str]:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True))), ort.__version__

    return load


def openvino() -> Load:
    """OpenVINO's CPU plugin, tuned for one request at a time."""
    import openvino as ov

    hints = {"float32": "f32", "bfloat16": "bf16"}

    def load(path: str, threads: int, precision: str = "float32") -> tuple[Run, str]:
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            "INFERENCE_PRECISION_HINT": hints[precision],
        }
        compiled = ov.Core().compile_model(path, "CPU", config)
        count = len(compiled.outputs)
        own = threading.local()  # a request runs one call at a time

        def run(inputs: list) -> list:
            if not hasattr(own, "request"):
                own.request = compiled.create_infer_request()
            own.request.infer(inputs, share_inputs=True)
            return [np.array(own.request.get_output_tensor(i).data) for i in range(count)]

        return run, ov.__version__.split("-")[0]

    return load


def tvm() -> Load:
    """TVM as its users get it: its ONNX importer and its default CPU pipeline, whose code is for one thread."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    def load(path: str, threads: int) -> tuple[Run, str]:
        executable = tvm.compile(from_onnx(onnx.load(path)), target="llvm")
        main = relax.VirtualMachine(executable, tvm.cpu())["main"]

        def run(inputs: list) -> list:
            outputs = main(*(tvm.runtime.tensor(i) for i in inputs))
            return [outputs.numpy()] if hasattr(outputs, "numpy") else [o.numpy() for o in outputs]

        return run, tvm.__version__

    return load


def probe() -> Load:
    """A fixed matrix product, whatever the model and its inputs are: the same work each time."""
    a, b = np.random.default_rng(0).standard_normal((2, 640, 640), dtype=np.float32)
    out = np.empty_like(a)

    def run(inputs: list) -> list:
        np.matmul(a, b, out=out)
        return []

    return lambda path, threads: (run, np.__version__)


# ---- engines with a file format of their own --------------------------------------------------------


def _convert(program: str | Path, arguments: Sequence[str], result: Path) -> None:
    """Run a converter that a wheel has installed beside Python, and check that it wrote ``result``.

    MNN's converter installs a client for its telemetry with whatever pip is first on the path, and protobuf of another
    version with it: no index, no installation.
    """
    found = Path(sys.executable).with_name(program) if isinstance(program, str) else program
    command = [str(found), *arguments]
    done = subprocess.run(command, env=os.environ | {"PIP_NO_INDEX": "1"}, text=True, capture_output=True, check=False)
    if not result.is_file():
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(f"{found.name} made no model: {lines[-1] if lines else f'status {done.returncode}'}")


def _given(path: str) -> dict[str, list[int]]:
    """Name → shape of the inputs of an ONNX file; 0 for a dim that it leaves open."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {t.name for t in graph.initializer}
    return {i.name: _sizes(i) for i in graph.input if i.name not in constants}


def _promised(path: str) -> dict[str, list[int]]:
    """Name → shape of the outputs of an ONNX file; 0 for a dim that it leaves open."""
    return {o.name: _sizes(o) for o in onnx.load(path, load_external_data=False).graph.output}


def _sizes(value: Any) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _shaped(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The array in the shape that is promised, where that is one for its number of elements."""
    return array.reshape(shape) if np.prod(shape) == array.size else array


def mnn() -> Load:
    """MNN, on its CPU backend in full precision."""
    import MNN

    caffe = MNN.Tensor_DimensionType_Caffe  # axes as in ONNX
    # MNN has no integers wider than 32 bits.
    kinds = {"f": MNN.Halide_Type_Float, "i": MNN.Halide_Type_Int}

    def read(tensor: Any) -> np.ndarray:
        shape = tensor.getShape()
        host = MNN.Tensor(shape, tensor.getDataType(), np.zeros(shape, "float32"), caffe)
        tensor.copyToHostTensor(host)
        return np.array(host.getNumpyData())

    def load(path: str, threads: int) -> tuple[Run, str]:
        names, shapes = list(_given(path)), _promised(path)
        with TemporaryDirectory() as folder:
            file = Path(folder, "model.mnn")
            arguments = ["-f", "ONNX", "--modelFile", path, "--MNNModel", str(file), "--bizCode", "bench"]
            _convert("mnnconvert", arguments, file)
            interpreter = MNN.Interpreter(str(file))
        session = interpreter.createSession({"numThread": threads, "backend": "CPU", "precision": "high"})
        slots = interpreter.getSessionInputAll(session)

        def run(inputs: list) -> list:
            for name, array in zip(names, inputs, strict=True):
                data = array.astype("int32") if array.dtype.kind == "i" else array
                tensor = MNN.Tensor(array.shape, kinds[array.dtype.kind], np.ascontiguousarray(data), caffe)
                slots[name].copyFrom(tensor)
            interpreter.runSession(session)
            results = interpreter.getSessionOutputAll(session)
            return [_shaped(read(results[name]), shape) for name, shape in shapes.items()]

        return run, version("MNN")

    return load


def ncnn() -> Load:
    """ncnn in full precision, converted by pnnx; it has no batch axis, so it takes pictures one by one only."""
    import ncnn

    halves = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")

    def load(path: str, threads: int) -> tuple[Run, str]:
        sizes, shapes = list(_given(path).values()), _promised(path)
        if any(len(size) != 4 or size[0] != 1 for size in sizes):
            raise ValueError(f"ncnn has no batch axis: expected one picture for each input, got {sizes}")
        net = ncnn.Net()
        net.opt.num_threads = threads
        for option in halves:
            setattr(net.opt, option, False)
        with TemporaryDirectory() as folder:
            _convert_to_ncnn(path, sizes, folder)
            net.load_param(str(Path(folder, "net.param")))
            net.load_model(str(Path(folder, "net.bin")))

        def run(inputs: list) -> list:
            extractor = net.create_extractor()
            mats = [ncnn.Mat(np.ascontiguousarray(array[0])) for array in inputs]
            for name, mat in zip(net.input_names(), mats, strict=True):
                extractor.input(name, mat)
            results = [np.array(extractor.extract(name)[1]) for name in net.output_names()]
            return [_shaped(array, shape) for array, shape in zip(results, shapes.values(), strict=True)]

        return run, version("ncnn")

    return load


def _convert_to_ncnn(path: str, sizes: Sequence[Sequence[int]], folder: str) -> None:
    found = importlib.util.find_spec("pnnx")  # importing it would need PyTorch
    if found is None or found.origin is None:
        raise RuntimeError("ncnn's converter is not installed: pip install --no-deps pnnx")
    files = {"ncnnparam": "net.param", "ncnnbin": "net.bin", "pnnxparam": "p.param", "pnnxbin": "p.bin"}
    files |= {"pnnxpy": "p.py", "pnnxonnx": "p.onnx", "ncnnpy": "n.py"}
    shapes = ",".join(str(size).replace(" ", "") for size in sizes)
    written = [f"{option}={Path(folder, name)}" for option, name in files.items()]
    program = Path(found.origin).with_name("pnnx")
    _convert(program, [path, f"inputshape={shapes}", "fp16=0", *written], Path(folder, "net.bin"))


# ---- the table --------------------------------------------------------------------------------------

ENGINES: dict[str, Engine] = {
    "byoc": Engine(byoc, "tvm-byoc-dnnl", "tvm"),
    "byoc-bf16": Engine(byoc, "tvm-byoc-dnnl bf16", "tvm", {"precision": "bfloat16"}, 5e-2),
    "onnxruntime": Engine(onnxruntime, "ONNX Runtime", "onnxruntime"),
    "openvino": Engine(openvino, "OpenVINO", "openvino"),
    "openvino-bf16": Engine(openvino, "OpenVINO bf16", "openvino", {"precision": "bfloat16"}, 5e-2),
    # MNN computes convolutions by tiles that lose about three digits.
    "mnn": Engine(mnn, "MNN", "MNN", tolerance=5e-3, env={"PIP_NO_INDEX": "1"}),
    "ncnn": Engine(ncnn, "ncnn", "ncnn"),
    # Without us: TVM's own default pipeline, seconds per picture.
    "tvm": Engine(tvm, "TVM alone", "tvm", max_rounds=3, env={"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}),
}

REFERENCE = "onnxruntime"
"""The engine whose outputs every other engine's are checked against."""

PROBE = Engine(probe, "quietness probe", "numpy")
"""A fixed matrix product that takes its turns too: its spread says how quiet the machine was."""
