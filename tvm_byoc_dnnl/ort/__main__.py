"""Run a program with this interface in the place of ``onnxruntime``: ``python -m tvm_byoc_dnnl.ort app.py …``."""

from __future__ import annotations

import importlib.util
import runpy
import sys
import types
from pathlib import Path

from .. import ort


def stand_in() -> None:
    """Let ``import onnxruntime``, and the modules of its errors and sessions, give this package.

    Its tools, such as ``onnxruntime.quantization``, are those of the installed one.
    """
    spec = importlib.util.find_spec("onnxruntime")
    names = [name for name, value in vars(ort.capi).items() if isinstance(value, types.ModuleType)]
    sys.modules |= {"onnxruntime": ort, "onnxruntime.capi": ort.capi}
    sys.modules |= {f"onnxruntime.capi.{name}": getattr(ort.capi, name) for name in names}
    ort.__path__ += (spec and spec.submodule_search_locations) or []


def main() -> None:
    """Run the program that the arguments name: a file, or ``-m`` and a module."""
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    program = arguments[is_module : is_module + 1]
    if not program:
        sys.exit("usage: python -m tvm_byoc_dnnl.ort app.py ARGUMENTS…, or python -m tvm_byoc_dnnl.ort -m module …")
    sys.argv = arguments[is_module:]
    stand_in()
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
