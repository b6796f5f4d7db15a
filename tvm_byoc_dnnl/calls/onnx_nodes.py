"""The ONNX node of each call, as the importer noted it."""

from __future__ import annotations

import tvm

from ..relax_utils import is_host_function
from ..signature import NODES_ATTR

__all__ = ["OnnxNodes"]


class OnnxNodes:
    """The nodes from which a module was imported; a module that is not from ONNX has none."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._nodes = {
            (gv.name_hint, str(variable)): str(node)
            for gv, func in mod.functions.items()
            if is_host_function(func)
            for variable, node in (func.attrs or {}).get(NODES_ATTR, {}).items()
        }

    def of(self, function: str, name: str) -> str | None:
        """The node of a call; the variables that passes add are named after the one that they belong to."""
        while name and (function, name) not in self._nodes:
            name = name.rpartition("_")[0]
        return self._nodes.get((function, name))
