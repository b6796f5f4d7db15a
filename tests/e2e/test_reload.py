"""A model that is dropped or closed gives back what it took: plans, packed weights, the mapped file."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native

_WIDTH, _LAYERS = 512, 3
_MODEL_BYTES = _LAYERS * _WIDTH * _WIDTH * 4
_RELOADS = 100


def layers() -> tvm.IRModule:
    """Products whose weights are packed."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, _WIDTH), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: relax.Expr = x
            for _ in range(_LAYERS):
                weight = relax.const(rng.standard_normal((_WIDTH, _WIDTH), dtype="float32") / _WIDTH)
                y = builder.emit(relax.op.nn.relu(relax.op.matmul(y, weight)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


@pytest.fixture(scope="module", params=["module", "source"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of either output."""
    path = tmp_path_factory.mktemp("reload") / f"{request.param}.so"
    byoc.compile(layers(), output=request.param).export_library(path)
    return path


def resident() -> int:
    """Bytes of memory that no file stands behind."""
    gc.collect()
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def growth(work: Callable[[], object]) -> int:
    """What so many rounds add, after some to warm up: the least of two times, as other tests left threads here."""
    for _ in range(5):
        work()
    sizes = [resident()]
    for _ in range(2):
        for _ in range(_RELOADS):
            work()
        sizes.append(resident())
    return min(sizes[1] - sizes[0], sizes[2] - sizes[1])


def mapped(path: Path) -> bool:
    """Whether the file is mapped into this process."""
    gc.collect()
    return str(path) in Path("/proc/self/maps").read_text()


X = np.ones((1, _WIDTH), "float32")


def test_a_hundred_reloads_take_less_than_one_model(path: Path) -> None:
    assert growth(lambda: byoc.load(path)(X)) < _MODEL_BYTES
    assert not mapped(path)


def test_a_hundred_builds_take_less_than_one_model() -> None:
    ex = byoc.compile(layers())
    ex.jit()
    assert growth(lambda: byoc.Runner(ex)(X)) < _MODEL_BYTES


def test_close_gives_back_and_refuses(path: Path) -> None:
    run = byoc.load(path)
    want = run(X)
    thread = threading.Thread(target=run, args=(X,))  # a second virtual machine
    thread.start()
    thread.join()
    before = resident()
    run.close()
    run.close()
    assert before - resident() > _MODEL_BYTES / 2
    assert not mapped(path)
    for call in (lambda: run(X), lambda: run.run_tvm(tvm.runtime.tensor(X)), lambda: run.module, run.__enter__):
        with pytest.raises(byoc.ByocError, match="this Runner is closed; load the model again"):
            call()
    with byoc.load(path) as again:
        np.testing.assert_array_equal(again(X), want)
    assert not mapped(path)


def test_a_runner_of_the_same_module_goes_on(path: Path) -> None:
    first = byoc.load(path)
    want = first(X)
    second = byoc.Runner(first.module)
    first.close()
    np.testing.assert_array_equal(second(X), want)


def test_close_while_other_threads_run(path: Path) -> None:
    run = byoc.load(path)
    want = run(X)
    wrong: list[object] = []
    started = threading.Barrier(4)

    def work() -> None:
        started.wait()
        try:
            while True:
                if not np.array_equal(run(X), want):
                    wrong.append("numbers")
        except byoc.ByocError as error:
            if "closed" not in str(error):
                wrong.append(error)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    for _ in range(50):
        run(X)
    run.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    del thread, threads
    assert not mapped(path)
