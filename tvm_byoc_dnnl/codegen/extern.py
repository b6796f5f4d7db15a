"""``relax.ext.<namespace>``: what TVM's RunCodegen calls for the regions of a namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..errors import NativeLibraryError
from ..lower.graph import PortableGraph
from ..lower.region import lower_region
from ..registry import Namespace, namespace

__all__ = ["PortableCodegen", "install_codegen", "portable_codegen"]

_OURS: dict[str, Any] = {}


@dataclass(frozen=True)
class PortableCodegen:
    """A codegen that consumes portable graphs: it lowers each region, and ``create_module`` does the rest."""

    compiler: str
    create_module: Callable[[PortableGraph], tvm.runtime.Module]

    def __call__(
        self, functions: Sequence[relax.Function], _options: Mapping[str, Any], constant_names: Mapping[Any, str]
    ) -> list[tvm.runtime.Module]:
        """What ``RunCodegen`` calls."""
        ns = namespace(self.compiler)
        names = {constant: str(name) for constant, name in constant_names.items()}
        return [self.create_module(lower_region(ns, f, str(f.attrs["global_symbol"]), names)) for f in functions]


def portable_codegen(compiler: str, create_module: Callable[[PortableGraph], tvm.runtime.Module]) -> PortableCodegen:
    """A codegen for a namespace that consumes portable graphs.

    Parameters
    ----------
    compiler : str
        The namespace, whose lowerings write the graphs.
    create_module : callable
        ``create_module(graph) -> tvm.runtime.Module`` with the functions that TVM's constant loader asks for
        (``get_symbol``, ``get_const_vars``, ``__init_<symbol>``) and ``<symbol>`` itself.
    """
    return PortableCodegen(compiler, create_module)


def install_codegen(ns: Namespace) -> None:
    """Make a namespace's codegen known to TVM.

    Raises
    ------
    NativeLibraryError
        If somebody else, such as a TVM built with its own oneDNN support, owns ``relax.ext.<namespace>``.
    """
    if ns.codegen is None:
        return
    name = f"relax.ext.{ns.name}"
    present = tvm.get_global_func(name, allow_missing=True)
    if present is not None and ns.name not in _OURS:
        raise NativeLibraryError(
            f"{name} is registered already by another library (is this a TVM built with USE_{ns.name.upper()}=ON?); "
            "expected it to be free. Use the stock apache-tvm wheel, or a TVM built with that option OFF"
        )
    if _OURS.get(ns.name) is not ns.codegen:
        tvm_ffi.register_global_func(name, ns.codegen, override=True)
        _OURS[ns.name] = ns.codegen
