"""The wheel tvm-byoc-runtime, built and used in an environment without TVM. It compiles everything once more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import UNOPTIMISED, Environment, run
from tests.packaging.test_install import EXPORT

pytestmark = [pytest.mark.packaging, pytest.mark.large]

RUN = """
import sys, numpy as np, tvm_byoc_runtime as runtime
data = np.load(sys.argv[2])
print(np.abs(runtime.load(sys.argv[1])(data["x"]) - data["y"]).max() < 1e-4)
print(any(name.partition(".")[0] in ("tvm", "tvm_ffi", "tvm_byoc_dnnl", "onnx") for name in sys.modules))
"""


def test_the_wheel_of_the_runtime_needs_numpy_alone(
    installed: Environment,
    copy_source: Callable[[], Path],
    new_environment: Callable[..., Environment],
    tmp_path: Path,
) -> None:
    files = tmp_path / "model.so", tmp_path / "data.npz"
    installed.run(EXPORT, *files, "module")
    environment = new_environment("tvm", "apache_tvm", "onednn", "dnnl", "onnx")
    build = sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", *UNOPTIMISED
    run(*build, "--wheel-dir", tmp_path, copy_source() / "runtime_wheel", cwd=tmp_path)
    environment.pip("install", "--no-deps", *tmp_path.glob("*.whl"))
    assert environment.run(RUN, *files).split() == ["True", "False"]
    assert (environment.site_packages / "tvm_byoc_runtime/lib/libdnnl-THIRD-PARTY-PROGRAMS.txt").stat().st_size
    packed = sum(f.stat().st_size for f in (environment.site_packages / "tvm_byoc_runtime").rglob("*") if f.is_file())
    assert packed < 80 << 20
