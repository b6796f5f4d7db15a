"""Finds the vendors: each folder of ``patterns``, and each entry point of group ``tvm_byoc_dnnl.vendors``, is one.

A vendor registers its predicates, lowerings and patterns when it is imported; nothing here knows one by name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import threading
import warnings
from pathlib import Path

__all__ = ["load_vendors"]

_ENTRY_POINTS = "tvm_byoc_dnnl.vendors"

_FOLDER = Path(__file__).resolve().parent / "patterns"
_LOCK = threading.RLock()
_loaded = False


def load_vendors() -> None:
    """Import every vendor once. A third party's that fails is left out with a warning that says why."""
    global _loaded
    with _LOCK:
        if _loaded:
            return
        _loaded = True  # before the imports: they call back into the registry
        for module in pkgutil.iter_modules([str(_FOLDER)]):
            if module.ispkg:
                importlib.import_module(f"{__package__}.patterns.{module.name}")
        for entry in importlib.metadata.entry_points(group=_ENTRY_POINTS):
            try:
                target = entry.load()
                if callable(target):
                    target()
            except Exception as error:
                warnings.warn(
                    f"vendor {entry.name!r} ({entry.value}) could not be loaded and is left out: {error!r}",
                    stacklevel=2,
                )
