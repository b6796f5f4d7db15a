"""One team of threads for oneDNN and for TVM's parallel loops."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

# A process of its own: the launcher is one per process, for the modules that are loaded after the library.
PARALLEL_LOOPS = """
import json
import os
import threading
import numpy as np
import tvm
import tvm_ffi
from tvm.script import tirx as T
from tvm_byoc_dnnl.core import _native

_native.load()

@T.prim_func
def main(x: T.Buffer((999,), "float32"), y: T.Buffer((999,), "float32"), z: T.Buffer((999,), "float32")):
    with T.attr(0, "pragma_parallel_launch_point", 1):
        with T.attr(0, "pragma_parallel_barrier_when_finish", 1):
            for i in T.parallel(999):
                y[i] = x[i] * T.float32(2)
        for i in T.parallel(999):
            z[i] = y[998 - i]

@T.prim_func
def calls(room: T.int32):
    for i in T.parallel(64):
        T.evaluate(T.call_packed("seen_by_a_loop", room))

def threads():
    return len(os.listdir("/proc/self/task"))

f = tvm.compile(tvm.IRModule({"main": main, "calls": calls}), "llvm")
x = np.arange(999, dtype="float32")
y, z = tvm.runtime.tensor(np.zeros_like(x)), tvm.runtime.tensor(np.zeros_like(x))
before = threads()
for _ in range(20):
    f["main"](tvm.runtime.tensor(x), y, z)
    np.testing.assert_array_equal(z.numpy(), 2 * x[::-1])
    y.copyfrom(np.zeros_like(x))
omp = int(os.environ["OMP_NUM_THREADS"])
assert threads() - before == omp - 1, (before, threads())  # OpenMP's team, and no pool of TVM's beside it
assert len(os.sched_getaffinity(0)) == int(os.environ["CORES"])  # nobody bound us to fewer cores

# Two that run at the same time share the cores.
seen, inside, leave = ([set(), set()], threading.Event(), threading.Event())

@tvm_ffi.register_global_func("seen_by_a_loop")
def seen_by_a_loop(room):
    seen[room].add(threading.get_native_id())
    if room == 0:
        inside.set()
        leave.wait(60)

first = threading.Thread(target=f["calls"], args=[0])
first.start()
assert inside.wait(60)
f["calls"](1)
leave.set()
first.join()
cores = min(len(os.sched_getaffinity(0)), json.loads(_native.function("tvm_byoc_dnnl.Info")())["granted_cores"])
assert len(seen[1]) == min(omp, max(1, cores // 2)), (seen, cores)
"""


def test_parallel_loops_run_on_the_openmp_team_and_wait_for_each_other(tmp_path):
    (tmp_path / "loops.py").write_text(PARALLEL_LOOPS)  # TVMScript reads its source
    environment = os.environ | {
        "OMP_NUM_THREADS": "3",
        "TVM_NUM_THREADS": "5",
        "CORES": str(len(os.sched_getaffinity(0))),
    }
    environment.pop("TVM_BIND_THREADS", None)
    ran = subprocess.run([sys.executable, tmp_path / "loops.py"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(("given", "kept"), [(None, "0"), ("1", "1")])
def test_binding_is_off_unless_the_user_says_otherwise(given, kept):
    code = (
        "import ctypes; from tvm_byoc_dnnl.core import _native; _native.load(); g = ctypes.CDLL(None).getenv; "
        "g.restype = ctypes.c_char_p; print(g(b'TVM_BIND_THREADS').decode())"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TVM_BIND_THREADS"}
    environment |= {"TVM_BIND_THREADS": given} if given else {}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split()[-1] == kept


SPINS = """
import ctypes, os, sys
if sys.argv[1] == "libgomp first":  # as PyTorch does
    ctypes.CDLL("libgomp.so.1")
import tvm_byoc_dnnl.core._native as native, tvm_byoc_dnnl.core.machine as openmp
native.load()
print(os.environ.get("GOMP_SPINCOUNT"), openmp.spins_for_long())
"""


@pytest.mark.parametrize(
    ("order", "given", "spins", "for_long"),
    [
        ("ours first", {}, "10000", False),
        ("ours first", {"GOMP_SPINCOUNT": "7"}, "7", False),
        ("ours first", {"OMP_WAIT_POLICY": "passive"}, "0", False),
        ("libgomp first", {}, "300000", True),
        ("libgomp first", {"GOMP_SPINCOUNT": "1000"}, "1000", False),
    ],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise(order, given, spins, for_long):
    """Whoever loads libgomp decides: it reads its settings once. OMP_DISPLAY_ENV lets it print them."""
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", "TVM_DEVICE_BACKEND_AUTOLOAD": "0", **given}
    ran = subprocess.run([sys.executable, "-c", SPINS, order], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ran.stderr) == [spins]
    assert ran.stdout.split() == [str(given.get("GOMP_SPINCOUNT")), str(for_long)]  # the environment is as it was


def test_the_pytorch_that_tvm_imports_gets_the_same_setting(tmp_path):
    (tmp_path / "torch.py").write_text('import ctypes\nctypes.CDLL("libgomp.so.1")\nraise ImportError\n')
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", "PYTHONPATH": f"{tmp_path}:{environment.get('PYTHONPATH', '')}"}
    ran = subprocess.run([sys.executable, "-c", SPINS, "ours first"], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ran.stderr) == ["10000"]
    assert ran.stdout.split() == ["None", "False"]
