"""The ONNX node of each call, as the importer noted it."""

from __future__ import annotations

import tvm

from ..ir.relax_utils import is_host_function
from ..ir.signature import NODES_ATTR

__all__ = ["OnnxNodes"]


class OnnxNodes:
    """The nodes from which a module was imported; a module that is not from ONNX has none."""

    def __init__(self, mod: tvm.IRModule) -> None:
        functions = [(gv.name_hint, func) for gv, func in mod.functions.items() if is_host_function(func)]
        self._nodes = {name: (func.attrs or {}).get(NODES_ATTR) or {} for name, func in functions}

    def of(self, function: str, name: str) -> str | None:
        """The node of a call; the variables that passes add are named after the one that they belong to."""
        nodes = self._nodes.get(function, {})
        while name:
            node = nodes.get(name)
            if node is not None:
                return str(node)
            name = name.rpartition("_")[0]
        return None
