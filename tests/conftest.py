"""Settings of every test run: threads that sleep, versions in the header, and tests that need the library."""

from __future__ import annotations

import functools
import os
import re
from importlib.metadata import version
from pathlib import Path

# Before anything loads libgomp, which reads it once: on a shared machine, threads that spin while they wait
# take the cores from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# As `import tvm` does when the package is installed; from a source tree nobody else does.
os.environ.setdefault("TVM_BIND_THREADS", "0")

import pytest

import tvm_byoc_dnnl
from tvm_byoc_dnnl.core import _native

_VERSIONS = ("apache-tvm", "apache-tvm-ffi", "onednn-cpu-gomp", "onnx", "onnxruntime", "numpy")
# Everything in these folders runs what the native library makes.
_NATIVE_FOLDERS = ("e2e", "conformance")
_TESTS = Path(__file__).parent
# Markers of what takes minutes and has a make target of its own: left out unless -m names them.
_OWN_TARGET = ("kit", "large", "onnx", "packaging", "stress", "sweep", "zoo")


@functools.cache
def _native_problem() -> str:
    """Why the native library cannot be used; empty when it can."""
    try:
        _native.load()
    except Exception as error:
        return str(error)
    return ""


def pytest_report_header() -> list[str]:
    problem = _native_problem()
    return [
        f"package: {Path(tvm_byoc_dnnl.__file__).parent}",
        f"versions: {', '.join(f'{name} {version(name)}' for name in _VERSIONS)}",
        f"native library: {problem or 'loaded'}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unasked = set(_OWN_TARGET).difference(re.findall(r"\w+", config.option.markexpr))
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
    for item in items:
        # Bytes may hold a time, as gzip's header does; the workers of a parallel run must name each case alike.
        if re.search(r"\\x[01]", item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: bytes name this case; give its parameters ids=")
        if item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).parts[0] in _NATIVE_FOLDERS:
            item.add_marker("native")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A missing library is a failure in CI, and a reason to skip on a developer's machine."""
    if item.get_closest_marker("native") is None:
        return
    problem = _native_problem()
    if problem and os.environ.get("CI"):
        pytest.fail(f"the native library is needed: {problem}", pytrace=False)
    if problem:
        pytest.skip(f"needs the native library: {problem}")
