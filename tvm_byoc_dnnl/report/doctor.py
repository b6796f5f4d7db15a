"""doctor: the versions, libraries and settings of this machine, and the problems among them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm.support.cc import get_cc

from ..core import _native
from ..core.errors import ByocError
from ..core.machine import QUIET, Neighbours, cpu_fields, cpu_name, spins_for_long, version_of
from ..runtime.base import Company
from ..vendors import Examination
from ..vendors.namespaces import compilers, namespace

OK, WARNING, FAILURE = "ok", "warning", "failure"

_PACKAGES = ("tvm-byoc-dnnl", "apache-tvm", "apache-tvm-ffi", "numpy", "onnx")
_SUPPORTED_TVM = ("0.26", "0.27")
_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[.-][^/]*$")
_ISA_FLAGS = ("sse4_1", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16")
_LOOK_S = 0.5
_CALLS = 100  # of the self-test
_PREFIXES = ("OMP_", "GOMP_", "KMP_", "TVM_")
#: environment variable → its effect on us, where it is set to something else than the harmless value
_SUSPICIOUS = {
    "TVM_BIND_THREADS": "lets TVM pin the main thread, and with it the whole OpenMP team, to half of the cores",
}


@dataclass(frozen=True)
class Finding:
    #: the section, and the name of the finding
    section: str
    name: str
    #: the value that was found
    value: str
    #: ``ok``, ``warning`` or ``failure``
    status: str = OK
    #: what to do, when it is not ok
    fix: str = ""


def examine() -> list[Finding]:
    """Look at everything, without raising an error."""
    findings: list[Finding] = []
    for section, look in _SECTIONS:
        try:
            findings += [Finding(section, *rest) for rest in look()]
        except Exception as error:
            findings.append(
                Finding(section, "examination", f"{type(error).__name__}: {error}", FAILURE, "please report this")
            )
    return findings


def _examinations() -> list[Examination]:
    """The findings of the vendors; a vendor that cannot be loaded is a finding of its own section."""
    try:
        return [namespace(name).doctor for name in compilers()]
    except Exception:
        return []


def environment() -> dict[str, str]:
    """The variables of the environment that are for libraries which compute."""
    prefixes = (*_PREFIXES, *(prefix for each in _examinations() for prefix in each.prefixes))
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


#: a finding without its section
_Row = Sequence[str]


def _failure(name: str, error: ByocError) -> _Row:
    """What a typed error says, whose last sentence is what to do."""
    message, _, fix = str(error).rpartition(". ")
    return name, message, FAILURE, fix


def _packages() -> Iterator[_Row]:
    yield "python", f"{platform.python_version()}, {sys.executable}"
    for package in dict.fromkeys([*_PACKAGES, *(p for e in _examinations() for p in e.packages)]):
        version = version_of(package)
        if not version:
            if package == "tvm-byoc-dnnl":
                yield package, f"not installed, used from {Path(__file__).parents[2]}", WARNING, "pip install ."
            else:
                yield package, "not installed", WARNING, f"pip install {package}"
            continue
        if package == "apache-tvm" and not version.startswith(_SUPPORTED_TVM):
            tested = " and ".join(_SUPPORTED_TVM)
            yield package, version, WARNING, f"tested with {tested}: pip install 'apache-tvm>=0.26,<0.28'"
        else:
            yield package, version
    plugins = {e.name for e in importlib.metadata.entry_points(group="tvm.backends")}
    if "tvm_byoc_dnnl" in plugins:
        yield "autoload", "`import tvm` loads the native library"
    else:
        fix = "install the package, or import tvm_byoc_dnnl before loading a compiled model"
        yield "autoload", "`import tvm` alone does not load the native library", WARNING, fix


def _tools() -> Iterator[_Row]:
    compiler = get_cc()
    if compiler and shutil.which(compiler):
        yield "C++ compiler", compiler
    else:
        what = f"{compiler} of the variable CXX is no program" if compiler else "none on PATH"
        lost = "export_library, output='source' and vendors that compile C do not work; loading models does"
        yield "C++ compiler", f"{what}: {lost}", WARNING, "apt-get install g++, or CXX=..."


def _library() -> Iterator[_Row]:
    try:
        _native.load()
    except ByocError as error:
        yield _failure("native library", error)
        return
    yield "native library", _mapped(re.compile(r"/libtvm_byoc_dnnl\.so$"))[0]
    for engine in _native.engines():
        yield from _engine(engine)
    info: dict[str, Any] = json.loads(_native.function("tvm_byoc_dnnl.Info")())
    cores = len(os.sched_getaffinity(0))
    threads = int(info["max_threads"])
    found = f"{threads} on {cores} usable cores"
    yield ("threads", found) if threads == cores else ("threads", found, WARNING, f"export OMP_NUM_THREADS={cores}")
    if (granted := int(info["granted_cores"])) < cores:
        yield "control group", f"grants {granted} of {cores} cores (a part counts as one): calls use no more threads"


def _engine(name: str) -> Iterator[_Row]:
    try:
        info = _native.engine_info(name)
    except ByocError as error:
        yield _failure(f"engine {name}", error)
        return
    yield info["library"], f"{info['version']} ({info['hash'][:10]}), {info['cpu_runtime']}"
    stem = info["file"].partition(".")[0]
    copies = _mapped(re.compile(rf"/{stem}[^/]*\.so[^/]*$"))
    if len(copies) > 1:
        fix = "two copies hold their caches twice, and versions may mix: uninstall one, or set LD_LIBRARY_PATH"
        yield stem, ", ".join(copies), WARNING, fix
    else:
        yield stem, ", ".join(copies) or "linked in"
    yield "instructions", info["isa"]
    if machine := info.get("machine"):
        yield "rates", f"{machine['rates']} ({machine['hash']}); this machine is {machine['name']}"


def _mapped(pattern: re.Pattern[str]) -> list[str]:
    try:
        rows = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    except OSError:
        return []
    return sorted({row[5] for row in rows if len(row) == 6 and pattern.search(row[5])})


def _machine() -> Iterator[_Row]:
    yield "processor", cpu_name()
    flags = cpu_fields().get("flags", "").split()
    yield "flags", " ".join(f for f in _ISA_FLAGS if f in flags) or "unknown"
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    yield "cores", f"{usable} usable of {present}"
    with Neighbours() as others:
        time.sleep(_LOOK_S)
    found = f"others took {others.share:.0%} of the usable cores for {_LOOK_S:g} s"
    fix = f"measure when they take less than {QUIET:.0%}: until then times are longer, and differ from call to call"
    yield ("neighbours", found) if others.quiet else ("neighbours", found, WARNING, fix)


def _threading() -> Iterator[_Row]:
    runtimes = _mapped(_OPENMP)
    if len(runtimes) > 1:
        fix = (
            "each keeps a team of its own that spins while the other works: import only one, or OMP_WAIT_POLICY=passive"
        )
        yield "OpenMP runtimes", ", ".join(runtimes), WARNING, fix
    else:
        yield "OpenMP runtime", ", ".join(runtimes) or "none loaded"
    if spins_for_long():
        fix = "import tvm_byoc_dnnl before what loads libgomp (PyTorch and tvm do), or export GOMP_SPINCOUNT=10000"
        yield "waiting threads", "spin for milliseconds, which slows calls down on a busy machine", WARNING, fix
    suspicious = {**_SUSPICIOUS, **{name: why for e in _examinations() for name, why in e.variables.items()}}
    shown = environment()
    for name, value in sorted(os.environ.items()):
        if name in suspicious and value not in ("", "0", "ALL"):
            yield name, value, WARNING, f"unset {name}: it {suspicious[name]}"
        elif name in shown:
            yield name, value


def _namespaces() -> Iterator[_Row]:
    from ..vendors.portable import install_codegen

    for name in compilers():
        ns = namespace(name)
        value = f"{len(ns.ops())} operators, {len(ns.patterns)} patterns"
        try:
            install_codegen(ns)
        except ByocError as error:
            yield _failure(name, error)
        else:
            yield name, value


def _self_test() -> Iterator[_Row]:
    from tvm import relax

    from ..api import compile, partition
    from ..ir.relax_utils import codegen_of, module_of
    from ..runtime.comparison import gap
    from ..runtime.runner import Runner

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((512, 512), dtype="float32")
    data = rng.standard_normal((256, 512), dtype="float32")
    x = relax.Var("x", relax.TensorType(data.shape, "float32"))
    module = module_of([x], lambda builder: relax.op.nn.relu(builder.emit(relax.op.matmul(x, relax.const(weight)))))
    regions = [f for f in partition(module).functions.values() if codegen_of(f)]
    if not regions:
        yield "matmul + relu", "stays with TVM", FAILURE, "`tvm-byoc explain` shows the reasons of a model's calls"
        return
    runner = Runner(compile(module))
    expected = np.maximum(data @ weight, 0)
    error = gap([runner(data)], [expected])
    time.sleep(_LOOK_S)  # NumPy's threads wait awake for a while
    started = time.perf_counter()
    for _ in range(_CALLS):
        runner(data)
    micros = (time.perf_counter() - started) * 1e6 / _CALLS
    found = f"offloaded, largest error {error:.0e}, {micros:.0f} µs"
    fix = "the numbers are wrong on this machine: please report this with the output of `tvm-byoc doctor --json`"
    yield ("matmul + relu", found) if error < 1e-5 else ("matmul + relu", found, FAILURE, fix)
    yield _in_company(runner.company)


def _in_company(calls: Company) -> _Row:
    found = f"{calls.late} of {_CALLS} calls waited too long for a thread, {calls.narrowed} ran on fewer threads"
    if calls.late < 2 or calls.narrowed <= _CALLS // 4:
        return "company", found
    return "company", found, WARNING, "other programs use the cores: while they do, calls take longer"


_SECTIONS: tuple[tuple[str, Callable[[], Iterator[_Row]]], ...] = (
    ("Packages", _packages),
    ("Machine", _machine),
    ("Tools", _tools),
    ("Library", _library),
    ("Threads", _threading),
    ("Compilers", _namespaces),
    ("Self-test", _self_test),
)
