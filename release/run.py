"""The program of the image: where neither a compiler nor a system's libgomp is, load the model, run it, check it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

import tvm_byoc_dnnl as byoc

data = np.load("expected.npz")
with byoc.load("model.so") as run:
    np.testing.assert_allclose(run(data["x"]), data["y"], rtol=1e-4, atol=1e-5)
loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
print(f"model.so runs; libgomp: {', '.join(sorted(loaded))}; C++ compiler: {shutil.which('c++')}")
