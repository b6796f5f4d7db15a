"""One team of threads for oneDNN and for TVM's parallel loops."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

# A process of its own: the launcher is one per process, for the modules that are loaded after the switch.
PARALLEL_LOOP = """
import os
import numpy as np
import tvm
from tvm import s_tir, te
from tvm_byoc_dnnl import _native

_native.load()

def compiled():
    x = te.placeholder((1000,), "float32", "x")
    y = te.compute((1000,), lambda i: x[i] * te.const(2, "float32"), "y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    sch.parallel(sch.get_loops(sch.get_sblock("y"))[0])
    return tvm.compile(sch.mod, "llvm")

def threads():
    return len(os.listdir("/proc/self/task"))

_native.function("tvm_byoc_dnnl.UseOpenMPForTVM")()
f = compiled()
x, y = tvm.runtime.tensor(np.arange(1000, dtype="float32")), tvm.runtime.tensor(np.zeros(1000, "float32"))
before = threads()
f["main"](x, y)
np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())
omp = int(os.environ["OMP_NUM_THREADS"])
assert threads() - before <= omp - 1, (before, threads())  # OpenMP's team, and no pool of TVM's beside it
assert len(os.sched_getaffinity(0)) == int(os.environ["CORES"])  # nobody bound us to fewer cores
"""


def test_parallel_loops_run_on_the_openmp_team():
    environment = os.environ | {
        "OMP_NUM_THREADS": "3",
        "TVM_NUM_THREADS": "5",
        "CORES": str(len(os.sched_getaffinity(0))),
    }
    environment.pop("TVM_BIND_THREADS", None)
    ran = subprocess.run([sys.executable, "-c", PARALLEL_LOOP], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(("given", "kept"), [(None, "0"), ("1", "1")])
def test_binding_is_off_unless_the_user_says_otherwise(given, kept):
    code = (
        "import ctypes; from tvm_byoc_dnnl import _native; _native.load(); g = ctypes.CDLL(None).getenv; "
        "g.restype = ctypes.c_char_p; print(g(b'TVM_BIND_THREADS').decode())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TVM_BIND_THREADS"}
    environment |= {"TVM_BIND_THREADS": given} if given else {}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == kept
