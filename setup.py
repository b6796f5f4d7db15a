"""The part of the build that pyproject.toml cannot say."""

from __future__ import annotations

import os

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformWheel(bdist_wheel):
    """A wheel for every CPython: the library uses tvm-ffi's ABI, not CPython's."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


# `make` compiles the C++ with CMake itself, incrementally and in place, and then installs only the Python half.
native = {} if os.environ.get("TVM_BYOC_DNNL_SKIP_CMAKE") == "1" else {"cmake_source_dir": "."}

setup(cmdclass={"bdist_wheel": PlatformWheel}, **native)
