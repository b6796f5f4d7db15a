"""Finds the vendors: each folder of ``patterns``, and each entry point of group ``tvm_byoc_dnnl.vendors``, is one.

A vendor registers its predicates, lowerings and patterns when it is imported; nothing here knows one by name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from ..core.vendor_code import calling

_ENTRY_POINTS = "tvm_byoc_dnnl.vendors"

_FOLDER = Path(__file__).resolve().parents[1] / "patterns"
_LOCK = threading.RLock()
_loaded = False


def load_vendors(transaction: Callable[[str], AbstractContextManager[None]]) -> None:
    """Import every vendor once. A third party's that fails is left out with a warning that says why.

    Parameters
    ----------
    transaction : callable
        ``transaction(vendor)``: inside of it a vendor registers all or nothing.
    """
    global _loaded
    with _LOCK:
        if _loaded:
            return
        _loaded = True  # before the imports: they call back into the registry
        for module in pkgutil.iter_modules([str(_FOLDER)]):
            if module.ispkg:
                with transaction(module.name):
                    importlib.import_module(f"tvm_byoc_dnnl.patterns.{module.name}")
        found = importlib.metadata.entry_points(group=_ENTRY_POINTS)
        for entry in sorted(found, key=lambda e: (e.name, e.value)):  # of two that want one namespace always the same
            try:
                with transaction(entry.name), calling("its import, or its entry point,"):
                    target = entry.load()
                    if callable(target):
                        target()
            except Exception as error:
                warnings.warn(
                    f"vendor {entry.name!r} ({entry.value}) could not be loaded and is left out: {error!r}",
                    stacklevel=2,
                )
