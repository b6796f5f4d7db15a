"""Export: a whole file or none, one clear error, and what loading does not need."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.weights_models import TOKENS, weighty_model

INPUT = np.random.default_rng(3).standard_normal((TOKENS, 64), "float32")


@pytest.fixture(scope="module")
def compiled():
    return byoc.compile(weighty_model(64, 2)[0])


def want():
    return weighty_model(64, 2)[1](INPUT)


def failing_linker(folder: Path, message: str) -> str:
    """A linker that writes half a file and fails."""
    script = folder / "g++"
    writes = 'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo half > "$2"; shift; done'
    script.write_text(f'#!/bin/sh\n{writes}\necho "{message}" >&2\nexit 1\n')
    script.chmod(0o755)
    return str(script)


def test_it_is_tvms_executable(compiled):
    assert isinstance(compiled, relax.VMExecutable)
    got = relax.VirtualMachine(compiled, tvm.cpu())["main"](tvm.runtime.tensor(INPUT)).numpy()
    assert_right(got, want())


def test_a_whole_file_takes_the_place_of_the_old_one(compiled, tmp_path):
    path = tmp_path / "m.so"
    path.write_text("old")
    reader = path.open()  # as a process that has the old library mapped
    compiled.export_library(path)
    assert reader.read() == "old"
    assert os.listdir(tmp_path) == ["m.so"]
    assert_right(byoc.load(path)(INPUT), want())


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("/usr/bin/ld: lib0.o: undefined reference to 'f'", r"undefined reference to 'f'.*addons="),
        ("/usr/bin/ld: final link failed: No space left on device", r"No space left on device.*TMPDIR"),
        ("Segmentation fault", "Segmentation fault.*the error before"),
    ],
    ids=["symbol", "space", "other"],
)
def test_a_linker_that_fails_leaves_what_was_there(compiled, tmp_path, message, advice):
    linker = failing_linker(tmp_path, message)
    out = tmp_path / "out"
    out.mkdir()
    (out / "m.so").write_text("old")
    with pytest.raises(byoc.ExportError, match=rf"cannot export .*m\.so: .*{advice}") as error:
        compiled.export_library(out / "m.so", cc=linker)
    assert len(str(error.value).splitlines()) == 1
    assert [(p.name, p.read_text()) for p in out.iterdir()] == [("m.so", "old")]


def test_what_cannot_be_exported_to_is_said_before_linking(compiled, tmp_path):
    with pytest.raises(byoc.ExportError, match=r"no folder .*missing; make it first"):
        compiled.export_library(tmp_path / "missing" / "m.so")
    with pytest.raises(byoc.ExportError, match=r"it is a folder"):
        compiled.export_library(tmp_path)


@pytest.mark.parametrize("place", ["pipe", "/dev/null", "/dev/zero", "file/m.so"])
def test_what_is_no_file_is_refused_at_once(compiled, tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    with pytest.raises(byoc.ExportError, match=r"cannot export .*: (it is a (pipe|device)|Not a directory)"):
        compiled.export_library(tmp_path / place)


LIMITED = """
import resource, sys
import numpy as np
import tvm_byoc_dnnl as byoc
from tests.e2e.test_export import host_model
ex = byoc.compile(host_model(), output=sys.argv[1])
for limit in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        ex.export_library(sys.argv[2])
    except byoc.ExportError as error:
        print(limit, str(error).replace(chr(10), " "))
    else:
        print(limit, "exported")
"""


def host_model():
    """A product, and a call that LLVM makes code of."""
    x = relax.Var("x", relax.TensorType((TOKENS, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.matmul(x, relax.const(np.eye(64, dtype="float32"))))
            out = bb.emit_output(relax.op.cumsum(y, axis=1))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize("output", ["module", "source"])
def test_files_that_may_not_grow_are_errors_and_leave_nothing(tmp_path, output):
    """LLVM, the linker and the record are cut off at each size; the process lives, and the old file stays."""
    path, work = tmp_path / "m.so", tmp_path / "work"
    path.write_text("old")
    work.mkdir()
    limits = [1, 500, 3000, 9000, 17000, 26000]
    environment = os.environ | {"TMPDIR": str(work), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", LIMITED, output, str(path), *map(str, limits)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()
    assert len(said) == len(limits)
    assert all("cannot" in line for line in said[:4]), said
    assert os.listdir(work) == [] and sorted(os.listdir(tmp_path)) == ["m.so", "work"]
    if not any("exported" in line for line in said):
        assert path.read_text() == "old"


def test_large_limits_of_file_sizes_do_not_matter(tmp_path):
    """The code goes through the assembler then, and is the same."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", LIMITED, "module", str(tmp_path / "m.so"), str(1 << 30)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "exported" in done.stdout, done.stdout + done.stderr[-2000:]
    assert_right(byoc.load(tmp_path / "m.so")(INPUT), np.cumsum(INPUT, axis=1), 1e-5)


def full_disk(folder):
    """A file system of a few bytes, where this process may mount one."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], capture_output=True)
    return mounted.returncode == 0


@pytest.mark.parametrize("what", ["workspace", "target"])
def test_a_full_disk_is_an_error(tmp_path, monkeypatch, what):
    small = tmp_path / "small"
    small.mkdir()
    if not full_disk(small):
        small.rmdir()
        small.write_text("")  # below a file there is no room either
    try:
        ex = byoc.compile(host_model())
        place = {"workspace_dir": str(small)} if what == "workspace" else {}
        path = tmp_path / "m.so" if what == "workspace" else small / "m.so"
        with pytest.raises(byoc.ExportError, match=r"No space left|Not a directory|cannot"):
            ex.export_library(path, **place)
        assert not path.exists() if small.is_dir() else True
    finally:
        subprocess.run(["umount", small], capture_output=True)


def test_a_compiled_model_is_not_pickled(compiled, tmp_path):
    compiled.export_library(tmp_path / "m.so")
    for value in (compiled, byoc.Runner(compiled), byoc.load(tmp_path / "m.so")):
        with pytest.raises(TypeError, match=r"cannot be pickled: .*the path.*byoc\.load\(path\) there"):
            pickle.dumps(value)


def test_without_a_compiler_export_says_so(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(byoc.ExportError, match=r"no C\+\+ compiler is on PATH.*Loading a library needs none"):
        compiled.export_library(tmp_path / "m.so")


def test_addons_are_not_changed(compiled, tmp_path):
    addons: list[str] = []
    compiled.export_library(tmp_path / "m.so", addons=addons)
    assert addons == []


# `import tvm` loads what the model needs where the package is installed; from a source tree somebody must.
LOAD = """
import shutil, sys, numpy as np
path, inputs, outputs, autoload = sys.argv[1:]
assert shutil.which("g++") is None and shutil.which("cc") is None
import tvm
from tvm import relax
if autoload == "no":
    from tvm_byoc_dnnl.core import _native
    _native.load()
vm = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
np.save(outputs, vm["main"](tvm.runtime.tensor(np.load(inputs))).numpy())
"""


def test_a_fully_offloaded_model_loads_without_a_compiler(compiled, tmp_path):
    """In a process that knows TVM only; in-process, where TVM would link an executable that has no LLVM code, too."""
    compiled.export_library(tmp_path / "m.so")
    np.save(tmp_path / "x.npy", INPUT)
    (tmp_path / "bin").mkdir()
    autoload = "yes" if any(e.value.startswith("tvm_byoc_dnnl") for e in entry_points(group="tvm.backends")) else "no"
    command = [sys.executable, "-c", LOAD, *(str(tmp_path / name) for name in ("m.so", "x.npy", "y.npy")), autoload]
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")} | {"PATH": str(tmp_path / "bin")}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert_right(np.load(tmp_path / "y.npy"), want())


def test_an_executable_needs_no_linking_to_run(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiled.jit() is compiled.mod


def test_names_stay_short():
    """Of a region of 60 calls, too: TVM would name it by all of them, and its constants after it."""
    mod = byoc.partition(weighty_model(64, 30)[0])
    assert [gv.name_hint for gv in mod.get_global_vars() if gv.name_hint != "main"] == ["dnnl_0"]
    ex = byoc.compile(weighty_model(64, 30)[0])

    def regions(module: tvm.runtime.Module) -> list[tvm.runtime.Module]:
        found = [module] if module.kind == "dnnl_byoc" else []
        return found + [r for imported in module.imports for r in regions(imported)]

    names = [str(name) for region in regions(ex.mod) for name in region["get_const_vars"]()]
    assert len(names) == 30 and max(map(len, names)) < 30, names


def _hardswish() -> tvm.IRModule:
    """The numbers 3 and 6 are constants of the region that its library does not ask for: TVM's loader has them."""
    x = relax.Var("x", relax.TensorType((TOKENS, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            gate = bb.emit(relax.op.clip(bb.emit(relax.op.add(x, relax.const(np.float32(3)))), 0, 6))
            y = bb.emit_output(relax.op.divide(bb.emit(relax.op.multiply(x, gate)), relax.const(np.float32(6))))
        bb.emit_func_output(y)
    return bb.get()


@pytest.mark.parametrize("loader", [False, True])
def test_only_an_exported_file_has_code_of_tvms(compiled, tmp_path, loader):
    executable = byoc.compile(_hardswish()) if loader else compiled
    kinds = [m.kind for m in executable.mod._collect_from_import_tree(lambda _module: True)]
    assert "dnnl_byoc" in kinds and not {"c", "llvm"} & set(kinds)
    assert ("const_loader" in kinds) == loader
    for _ in range(2):
        executable.export_library(tmp_path / "m.so")
        assert b"byoc_host_anchor" in (tmp_path / "m.so").read_bytes()
        assert [m.kind for m in executable.mod._collect_from_import_tree(lambda _module: True)] == kinds
    wanted = INPUT * np.clip(INPUT + 3, 0, 6) / 6 if loader else want()
    assert_right(byoc.load(tmp_path / "m.so")(INPUT), wanted)
