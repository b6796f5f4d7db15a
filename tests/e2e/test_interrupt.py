"""Ctrl-C: whatever a build is doing, it ends as KeyboardInterrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native

NAME = "interrupted"


@pytest.fixture
def no_vendor() -> Iterator[None]:
    yield
    byoc.unregister_compiler(NAME)


def relu_module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(out)
    return builder.get()


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_it_comes_through_tvm() -> None:
    with pytest.raises(KeyboardInterrupt):
        tvm.transform.module_pass(interrupt, opt_level=0, name="interrupt")(tvm.IRModule())
    with pytest.raises(KeyboardInterrupt):
        tvm_ffi.convert(interrupt)()


@pytest.mark.parametrize("place", ["predicate", "codegen"])
def test_it_is_no_failure_of_a_vendor(no_vendor: None, place: str) -> None:
    check = interrupt if place == "predicate" else lambda attrs, args: True
    byoc.register_annotate_compiler(NAME, "relax.nn.relu")(check)
    if place == "codegen":
        byoc.register_codegen(NAME)(interrupt)
    with pytest.raises(KeyboardInterrupt):
        byoc.compile(relu_module(), compiler=[NAME, "dnnl"])


LOOP = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
import tvm_byoc_dnnl as byoc
from tests.e2e.test_interrupt import relu_module
byoc.compile(relu_module()).export_library(sys.argv[1])
print("ready", flush=True)
while True:
    byoc.compile(relu_module()).export_library(sys.argv[1])
"""


def end(process: subprocess.Popen[str]) -> tuple[str, int]:
    """What a process writes when it is interrupted, and how often that had to be repeated.

    Python itself ignores what is raised inside of a finaliser, such as that of the linker's `Popen`.
    """
    for again in range(4):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=30)[1], again
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it goes on after four interrupts")


@pytest.mark.parametrize("after", [0.05, 0.3, 0.55])
def test_ctrl_c_at_any_time(tmp_path: Any, after: float) -> None:
    command = [sys.executable, "-c", LOOP, str(tmp_path / "m.so")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(after)
        errors, again = end(process)
    finally:
        process.kill()
    assert errors.count("Exception ignored in") >= again, errors  # no other code may swallow it
    assert errors.strip().splitlines()[-1].startswith("KeyboardInterrupt"), errors
    assert [p.name for p in tmp_path.iterdir()] == ["m.so"]


ENDS = """
import threading, time
import tvm_byoc_dnnl as byoc
import numpy as np
from tests.e2e.test_interrupt import relu_module

run, x = byoc.Runner(byoc.compile(relu_module())), np.ones((2, 8), "float32")

def work():
    while True:
        run(x)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def test_a_program_may_end_while_daemon_threads_compute() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
