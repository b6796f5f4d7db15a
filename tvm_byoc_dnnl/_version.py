"""The package's version, as it was installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("tvm-byoc-dnnl")
except PackageNotFoundError:  # a source tree on PYTHONPATH
    __version__ = "0.0.0+source"
