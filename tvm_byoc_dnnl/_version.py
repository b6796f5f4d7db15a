"""The versions of this package and of others, as they were installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__", "version_of"]


@cache
def version_of(distribution: str) -> str:
    """The version of a distribution, ``""`` where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


__version__ = version_of("tvm-byoc-dnnl") or "0.0.0+source"  # of a source tree on PYTHONPATH
