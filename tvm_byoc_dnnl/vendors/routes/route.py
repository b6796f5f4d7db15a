"""The three methods that the engine calls to make code of regions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax

from ...core.errors import UnsupportedError
from ...regions.failure import Failure
from .source import SourceBuild


class Route(ABC):
    """The way in which the regions of a namespace become code.

    Attributes
    ----------
    compiler : str
        The namespace.
    makes_source : bool
        Whether `source` may succeed.
    source_build : callable, optional
        ``source_build() -> SourceBuild``: the headers and libraries that such a source needs.
    compiles : bool
        Whether `attempt` runs a compiler of the vendor's, which may take long.
    """

    compiler: str
    makes_source: bool = False
    compiles: bool = True
    source_build: Callable[[], SourceBuild] | None = None

    @abstractmethod
    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        """Try a fresh region, cheaply or as `build` does; returns the failure, ``None`` if there is none.

        Parameters
        ----------
        region : relax.Function
            The region.
        options : mapping
            The options of the namespace, defaults filled in.
        fully : bool
            Whether to make its code, too.

        Raises
        ------
        NativeLibraryError
            If a library is missing: nothing that another compiler could do better.
        """

    @abstractmethod
    def build(self, mod: tvm.IRModule, options: Mapping[str, Any]) -> tvm.IRModule:
        """The module with calls of runtime modules, or of PrimFuncs, in the place of the namespace's regions.

        Raises
        ------
        BrokenRegions
            If some of them cannot be built.
        """

    def source(self, region: relax.Function, symbol: str) -> tvm.runtime.Module:
        """The region as a source module of that name.

        Raises
        ------
        UnsupportedError
            If it cannot be said in source.
        """
        raise UnsupportedError(f"{self.compiler!r} makes modules only")
