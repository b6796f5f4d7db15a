"""One engine, one model, one process: seconds and memory of loading it and of the first run.

``python -m bench.load_worker build MODEL.onnx OUT`` writes the file that an engine is deployed with, and
``... load FILE INPUTS.npz OUTPUT.npy`` loads it; with the engine and the number of threads before them. Prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["DEPLOYED", "memory"]

#: The suffix of the file that each engine loads.
DEPLOYED = {"byoc": ".so", "onnxruntime": ".onnx", "openvino": ".xml"}


def memory(field: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at most."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def _build(engine: str, model: str, out: str) -> None:
    if engine == "byoc":
        import tvm_byoc_dnnl as byoc

        byoc.compile(model).export_library(out)
    elif engine == "openvino":
        import openvino as ov

        ov.save_model(ov.convert_model(model), out, compress_to_fp16=False)


def _import(engine: str) -> Callable[[str, int], tuple[Callable[[list], list], str]]:
    """Everything that an engine imports; what is left is to load the model."""
    if engine == "byoc":
        import tvm_byoc_dnnl as byoc
        from tvm_byoc_dnnl.core import _native

        _native.load()

        def load(path: str, _threads: int) -> tuple[Callable[[list], list], str]:
            runner = byoc.load(path)

            def run(inputs: list) -> list:
                result = runner(*inputs)
                return result if isinstance(result, list) else [result]

            return run, byoc.__version__

        return load
    from tvm_byoc_dnnl.testing.bench.engines import ENGINES

    return ENGINES[engine].loader()


def _measure(engine: str, threads: int, path: str, inputs_file: str, output_file: str) -> dict[str, Any]:
    with np.load(inputs_file) as arrays:
        inputs = [arrays[name] for name in arrays.files]
    load = _import(engine)
    imports = memory("VmRSS")
    start = time.perf_counter()
    run, version = load(path, threads)
    loaded = time.perf_counter()
    after_load = memory("VmRSS")
    result = run(inputs)[0]
    ran = time.perf_counter()
    record = {
        "version": version,
        "load_s": loaded - start,
        "first_run_s": ran - loaded,
        "imports_bytes": imports,
        "after_load_bytes": after_load,
        "after_run_bytes": memory("VmRSS"),
        "peak_bytes": memory("VmHWM"),
    }
    np.save(output_file, result)
    return record


def main(arguments: list[str]) -> None:
    """See the module."""
    engine, threads, what, *files = arguments
    if what == "build":
        start = time.perf_counter()
        _build(engine, *files)
        record = {"build_s": time.perf_counter() - start, "build_peak_bytes": memory("VmHWM")}
    else:
        record = _measure(engine, int(threads), *files)
    print(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
