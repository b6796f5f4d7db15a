"""The three methods that the engine calls to make code of regions; and C source as a namespace's output: its headers
and libraries, and whether a compiler can read it.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.support import cc

from ...core.errors import NativeLibraryError, UnsupportedError
from ...core.files import workspace
from ...regions.failure import Failure

_LINES_SHOWN = 8


@dataclass(frozen=True)
class SourceBuild:
    """The headers and libraries for the source modules of a namespace.

    Attributes
    ----------
    include : sequence of Path
        Folders of headers, besides those of TVM.
    libraries : sequence of Path
        Shared libraries. The linked library looks for them in its own folder first, then where they are now.
    flags : sequence of str
        Further options, for the compiler and for the linker.
    """

    include: Sequence[Path] = ()
    libraries: Sequence[Path] = ()
    flags: Sequence[str] = ()

    @property
    def compile_options(self) -> list[str]:
        """For the compiler; TVM's own headers included. The time-consuming code is inside of the libraries."""
        folders = [
            *self.include,
            tvm.libinfo.find_include_path(),
            tvm_ffi.libinfo.find_include_path(),
            tvm_ffi.libinfo.find_dlpack_include_path(),
        ]
        return ["-O1", *self.flags, *(f"-I{folder}" for folder in folders)]

    @property
    def link_options(self) -> list[str]:
        """For the linker; they may stand in front of the object files."""
        places = ["$ORIGIN", *dict.fromkeys(str(path.parent) for path in self.libraries)]
        return [
            *self.flags,
            "-Wl,--push-state,--no-as-needed",
            *map(str, self.libraries),
            "-Wl,--pop-state",
            *(f"-Wl,-rpath,{place}" for place in places),
        ]

    def check(self) -> None:
        """Find out now whether anything can be compiled.

        Raises
        ------
        NativeLibraryError
            If something is missing; it names the compiler, the headers, or the library.
        """
        if not cc.get_cc():
            raise NativeLibraryError(
                "source output needs a C++ compiler and none was found (searched $CXX, g++, gcc, clang++, clang on "
                "PATH); install one, or use output='module'"
            )
        missing = [path for path in (*self.include, *self.libraries) if not path.exists()]
        if missing:
            raise NativeLibraryError(
                f"source output needs {', '.join(map(str, missing))}, which does not exist; reinstall the package "
                "(pip install --force-reinstall tvm-byoc-dnnl), or use output='module'"
            )


def check_sources(modules: Sequence[tvm.runtime.Module], builds: Sequence[SourceBuild] = ()) -> None:
    """Let the C++ compiler read every module that is C or C++ source, with the include paths of ``export_library``.

    Parameters
    ----------
    modules : sequence of Module
        Those of other kinds are passed over.
    builds : sequence of SourceBuild
        The headers and libraries that they need in addition.

    Raises
    ------
    RuntimeError
        With the compiler's first messages, or if there is no compiler to export such a module with.
    """
    sources = [m.inspect_source() for m in modules if m.kind == "c"]
    if not sources:
        return
    compiler = cc.get_cc()
    if not compiler:
        raise RuntimeError("the codegen made C source and there is no C++ compiler; install g++ or clang++")
    options = [option for build in [*builds, SourceBuild()] for option in build.compile_options]
    with workspace() as folder:
        files = []
        for number, source in enumerate(sources):
            files.append(folder / f"source_{number}.cc")
            files[-1].write_text(source)
        command = [compiler, "-fsyntax-only", "-w", *dict.fromkeys(options), *map(str, files)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            said = result.stderr.replace(f"{folder}/", "").splitlines()
            raise RuntimeError("\n".join([f"{Path(compiler).name}:", *said[:_LINES_SHOWN]]))


def missing_functions(module: tvm.runtime.Module, symbols: Iterable[str]) -> list[str]:
    """The functions that a module does not have: source does not contain their names; objects cannot be asked."""
    if module.kind == "c":
        source = module.inspect_source()
        return [symbol for symbol in symbols if symbol not in source]
    return [symbol for symbol in symbols if module.is_runnable() and not module.implements_function(symbol)]


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
