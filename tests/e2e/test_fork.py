"""A process that forks: both go on computing, whoever has had a team of threads before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native

#: A hang is what is tested for; a machine under load takes seconds to import TVM.
_TIMEOUT = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product large enough to be shared among threads."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((256, 256), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = relax.const(rng.standard_normal((256, 256), dtype="float32"))
            out = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, weight)))
        builder.emit_func_output(out)
    path = tmp_path_factory.mktemp("fork") / "m.so"
    byoc.compile(builder.get()).export_library(path)
    return path


PREAMBLE = """
import ctypes, json, multiprocessing, os, sys, threading
import numpy as np
import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.runtime.comparison import difference

run = byoc.load(sys.argv[1])
x = np.ones((256, 256), "float32")

def threads():
    return len(os.listdir("/proc/self/task"))

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
"""

FORKS = {
    "before the first call": """
want = None
def child():
    run(x)
in_child(child)
run(x)
""",
    "after the first call": """
want = run(x)
def child():
    for _ in range(3):
        np.testing.assert_array_equal(run(x), want)
    assert threads() == 2, threads()  # a team of its own
in_child(child)
np.testing.assert_array_equal(run(x), want)
assert threads() == 2, threads()
""",
    "a child that forks": """
want = run(x)
def grandchild():
    np.testing.assert_array_equal(run(x), want)
def child():
    np.testing.assert_array_equal(run(x), want)
    in_child(grandchild)
in_child(child)
""",
    "a thread that forks": """
want = run(x)
failures = []
def child():
    np.testing.assert_array_equal(run(x), want)
def work():
    try:
        run(x)
        in_child(child)
        np.testing.assert_array_equal(run(x), want)
    except BaseException as error:
        failures.append(error)
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert not failures, failures
np.testing.assert_array_equal(run(x), want)
""",
    "multiprocessing": """
want = run(x)
def total(k):
    return float(run(x * k).sum(dtype="float64"))
with multiprocessing.get_context("fork").Pool(2) as pool:
    wrong = difference(pool.map(total, range(4)), want.sum(dtype="float64") * np.arange(4), 1e-6, elementwise=True)
    assert not wrong, wrong
""",
    "calls that were submitted": """
want = run.submit(x).result()
def child():
    futures = [run.submit(x) for _ in range(3)]
    for future in futures:
        np.testing.assert_array_equal(future.result(timeout=60), want)
in_child(child)
with run._pool_lock:  # as another thread may hold it
    in_child(child)
np.testing.assert_array_equal(run.submit(x).result(), want)
""",
    "while another thread makes plans": """
want = run(x)
def work():
    while True:
        byoc.load(sys.argv[1])(x)
threading.Thread(target=work, daemon=True).start()
def child():
    np.testing.assert_array_equal(byoc.load(sys.argv[1])(x), want)
for _ in range(20):
    in_child(child)
os._exit(0)
""",
    "inside of a parallel loop": """
import tvm_ffi
want = run(x)
gomp = ctypes.CDLL("libgomp.so.1")
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def child():
    np.testing.assert_array_equal(run(x), want)
def loop(_):
    if gomp.omp_get_thread_num() == 0:
        in_child(child)
gomp.GOMP_parallel(body(loop), None, 2, 0)
np.testing.assert_array_equal(run(x), want)
""",
}


def run_program(code: str, *arguments: object, **env: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2", **env}
    command = [sys.executable, "-W", "ignore:This process", "-c", PREAMBLE + code, *map(str, arguments)]
    # A session of its own: a child that hangs goes with it.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            pytest.fail(f"hangs: {process.communicate()[1]}")
    assert process.returncode == 0, output + errors


@pytest.mark.parametrize("code", FORKS.values(), ids=FORKS)
def test_a_fork_computes_as_its_parent(model: Path, code: str) -> None:
    run_program(code, model)


TVM_LOOP = """
import tvm
from tvm import s_tir, te

a = te.placeholder((1000,), "float32", "a")
b = te.compute((1000,), lambda i: a[i] * te.const(2, "float32"), "b")
sch = s_tir.Schedule(te.create_prim_func([a, b]))
sch.parallel(sch.get_loops(sch.get_sblock("b"))[0])
double = tvm.compile(sch.mod, "llvm")["main"]
values, result = tvm.runtime.tensor(np.arange(1000, dtype="float32")), tvm.runtime.tensor(np.zeros(1000, "float32"))

def loop():
    result.copyfrom(np.zeros(1000, "float32"))
    double(values, result)
    np.testing.assert_array_equal(result.numpy(), 2 * values.numpy())

loop()
assert threads() > 1
in_child(loop)
loop()
"""


def test_loops_of_tvm_in_a_fork(model: Path) -> None:
    run_program(TVM_LOOP, model)
