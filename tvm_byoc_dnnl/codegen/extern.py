"""``relax.ext.<namespace>``: what TVM's RunCodegen calls for the regions of a namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..errors import InputError, NativeLibraryError, UnsupportedError
from ..lower.graph import PortableGraph
from ..registry import Namespace, compilers, namespace
from ..target_options import checked_options, get_target_options
from .region import lower_region
from .source import SourceBuild

__all__ = [
    "OUTPUTS",
    "PortableCodegen",
    "check_output",
    "collect_refusals",
    "has_source",
    "install_codegen",
    "portable_codegen",
    "source_builds",
    "source_namespaces",
    "source_refusal",
]

#: what the codegen makes of a region: a runtime module of the vendor's, or C source
OUTPUTS = ("module", "source")

_OURS: dict[str, Any] = {}
# Regions that stayed modules although source was asked for, and why; where somebody collects them.
_REFUSALS: ContextVar[dict[str, str] | None] = ContextVar("refusals", default=None)


@contextmanager
def collect_refusals() -> Iterator[dict[str, str]]:
    """Regions (by symbol) that became modules inside although source was asked for, and why."""
    refusals: dict[str, str] = {}
    token = _REFUSALS.set(refusals)
    try:
        yield refusals
    finally:
        _REFUSALS.reset(token)


def check_output(output: str) -> str:
    """``output``, if it is one of `OUTPUTS`; raises `InputError` otherwise."""
    if output not in OUTPUTS:
        raise InputError(f"output is {output!r}; expected one of {', '.join(map(repr, OUTPUTS))}")
    return output


@dataclass(frozen=True)
class PortableCodegen:
    """A codegen that consumes portable graphs: it lowers each region, and ``create_module`` does the rest.

    ``create_source`` and ``source_build`` serve the option ``output``.
    """

    compiler: str
    create_module: Callable[[PortableGraph], tvm.runtime.Module]
    create_source: Callable[[PortableGraph], tvm.runtime.Module] | None = None
    source_build: Callable[[], SourceBuild] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Its options and their defaults."""
        return {"output": OUTPUTS[0]} if self.create_source is not None else {}

    def __call__(
        self,
        functions: Sequence[relax.Function],
        options: Mapping[str, Any] | None,
        constant_names: Mapping[Any, str],
    ) -> list[tvm.runtime.Module]:
        """What ``RunCodegen`` calls."""
        ns = namespace(self.compiler)
        given = {str(name): value for name, value in (options or {}).items()}
        output = check_output(str(checked_options(self.compiler, given).get("output", OUTPUTS[0])))
        if output == "source" and self.source_build is not None:
            self.source_build().check()
        names = {constant: str(name) for constant, name in constant_names.items()}
        graphs = [lower_region(ns, f, str(f.attrs["global_symbol"]), names) for f in functions]
        return [self._source(g) if output == "source" else self.create_module(g) for g in graphs]

    def _source(self, graph: PortableGraph) -> tvm.runtime.Module:
        """``graph`` as source; as a module where it cannot be said in source, if somebody takes note of that."""
        assert self.create_source is not None
        refusals = _REFUSALS.get()
        try:
            return self.create_source(graph)
        except UnsupportedError as error:
            if refusals is None:
                raise
            refusals[graph.name] = " ".join(str(error).split())
            return self.create_module(graph)


def portable_codegen(
    compiler: str,
    create_module: Callable[[PortableGraph], tvm.runtime.Module],
    create_source: Callable[[PortableGraph], tvm.runtime.Module] | None = None,
    source_build: Callable[[], SourceBuild] | None = None,
) -> PortableCodegen:
    """A codegen for a namespace that consumes portable graphs.

    Parameters
    ----------
    compiler : str
        The namespace, whose lowerings write the graphs.
    create_module : callable
        ``create_module(graph) -> tvm.runtime.Module`` with the functions that TVM's constant loader asks for
        (``get_symbol``, ``get_const_vars``, ``__init_<symbol>``) and ``<symbol>`` itself.
    create_source : callable, optional
        The same as a source module (kind ``"c"``), for ``output="source"``; raises `UnsupportedError` for what cannot
        be said in source.
    source_build : callable, optional
        ``source_build() -> SourceBuild``: what such a source is compiled with.
    """
    return PortableCodegen(compiler, create_module, create_source, source_build)


def has_source(ns: Namespace) -> bool:
    """Whether the codegen of a namespace makes source, too."""
    return isinstance(ns.codegen, PortableCodegen) and ns.codegen.create_source is not None


def source_namespaces(mod: tvm.IRModule) -> list[Namespace]:
    """The namespaces whose regions of this module are to be source, by its options."""
    wanted = [name for name in compilers() if get_target_options(mod, name).get("output") == "source"]
    return [namespace(name) for name in wanted if has_source(namespace(name))]


def source_builds(spaces: Iterable[Namespace]) -> list[SourceBuild]:
    """What the source modules of these namespaces are compiled and linked with."""
    codegens = [ns.codegen for ns in spaces if isinstance(ns.codegen, PortableCodegen)]
    return [c.source_build() for c in codegens if c.source_build is not None]


def source_refusal(ns: Namespace, func: relax.Function, symbol: str) -> str:
    """Why a region would stay a module if source were asked for; empty if it would become source."""
    if not isinstance(ns.codegen, PortableCodegen) or ns.codegen.create_source is None:
        return f"{ns.name!r} makes modules only"
    try:
        ns.codegen.create_source(lower_region(ns, func, symbol))
    except UnsupportedError as error:
        return " ".join(str(error).split())
    return ""


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
