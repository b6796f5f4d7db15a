"""What importing the package costs on top of TVM, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COST = """
import sys, time
start = time.perf_counter()
import tvm
tvm_seconds = time.perf_counter() - start
before = set(sys.modules)
start = time.perf_counter()
import tvm_byoc_dnnl
print((time.perf_counter() - start) / tvm_seconds)
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
print(any("libdnnl" in line or "libtvm_byoc_dnnl" in line for line in open("/proc/self/maps")))
"""


def measure() -> tuple[float, list[str], bool]:
    env = os.environ | {"TVM_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", COST], env=env, text=True, capture_output=True, check=True)
    share, modules, native = done.stdout.splitlines()
    return float(share), modules.split(), native == "True"


def test_import_is_light() -> None:
    runs = [measure() for _ in range(3)]
    assert min(share for share, _, _ in runs) < 0.5, "of what importing TVM takes, on the same machine"
    _, modules, native = runs[0]
    assert not {"onnx", "onnxruntime", "torch", "rich", "click"} & set(modules)
    assert not native, "importing the package must not load the native library"
