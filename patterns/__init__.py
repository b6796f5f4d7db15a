"""The vendor namespaces: each folder here, and each entry point of group ``tvm_byoc_dnnl.vendors``, is one backend.

A folder registers its predicates, lowerings and patterns when it is imported; `load` imports them all once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import threading
import warnings

__all__ = ["ENTRY_POINT_GROUP", "load"]

ENTRY_POINT_GROUP = "tvm_byoc_dnnl.vendors"

_LOCK = threading.RLock()
_loaded = False


def load() -> None:
    """Import every vendor once. A third party's that fails is left out with a warning that says why."""
    global _loaded
    with _LOCK:
        if _loaded:
            return
        _loaded = True  # before the imports: they call back into the registry
        for module in pkgutil.iter_modules(__path__):
            if module.ispkg:
                importlib.import_module(f"{__name__}.{module.name}")
        for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                target = entry.load()
                if callable(target):
                    target()
            except Exception as error:
                warnings.warn(
                    f"vendor {entry.name!r} ({entry.value}) could not be loaded and is left out: {error!r}",
                    stacklevel=2,
                )
