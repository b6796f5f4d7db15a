"""Bring-your-own-codegen for stock Apache TVM: vendors' libraries beside TVM's own code."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from . import _autoload

if TYPE_CHECKING:
    from ._public import *  # noqa: F403
    from ._public import __version__ as __version__

if "tvm" in sys.modules:  # else `import tvm` does this, or the first use of a name that needs TVM
    _autoload.register_names()


def _attribute(name: str) -> Any:
    # `import tvm` imports this package to load the native library, in every process that uses TVM, and many a process
    # only loads a model, which may not need TVM: the rest waits until it is used.
    if name == "load":
        from .runtime import load

        return load
    if not name.startswith("__") or name in ("__all__", "__version__"):
        _autoload.register_names()
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
