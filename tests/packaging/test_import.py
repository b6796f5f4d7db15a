"""Importing the package loads few files, no heavy package and no native library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LOADED = """
import sys
import tvm
before = set(sys.modules)
import tvm_byoc_dnnl
print(sum(name.startswith("tvm_byoc_dnnl") for name in set(sys.modules) - before))
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
print(any("libdnnl" in line or "libtvm_byoc_dnnl" in line for line in open("/proc/self/maps")))
tvm_byoc_dnnl.load
print(*(name for name in sys.modules if name.startswith("tvm_byoc_dnnl.")))
"""


def test_import_is_light() -> None:
    """A file of the package is imported at the first use of its name, see below."""
    env = os.environ | {"TVM_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", LOADED], env=env, text=True, capture_output=True, check=True)
    files, modules, native, for_load = done.stdout.splitlines()
    assert int(files) <= 10
    assert not {"onnx", "onnxruntime", "torch", "rich", "click"} & set(modules.split())
    assert native == "False", "importing the package must not load the native library"
    assert not any(part in for_load for part in (".vendors", ".patterns", ".partitioning", ".pipeline.")), for_load


AUTOLOAD = """
import sys
import tvm
print(*sorted(name for name in sys.modules if name.startswith("tvm_byoc_dnnl")))
print(any("libtvm_byoc_dnnl" in line for line in open("/proc/self/maps")))
tvm.relax.get_pipeline("byoc")
"""


def test_import_tvm_loads_the_native_library_and_little_else() -> None:
    """Everybody who has the package installed pays for it with each `import tvm`."""
    env = {k: v for k, v in os.environ.items() if k != "TVM_DEVICE_BACKEND_AUTOLOAD"}
    done = subprocess.run([sys.executable, "-c", AUTOLOAD], env=env, text=True, capture_output=True, check=True)
    modules, native = done.stdout.splitlines()
    assert len(modules.split()) <= 10, modules
    assert native == "True"


def test_the_public_names_are_there_at_their_first_use() -> None:
    code = (
        "import tvm_byoc_dnnl as byoc\n"
        "assert callable(byoc.emit) and byoc.vendors and byoc.__version__\n"
        "assert all(hasattr(byoc, name) and name in dir(byoc) for name in byoc.__all__)\n"
        "assert not hasattr(byoc, 'no_such_name')\n"
        "from tvm_byoc_dnnl import *\n"
        "compile, explain\n"
    )
    subprocess.run([sys.executable, "-c", code], text=True, check=True)
