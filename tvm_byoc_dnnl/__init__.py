"""Bring-your-own-codegen for stock Apache TVM: vendors' libraries beside TVM's own code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .core.machine import few_spins

with few_spins():  # tvm imports PyTorch where that is installed, and PyTorch loads libgomp
    import tvm
    import tvm_ffi
    from tvm import relax

    from .core import compilation as _compilation  # noqa: F401
    from .core._native import advice as _advice
    from .pipeline import PIPELINE

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
    from ._public import __version__ as __version__


def _pipeline(**options: Any) -> tvm.transform.Pass:
    from .pipeline.byoc import byoc_pipeline

    return byoc_pipeline(**options)


if PIPELINE not in relax.pipeline.PIPELINE_MAP:  # it is there when this module is reloaded
    relax.register_pipeline(PIPELINE)(_pipeline)


@tvm_ffi.register_global_func("tvm_byoc_dnnl.OpenBlob", override=True)
def _open_blob(*blob: Any) -> Any:
    """The native library calls this when a module with a region of a vendor's own bytes is loaded."""
    from .vendors.blobs import open_blob

    return open_blob(*blob)


@tvm_ffi.register_global_func("tvm_byoc_dnnl.EngineHelp", override=True)
def _help(name: str, error: str) -> str:
    """The native library calls this when an engine does not load: map the libraries that it needs, list the paths.

    The engine has the name of its vendor, whose package has a function ``find``.
    """
    try:
        vendor = importlib.import_module(f"{__name__}.patterns.{name}")
    except ImportError:
        return _advice(error)
    return vendor.find(error)


def _attribute(name: str) -> Any:
    # `import tvm` imports this package to load the native library, in every process that uses TVM: the rest waits
    # until it is used.
    if name == "load":  # all that many a process needs
        from .runtime import load

        return load
    if name == "Runner":  # the rest takes as long again to import
        from .runtime.runner import Runner

        return Runner
    if not name.startswith("__"):
        folder_or_file = f"{__name__}.{name}"
        try:
            return importlib.import_module(folder_or_file)
        except ModuleNotFoundError as error:
            if error.name != folder_or_file:
                raise
    if not name.startswith("__") or name in ("__all__", "__version__"):
        from ._public import _NAMES

        globals().update(_NAMES, __all__=sorted(_NAMES))
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # a checker would take any name for one of the package
    __getattr__ = _attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *_attribute("__all__")})
