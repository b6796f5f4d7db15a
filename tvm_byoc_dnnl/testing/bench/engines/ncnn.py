"""ncnn in full precision, converted by pnnx; it has no batch axis, so it takes pictures one by one only."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import ncnn
import numpy as np
import onnx

from . import Run
from .converted import convert, output_shapes, shaped

_HALVES = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")


def load(path: str, threads: int) -> tuple[Run, str]:
    """Convert an ONNX file and load the network."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {t.name for t in graph.initializer}
    sizes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph.input if i.name not in constants]
    if any(len(size) != 4 or size[0] != 1 for size in sizes):
        raise ValueError(f"ncnn has no batch axis: expected one picture for each input, got {sizes}")
    shapes = output_shapes(path)
    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in _HALVES:
        setattr(net.opt, option, False)
    with TemporaryDirectory() as folder:
        param, weights = Path(folder, "net.param"), Path(folder, "net.bin")
        wanted = ",".join(str(size).replace(" ", "") for size in sizes)
        convert(
            _pnnx(),
            [path, f"inputshape={wanted}", "fp16=0", f"ncnnparam={param}", f"ncnnbin={weights}", *_elsewhere(folder)],
            weights,
        )
        net.load_param(str(param))
        net.load_model(str(weights))

    def run(inputs: list) -> list:
        extractor = net.create_extractor()
        mats = [ncnn.Mat(np.ascontiguousarray(array[0])) for array in inputs]
        for name, mat in zip(net.input_names(), mats, strict=True):
            extractor.input(name, mat)
        results = [np.array(extractor.extract(name)[1]) for name in net.output_names()]
        return [shaped(array, shape) for array, shape in zip(results, shapes.values(), strict=True)]

    return run, version("ncnn")


def _pnnx() -> Path:
    """The converter; importing its package would need PyTorch."""
    found = importlib.util.find_spec("pnnx")
    if found is None or found.origin is None:
        raise RuntimeError("ncnn's converter is not installed: pip install --no-deps pnnx")
    return Path(found.origin).with_name("pnnx")


def _elsewhere(folder: str) -> list[str]:
    """The files that pnnx writes besides, in a folder that is deleted."""
    files = {"pnnxparam": "p.param", "pnnxbin": "p.bin", "pnnxpy": "p.py", "pnnxonnx": "p.onnx", "ncnnpy": "n.py"}
    return [f"{option}={Path(folder, name)}" for option, name in files.items()]
