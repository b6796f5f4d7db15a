"""What is loaded is what lies in the file now, also while a model of the file that was there before is still in use."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.pipeline.executable import seal

pytestmark = pytest.mark.native

X = np.ones((2, 40), "float32")


def model(value: float) -> tvm.IRModule:
    """A product with a weight of this value, and a call that stays with TVM."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(np.full((40, 3), value, "float32"))))
            out = builder.emit_output(relax.op.cumsum(y, axis=0))
        builder.emit_func_output(out)
    return builder.get()


def want(value: float) -> np.ndarray:
    return np.cumsum(X @ np.full((40, 3), value, "float32"), axis=0)


@pytest.fixture(scope="module", params=["module", "source"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two libraries of equal form and other weights."""
    folder = tmp_path_factory.mktemp("built")
    paths = [folder / "1.so", folder / "2.so"]
    for number, path in enumerate(paths, 1):
        byoc.compile(model(number), output=request.param).export_library(path)
    return paths


def with_tvm(path: str | Path) -> Callable[[np.ndarray], Any]:
    """Without `byoc.load`."""
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
    return lambda x: vm["main"](tvm.runtime.tensor(x)).numpy()


def move(new: Path, old: Path) -> None:
    shutil.copy(new, old.with_name("new"))
    os.replace(old.with_name("new"), old)


def switch_link(new: Path, old: Path) -> None:
    if old.exists() and not old.is_symlink():
        old.rename(old.with_name("first.so"))
    else:
        old.unlink(missing_ok=True)
    old.symlink_to(new)


def remove_and_copy(new: Path, old: Path) -> None:
    old.unlink()
    shutil.copy(new, old)


@pytest.mark.parametrize(
    ("replace", "load"), [(move, byoc.load), (move, with_tvm), (switch_link, with_tvm), (remove_and_copy, byoc.load)]
)
def test_a_replaced_file_is_loaded_anew(built: list[Path], tmp_path: Path, replace: Any, load: Any) -> None:
    path = tmp_path / "m.so"
    shutil.copy(built[0], path)
    runs = [load(path)]
    for number in (1, 0, 1):
        replace(built[number], path)
        runs.append(load(path))
    for run, value in zip(runs, (1, 2, 1, 2), strict=True):  # those before are still what they were
        np.testing.assert_array_equal(run(X), want(value))


@pytest.mark.parametrize("load", [byoc.load, with_tvm], ids=["ours", "TVM's"])
def test_a_relative_name_is_of_the_folder_that_it_is_used_in(
    built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Any
) -> None:
    runs = []
    for number, path in enumerate(built):
        (tmp_path / str(number)).mkdir()
        shutil.copy(path, tmp_path / str(number) / "m.so")
        monkeypatch.chdir(tmp_path / str(number))
        runs.append(load("./m.so"))
    for value, run in enumerate(runs, 1):
        np.testing.assert_array_equal(run(X), want(value))


def places(path: Path) -> set[str]:
    """Where the file is mapped as code."""
    return {
        line.split("-")[0]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path)) and " r-xp " in line
    }


def test_the_same_file_is_mapped_once(built: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    shutil.copy(built[0], path)
    first = byoc.load(path)
    os.utime(path, (0, 0))
    (tmp_path / "other.so").hardlink_to(path)
    again, other = byoc.load(path), byoc.load(tmp_path / "other.so")
    assert len(places(path)) == 1
    for run in (first, again, other):
        np.testing.assert_array_equal(run(X), want(1))


def test_replaced_files_with_equal_weights_are_given_back(built: list[Path], tmp_path: Path) -> None:
    """A model holds its own file and none of the older ones."""
    path = tmp_path / "m.so"
    shutil.copy(built[0], path)
    run = byoc.load(path)
    for _ in range(4):
        move(built[0], path)
        new = byoc.load(path)
        run.close()
        run = new
        gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert not [line for line in maps if str(path) in line and line.endswith("(deleted)")]
    np.testing.assert_array_equal(run(X), want(1))


def test_threads_load_while_the_file_is_replaced(built: list[Path], tmp_path: Path) -> None:
    """Each gets one of the two models, whole."""
    path = tmp_path / "m.so"
    shutil.copy(built[0], path)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(8):
                with byoc.load(path) as run:
                    if not any(np.array_equal(run(X), want(value)) for value in (1, 2)):
                        wrong.append("numbers")
        except BaseException as error:
            if "replaced again and again" not in str(error):
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for new in built:
            move(new, path)
        threads[0].join(0.05)
    assert not wrong


@pytest.mark.parametrize("load", [byoc.load, with_tvm], ids=["ours", "TVM's"])
def test_a_file_that_is_overwritten_under_a_model_is_refused(built: list[Path], tmp_path: Path, load: Any) -> None:
    """In a process of its own: the model that was loaded is lost."""
    code = f"""
import shutil, sys, tvm, tvm_byoc_dnnl as byoc
path, new = sys.argv[1:]
run = byoc.load(path)
shutil.copyfile(new, path)
try:
    {"byoc.load" if load is byoc.load else "tvm.runtime.load_module"}(path)
except byoc.ArtifactError as error:
    print(error)
import os; os._exit(0)
"""
    path = tmp_path / "m.so"
    shutil.copy(built[0], path)
    done = subprocess.run([sys.executable, "-c", code, path, built[1]], capture_output=True, text=True)
    assert "was overwritten in place while a model is loaded from it" in done.stdout, done.stderr[-500:]


def test_a_closed_model_does_not_stand_in_the_way(built: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    shutil.copy(built[0], path)
    with byoc.load(path) as run:
        np.testing.assert_array_equal(run(X), want(1))
    del run
    shutil.copyfile(built[1], path)
    np.testing.assert_array_equal(byoc.load(path)(X), want(2))


def test_an_error_of_the_loader_names_the_path(tmp_path: Path, built: list[Path]) -> None:
    path = tmp_path / "m.so"
    data = bytearray(built[0].read_bytes())
    data[18:20] = (0xF3).to_bytes(2, "little")  # another machine
    path.write_bytes(data)
    seal(path)
    with pytest.raises(RuntimeError, match=r"m\.so") as error:
        tvm.runtime.load_module(str(path))
    assert str(path) in str(error.value) and "//" not in str(error.value).replace("://", "")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.so"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    with pytest.raises(byoc.ArtifactError, match=f"it is a {kind}, expected a file"):
        byoc.load(path)


def test_a_library_of_tvm_alone_with_damaged_headers_is_refused(tmp_path: Path) -> None:
    """It has no record; its own tables still say what is wrong."""
    path = tmp_path / "m.so"
    tvm.compile(byoc.partition(model(1)), target="llvm", relax_pipeline="byoc").export_library(str(path))
    whole = path.read_bytes()
    sections = int.from_bytes(whole[40:48], "little")
    for damaged in (
        whole[:sections] + bytes(len(whole) - sections),  # the sections, at the end
        whole[:56] + bytes(2) + whole[58:],  # no segments
        whole[: 64 + 32] + b"\xff" * 8 + whole[64 + 40 :],  # the first segment's size
    ):
        path.write_bytes(damaged)
        with pytest.raises(byoc.ArtifactError, match="its headers are damaged"):
            byoc.load(path)
