"""`threads=`: the number of threads of one runner's calls, and of nobody else's. Numbers are observed, not times."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import node, onnx_model

VENDOR = "thread_counter"
X = np.random.default_rng(0).standard_normal((64, 64), "float32")


@pytest.fixture(scope="module")
def counter():
    """A backend that takes `abs`, and says how many threads its calls may use; and that list."""
    gomp, seen = ctypes.CDLL("libgomp.so.1"), []

    def absolute(x, y):
        seen.append((threading.get_ident(), gomp.omp_get_max_threads()))
        y.copyfrom(np.abs(x.numpy()))

    def codegen(functions, options, names):
        return [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"-", "") for f in functions]

    byoc.register_annotate_compiler(VENDOR, ["relax.abs"])
    byoc.register_codegen(VENDOR, codegen)
    byoc.register_blob_runner(VENDOR, lambda compatibility: True, lambda data: absolute)
    yield seen, gomp
    byoc.unregister_compiler(VENDOR)


def model():
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["s"]), node("Abs", ["s"], ["y"])]
    return onnx_model(nodes, {"x": X.shape}, {"w": X.T.copy()}, outputs=["y"])


@pytest.mark.native
def test_runners_of_one_module_have_numbers_of_their_own(counter):
    seen, gomp = counter
    ex = byoc.compile(model(), [VENDOR, "dnnl"], threads=3)
    by_number = {3: byoc.Runner(ex), 1: byoc.Runner(ex, threads=1), 5: byoc.Runner(ex, threads=5)}
    want = by_number[3](X)
    before, found = gomp.omp_get_max_threads(), {}
    together = threading.Barrier(len(by_number))  # a thread may get the identifier of one that has ended

    def work(number):
        together.wait()
        runner, mine = by_number[number], gomp.omp_get_max_threads()
        for _ in range(20):
            assert_right(runner(X), want, 1e-6)
        found[number] = {n for thread, n in seen if thread == threading.get_ident()}
        assert gomp.omp_get_max_threads() == mine  # between its calls a thread has its own number

    seen.clear()
    threads = [threading.Thread(target=work, args=[number]) for number in by_number]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert found == {number: {number} for number in by_number}
    assert gomp.omp_get_max_threads() == before
    with pytest.raises(byoc.InputError, match="input 'x'"):
        by_number[1](X[:1])
    assert gomp.omp_get_max_threads() == before  # after an error, too


TEAMS = """
import os, sys
import numpy as np
import tvm
import tvm_byoc_dnnl as byoc
from tvm import relax, s_tir, te
from tvm_byoc_dnnl.core._native import limited

def started(call):
    before = len(os.listdir("/proc/self/task"))
    result = call()
    return len(os.listdir("/proc/self/task")) - before, result

x = np.ones((256, 256), "float32")
builder = relax.BlockBuilder()
p = relax.Var("x", relax.TensorType((256, 256), "float32"))
with builder.function("main", [p]):
    with builder.dataflow():
        out = builder.emit_output(relax.op.nn.relu(relax.op.matmul(p, relax.const(x))))
    builder.emit_func_output(out)
ex = byoc.compile(builder.get(), strict=True)
byoc.compile(builder.get(), threads=3).export_library(sys.argv[1])

a = te.placeholder((1000,), "float32", "a")
sch = s_tir.Schedule(te.create_prim_func([a, te.compute((1000,), lambda i: a[i] * te.const(2, "float32"), "b")]))
sch.parallel(sch.get_loops(sch.get_sblock("b"))[0])
double = tvm.compile(sch.mod, "llvm")["main"]
values, result = tvm.runtime.tensor(np.arange(1000, dtype="float32")), tvm.runtime.tensor(np.zeros(1000, "float32"))

# One thread needs no team; the teams of two and of three have one and two threads beside the caller. They stay, and a
# larger team adds to them.
one, two = byoc.Runner(ex, threads=1), byoc.Runner(ex, threads=2)
print(started(lambda: one(x))[0], started(lambda: limited(double, 1)(values, result))[0])
print(started(lambda: two(x))[0], started(lambda: two(x))[0], started(lambda: limited(double, 2)(values, result))[0])
print(started(lambda: limited(double, 3)(values, result))[0])
np.testing.assert_array_equal(result.numpy(), 2 * values.numpy())
three = byoc.load(sys.argv[1], threads=3)
print(started(lambda: three(x))[0], byoc.load(sys.argv[1]).threads)
np.testing.assert_allclose(three(x), one(x))
print(len(byoc.profile(one, [x], repeat=1, warmup=0).steps) > 0)
"""


@pytest.mark.native
def test_engine_and_host_start_so_many_threads(tmp_path):
    """OpenMP's default would be 4 threads here."""
    environment = os.environ | {"OMP_NUM_THREADS": "4", "TVM_NUM_THREADS": "4"}
    command = [sys.executable, "-c", TEAMS, str(tmp_path / "m.so")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split() == ["0", "0", "1", "0", "0", "1", "0", "None", "True"]


SMALL = """
import os
import numpy as np
import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model

def threads_of_a_call(size):
    x = np.linspace(-3, 3, size, dtype="float32")
    nodes = [node("Sigmoid", ["x"], ["s"]), node("Add", ["s", "x"], ["a"]), node("Tanh", ["a"], ["t"]),
             node("Concat", ["t", "x"], ["y"], axis=0)]
    run = byoc.Runner(byoc.compile(onnx_model(nodes, {"x": x.shape}, {}, outputs=["y"]), strict=True))
    before = len(os.listdir("/proc/self/task"))
    y = run(x)
    np.testing.assert_allclose(y, np.concatenate([np.tanh(x + 1 / (1 + np.exp(-x))), x]), rtol=1e-5, atol=1e-6)
    return len(os.listdir("/proc/self/task")) - before

print(threads_of_a_call(500), threads_of_a_call(100000))
"""


@pytest.mark.native
def test_small_primitives_start_no_threads():
    """They take less time than to wake the others of the team, which the next large one still has."""
    environment = os.environ | {"OMP_NUM_THREADS": "3", "TVM_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    small, large = map(int, ran.stdout.split())
    assert small == 0 and large > 0


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_a_number_that_is_none_is_refused(threads):
    with pytest.raises(byoc.InputError, match=r"threads is .*; expected a number from 1 on"):
        byoc.compile(model(), threads=threads)


@pytest.mark.native
def test_torch_compile_has_the_option(counter):
    torch = pytest.importorskip("torch")
    options = {"compiler": [VENDOR, "dnnl"], "threads": 3, "strict": True}
    fast = torch.compile(lambda x: torch.abs(torch.softmax(x, -1)), backend="tvm_byoc_dnnl", options=options)
    counter[0].clear()
    with torch.no_grad():
        fast(torch.from_numpy(X))
    assert {number for _, number in counter[0]} == {3}


COMPANY = """
import json, os, sys, threading
import numpy as np
import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model

rng = np.random.default_rng(0)
x = rng.standard_normal((512, 512), "float32")  # so long that calls wait for each other
w = rng.standard_normal((512, 512), "float32")
nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("MatMul", ["b", "w"], ["y"])]
ex = byoc.compile(onnx_model(nodes, {"x": x.shape}, {"w": w}, outputs=["y"]), strict=True)
run, want = byoc.Runner(ex), byoc.Runner(ex, threads=1)(x)
assert run.company == (0, 0)
equal = [np.array_equal(run(x), want) for _ in range(12)]  # eight calls, and two that look at fewer threads
alone = run.company
crowd = [threading.Thread(target=lambda: equal.extend(np.array_equal(run(x), want) for _ in range(50)))
         for _ in range(4)]
[t.start() for t in crowd]
[t.join() for t in crowd]
crowded = run.company
profiled = byoc.profile(run, [x]).company
print(json.dumps([all(equal), alone.narrowed >= 2, crowded.narrowed > alone.narrowed, profiled >= crowded]))
"""


@pytest.mark.native
def test_many_callers_get_fewer_threads_each_and_the_same_bits():
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    ran = subprocess.run([sys.executable, "-c", COMPANY], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert json.loads(ran.stdout) == [True] * 4
