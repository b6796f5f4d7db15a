"""Faults of the surroundings, each with the promised outcome: one clear error, nothing half done, nothing lost.

Elsewhere: a missing or unloadable library (tests/packaging, tests/unit/test_native_loading.py), no compiler and a
linker that fails (test_export.py, test_ccompiler.py), failures of a vendor's predicate, lowering, planning or codegen
(tests/unit/test_fallback.py, tests/unit/test_fallback_codegen.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tvm_byoc_dnnl.core import _native

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, in the source tree."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        text=True,
        capture_output=True,
        timeout=300,
    )


# ---------------------------------------------------------------- another oneDNN
_LOAD = """
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import NativeLibraryError
try:
    _native.engine_info("dnnl")
except NativeLibraryError as error:
    print("refused:", error)
else:
    print("loaded")
"""


def fake_dnnl(folder: Path, version: tuple[int, int, int], without: str = "") -> None:
    """A libdnnl.so.3 that has the functions that our library wants, and says that it is of this version."""
    wanted = subprocess.run(
        ["nm", "-D", "--undefined-only", _native.LIBRARY.with_name("libtvm_byoc_engine_dnnl.so")],
        text=True,
        capture_output=True,
        check=True,
    )
    names = set(re.findall(r" (dnnl_\w+)", wanted.stdout)) - {"dnnl_version", without}
    assert len(names) > 20
    texts = {name for name in names if name.endswith("2str")}
    source = "".join(f"int {name}() {{ return 1; }}\n" for name in sorted(names - texts))
    source += "".join(f'const char* {name}() {{ return "text"; }}\n' for name in sorted(texts))
    major, minor, patch = version
    source += (
        "struct version { int major, minor, patch; const char* hash; unsigned cpu, gpu; };\n"
        f'static const struct version v = {{{major}, {minor}, {patch}, "fake", 2, 0}};\n'
        "const struct version* dnnl_version() { return &v; }\n"
    )
    (folder / "dnnl.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libdnnl.so.3", "-o", "libdnnl.so.3", "dnnl.c"]
    subprocess.run(command, cwd=folder, check=True)


@pytest.mark.parametrize(
    ("version", "without", "outcome"),
    [
        pytest.param(
            (3, 1, 1), "", "refused: oneDNN 3.1.1 .*expected 3.2 or newer, below 4.*onednn-cpu-gomp.*", id="older"
        ),
        pytest.param((4, 0, 0), "", "refused: oneDNN 4.0.0 .*expected 3.2 or newer, below 4.*", id="next"),
        pytest.param((3, 9, 0), "", "loaded", id="newer"),
        pytest.param((3, 0, 0), "dnnl_primitive_execute", "loaded", id="lacks a function: that of the wheel instead"),
    ],
)
def test_another_version_of_onednn(tmp_path: Path, version: tuple[int, int, int], without: str, outcome: str) -> None:
    fake_dnnl(tmp_path, version, without)
    done = python(_LOAD, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(outcome, done.stdout.strip()), done.stdout


# ---------------------------------------------------------------- export
@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
        with R.dataflow():
            y = R.nn.softmax(R.nn.relu(x))
            R.output(y)
        return y


_EXPORT = """
import resource, sys
import tvm_byoc_dnnl as byoc
from tests.e2e.test_faults import Model
ex = byoc.compile(Model)
if sys.argv[2] != "0":  # as a disk with so many bytes left; also for the linker
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    ex.export_library(sys.argv[1])
except byoc.ExportError as error:
    print("refused:", error)
else:
    print("written")
"""


def runs(path: Path) -> bool:
    x = np.random.default_rng(0).standard_normal((2, 8)).astype("float32")
    e = np.exp(np.maximum(x, 0))
    assert_right(byoc.load(path)(x), e / e.sum(1, keepdims=True), 1e-5, elementwise=True)
    return True


@pytest.mark.parametrize(
    ("missing", "refusal"),
    [pytest.param(1000, "cannot export", id="for the linker"), pytest.param(1, "cannot write", id="for the checksum")],
)
def test_a_full_disk_while_exporting_leaves_the_old_file(tmp_path: Path, missing: int, refusal: str) -> None:
    path = tmp_path / "m.so"
    byoc.compile(Model).export_library(path)
    size = path.stat().st_size
    path.write_text("old")
    done = python(_EXPORT, path, size - missing)
    assert done.stdout.startswith(f"refused: {refusal} {path}: "), done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["m.so"]
    assert path.read_text() == "old"


def test_a_full_temporary_folder_leaves_the_old_file(tmp_path: Path) -> None:
    """LLVM, which writes the object files, ends the process then; nobody can catch that."""
    path = tmp_path / "m.so"
    path.write_text("old")
    done = python(_EXPORT, path, 100)
    assert done.stdout.startswith("refused: ") or "LLVM ERROR: IO failure" in done.stderr, done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["m.so"]
    assert path.read_text() == "old"


def test_killed_in_the_middle_of_an_export(tmp_path: Path) -> None:
    """The linker writes half of the file, then the process that waits for it is gone."""
    linker = tmp_path / "g++"
    linker.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo half > "$2"; shift; done\nkill -KILL $PPID\nsleep 1\n'
    )
    linker.chmod(0o755)
    path = tmp_path / "out" / "m.so"
    path.parent.mkdir()
    path.write_text("old")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    tools = {"CXX": str(linker), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = python(_EXPORT, path, 0, TMPDIR=str(temporary), **tools)
    assert done.returncode == -9, done.stdout + done.stderr
    assert path.read_text() == "old"
    assert len(os.listdir(path.parent)) == 2 and len(list(temporary.rglob("*.o"))) > 0
    running = path.parent / f".m.{os.getpid()}-{os.stat('/proc/self/ns/pid').st_ino}-00000000.so"
    running.write_text("of a process that runs")
    # The next one succeeds, and removes what was left.
    assert python(_EXPORT, path, 0, TMPDIR=str(temporary)).stdout.strip() == "written"
    assert sorted(os.listdir(path.parent)) == [running.name, "m.so"]
    assert not list(temporary.glob("tvm_byoc_dnnl*"))
    assert runs(path)


# ---------------------------------------------------------------- memory
_OUT_OF_MEMORY = """
import resource, sys
import numpy as np
import tvm_ffi
from tests.e2e.test_faults import growing
from tvm_byoc_dnnl.core import _native

g = growing()
module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), [])
module[f"__init_{g.name}"]([])

def run(n):
    x = np.full((n, 64), 0.5, "float32")
    y = np.empty_like(x)
    module[g.name](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    return float(y.sum() / n)

first = run(4)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + (200 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    run(300_000)  # 77 MB each way, and the arena twice that: the arguments fit, the plan does not
except MemoryError as error:
    print("refused:", error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("same" if run(4) == first and abs(run(300_000) - first) < 1e-3 else "different")
"""


def growing() -> GraphBuilder:
    """x [n, 64] -> softmax(x) @ softmax of its rows, through intermediates as large as the input."""
    g = GraphBuilder()
    x = g.input(("n", 64))
    a = g.node("softmax", [x], ("n", 64), alg="accurate", axis=1)
    b = g.node("softmax", [a], ("n", 64), alg="log", axis=1)
    c = g.node("softmax", [b], ("n", 64), alg="accurate", axis=1)
    ab = g.node("binary", [a, b], ("n", 64), alg="mul")
    g.outputs = [g.node("binary", [ab, c], ("n", 64), alg="add")]
    return g


def test_out_of_memory_while_planning_is_an_error_and_no_more() -> None:
    done = python(_OUT_OF_MEMORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused: out of memory in a dnnl_byoc module", "same"]


# ---------------------------------------------------------------- a vendor's mistakes
def test_a_vendor_that_raises_costs_its_own_calls_only() -> None:
    """The same build, with one vendor that crashes in its predicate and one that computes."""
    name = "faulty"

    @byoc.register_annotate_compiler(name, "relax.nn.relu")
    def relu(attrs, args):
        raise ZeroDivisionError("no such table")

    try:
        mod = byoc.partition(Model, compiler=[name, "dnnl"])
        functions = [str(f.attrs["Codegen"]) for f in mod.functions.values() if f.attrs and "Codegen" in f.attrs]
        assert functions == ["dnnl"]
        notes = [r for call in byoc.explain(Model, compiler=[name, "dnnl"]).to_dict()["calls"] for r in call["reasons"]]
        assert any("ZeroDivisionError" in str(note) and "no such table" in str(note) for note in notes), notes
    finally:
        byoc.unregister_compiler(name)
