"""What TVM has of this package; ``import tvm`` asks for it through the entry point group ``tvm.backends``.

TVM turns an exception here into a warning and continues without this package; the first use of the library raises
the same error again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .core import _native
from .core.machine import few_spins
from .pipeline import PIPELINE

if TYPE_CHECKING:
    import tvm

__all__ = ["register"]

_PACKAGE = __name__.partition(".")[0]


def register() -> None:
    """Load the native library, so that modules exported with it load after ``import tvm`` alone."""
    # When TVM starts its thread pool it pins the calling thread to half of the cores. libgomp's team inherits
    # that mask and then shares those cores: 15 times slower was measured. It must be set before the pool starts.
    os.environ.setdefault("TVM_BIND_THREADS", "0")

    register_names()
    _native.load()


def register_names() -> None:
    """Give TVM the pipeline and what the native library asks Python for, once; `tvm` is imported for it."""
    with few_spins():  # tvm imports PyTorch where that is installed, and PyTorch loads libgomp
        from tvm import relax

    if PIPELINE not in relax.pipeline.PIPELINE_MAP:
        relax.register_pipeline(PIPELINE)(_pipeline)
        _native.registry().register_global_func(f"{_PACKAGE}.OpenBlob", _open_blob, override=True)
        if _native.is_loaded():  # before TVM, whose runtime has named loops of its own since
            _native.function(f"{_PACKAGE}.UseTeamForTVM")()


def _pipeline(**options: Any) -> tvm.transform.Pass:
    from .pipeline.byoc import byoc_pipeline

    return byoc_pipeline(**options)


def _open_blob(*blob: Any) -> Any:
    """The native library calls this when a module with a region of a vendor's own bytes is loaded."""
    from .vendors.blobs import open_blob

    return open_blob(*blob)
