"""``import tvm`` runs this through the entry point group ``tvm.backends``: it loads only the native library.

TVM turns an exception here into a warning and continues without this package; the first use of the library raises
the same error again.
"""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """Load the native library, so that modules exported with it load after ``import tvm`` alone."""
    # When TVM starts its thread pool it pins the calling thread to half of the cores. libgomp's team inherits
    # that mask and then shares those cores: 15 times slower was measured. It must be set before the pool starts.
    os.environ.setdefault("TVM_BIND_THREADS", "0")

    from .core import _native

    _native.load()
