"""An executable whose regions are C source, compiled when it is exported or run for the first time."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import tvm
from tvm.support import cc

from ..core.errors import ExportError
from ..core.files import workspace
from ..vendors.codegen.extern import source_builds
from ..vendors.hooks.object_module import object_module
from ..vendors.namespaces import compilers, namespace
from ..vendors.routes.source import SourceBuild
from .executable import ByocExecutable


def source_options(compiler: str | Iterable[str] | None = None) -> list[str]:
    """Options for the C++ compiler that compiles and links source output, as ``export_library`` and ``jit`` take them.

    `SourceExecutable`, which `compile` returns, adds them by itself.

    Parameters
    ----------
    compiler : str or iterable of str, optional
        The namespaces whose source it is; by default all.

    Raises
    ------
    NativeLibraryError
        If a library that the source is linked with cannot be found.
    """
    names = [compiler] if isinstance(compiler, str) else compiler or compilers()
    return _options(source_builds(namespace(name) for name in names))


def _options(builds: Sequence[SourceBuild]) -> list[str]:
    compiling = [option for build in builds for option in build.compile_options]
    return [*dict.fromkeys(compiling), *(option for build in builds for option in build.link_options)]


class SourceExecutable(ByocExecutable):
    """The result of `compile` for ``output="source"``: it knows the headers and libraries that its sources need.

    Parameters
    ----------
    mod : tvm.runtime.Module
        The executable.
    builds : sequence of SourceBuild
        The headers and libraries that the sources inside need.
    """

    def __init__(self, mod: tvm.runtime.Module, builds: Sequence[SourceBuild]) -> None:
        super().__init__(mod)
        self._builds = list(builds)
        self._lock = threading.Lock()

    def export_library(self, file_name: str | PathLike[str], **kwargs: Any) -> Any:
        """Write one shared library, as for module output; ``options`` come on top of those that the sources need."""
        if kwargs.get("fcompile") is None and Path(file_name).suffix not in (".tar", ".wasm"):
            kwargs["options"] = [*_options(self._builds), *_as_list(kwargs.get("options"))]
        return super().export_library(file_name, **kwargs)

    def jit(self, **kwargs: Any) -> tvm.runtime.Module:
        """A module to run. Without arguments only the sources are compiled, and the rest, weights included, stays."""
        if not kwargs:
            with self._lock:
                self._compile_sources()
        return super().jit(**kwargs)

    def _compile_sources(self) -> None:
        """Put in the place of each source module the machine code that was made of it, which can be exported too."""
        sources = self.mod._collect_from_import_tree(lambda module: module.kind == "c")
        if not sources:
            return
        compiled = _compile(sources, self._builds)
        parents = self.mod._collect_from_import_tree(lambda module: any(m.kind == "c" for m in module.imports))
        for parent in parents:
            imports = [compiled[sources.index(m)] if m.kind == "c" else m for m in parent.imports]
            parent.clear_imports()
            for module in imports:
                parent.import_module(module)


def _compile(sources: Sequence[tvm.runtime.Module], builds: Sequence[SourceBuild]) -> list[tvm.runtime.Module]:
    """An object module for each source; all of them run from one shared library."""
    with workspace() as folder:
        objects = []
        for number, source in enumerate(sources):
            text = source.inspect_source()
            file = folder / f"source_{number}.c"
            file.write_text(text)
            objects.append(file.with_suffix(".o"))
            options = ["-c", "-fPIC", *(o for build in [*builds, SourceBuild()] for o in build.compile_options)]
            _run([*dict.fromkeys(options), str(file), "-o", str(objects[-1])])
        library = folder / "sources.so"
        linking = [option for build in builds for option in build.link_options]
        _run(["-shared", "-fPIC", *linking, *map(str, objects), "-o", str(library)])
        symbols = [str(s.get_function("get_symbol")()) for s in sources]
        return [object_module(o, library, [y], s.inspect_source()) for o, y, s in zip(objects, symbols, sources)]


def _run(arguments: Sequence[str]) -> None:
    command = [cc.get_cc() or "c++", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExportError(f"the C++ compiler failed:\n{done.stderr}\nCommand line: {' '.join(command)}")


def _as_list(options: Any) -> list[str]:
    return list(options) if isinstance(options, (list, tuple)) else [options] if options else []
