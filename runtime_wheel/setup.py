"""The wheel tvm-byoc-runtime: files of the package above that import no TVM, and the native library that needs none."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ABOVE = Path(__file__).resolve().parents[1]
#: folder of the package above → its files that belong to the runtime
FILES = {
    "core": {"__init__", "errors", "machine", "tensor_info"},
    "runtime": {"__init__", "base", "native"},
}


class RuntimeFiles(build_py):
    """Leaves out the other files of these folders."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        kept = FILES.get(package.rpartition(".")[2])
        return [module for module in found if kept is None or module[1] in kept]


class PlatformWheel(bdist_wheel):
    """A wheel for every CPython: the library does not use its ABI."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


(version,) = re.findall(r'^version = "(.+)"$', (ABOVE / "pyproject.toml").read_text(), re.M)
setup(
    version=version,
    packages=["tvm_byoc_runtime", *(f"tvm_byoc_runtime.{folder}" for folder in FILES)],
    package_dir={f"tvm_byoc_runtime.{folder}": f"../tvm_byoc_dnnl/{folder}" for folder in FILES},
    cmdclass={"build_py": RuntimeFiles, "bdist_wheel": PlatformWheel},
    cmake_source_dir="..",
)
