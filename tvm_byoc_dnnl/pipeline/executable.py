"""The result of `compile`: TVM's executable, whose export writes a complete file or none, and raises one error; and
one whose regions are C source, compiled when it is exported or run for the first time.

The file of an exported library has a record with checksums at its end, which says whether it is complete and unchanged:
`codegen_src/native/library_record.h` describes, makes and compares it.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import tvm
from tvm.relax import VMExecutable
from tvm.support import cc
from tvm.support.cc import get_cc

from ..core import _native
from ..core.errors import ByocError, ExportError
from ..core.files import opened, why_not_written, workspace, written
from ..vendors.c_source import object_module
from ..vendors.codegen import SourceBuild
from ..vendors.namespaces import compilers, namespace
from ..vendors.portable import source_builds
from .host_code import drop_empty_source, objects_in_memory, set_imports, with_host_code


def is_library(path: str | PathLike[str]) -> bool:
    """Whether a file is there and begins as an ELF file does."""
    try:
        with opened(path) as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def write_mark(path: Path) -> None:
    """Write an object file to link into a library that `seal` will be called for."""
    _native.function("tvm_byoc_dnnl.WriteMark")(str(path))


def seal(path: Path, key: str = "") -> None:
    """Append the record to a library, or give it one that says what it was made from; other files stay as they are."""
    size, record = _native.function("tvm_byoc_dnnl.LibraryRecord")(str(path), key)
    if record:
        with path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(record)


#: a function that is nowhere is an error of loading; found missing at its call, it would end the process
_BIND_NOW = "-Wl,-z,now"
_LINES_SHOWN = 5
_TELLING = ("error:", "undefined", "cannot", "no space", "too large")


class ByocExecutable(VMExecutable):
    """What `tvm_byoc_dnnl.compile` returns; with the ``target`` of one that was built without ``host_code``."""

    #: the threads of each call by a `Runner` that is made of it; the exported file does not say
    threads: int | None = None
    #: the library that it is, where it comes from a cache
    path: Path | None = None

    def __init__(self, mod: tvm.runtime.Module, target: tvm.target.Target | None = None) -> None:
        super().__init__(mod)
        parent = None if target is None else drop_empty_source(mod)
        self._host_code: Callable[[], AbstractContextManager[None]] = nullcontext
        if parent is not None:
            self._host_code = partial(with_host_code, parent, target)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: byoc.Runner(ex) runs it, ex.export_library(path) writes it>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: call export_library(path), give the other process the path, and call "
            "byoc.load(path) there"
        )

    def export_library(
        self,
        file_name: str | os.PathLike[str],
        *,
        fcompile: Callable[..., Any] | None = None,
        addons: Sequence[str] | None = None,
        workspace_dir: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Write one shared library, as TVM's ``export_library`` does.

        The file gets its name only when it is complete: it is written in the same folder and then renamed. So a process
        that has loaded an older file can go on using it, and after a failure the older file is still there.
        A pipe or a device is refused at once; of a symbolic link, the file that it points to is replaced, with a
        warning.

        Parameters
        ----------
        file_name : path-like
            The library; with the suffix ``.tar`` an archive of object files.
        fcompile : callable, optional
            Links the object files in place of TVM's ``cc.create_shared``.
        addons : sequence of str, optional
            More object files to link.
        workspace_dir : str, optional
            Folder for the object files, about as large as the library; by default a temporary one, below ``TMPDIR``.
        **kwargs
            For ``fcompile``: ``cc``, ``options`` ...

        Raises
        ------
        ExportError
            If it cannot be linked or written: the linker's message, and what to do.
        """
        path = Path(file_name)
        linked = fcompile is None and path.suffix not in (".tar", ".wasm")
        _check(path, linked=linked, cc=kwargs.get("cc"))
        if linked:
            kwargs["options"] = [_BIND_NOW, *_listed(kwargs.get("options"))]
        try:
            with written(path) as aside:
                objects = list(addons or ())
                with workspace() as temporary, self._host_code():
                    if linked and _native.available():
                        write_mark(temporary / "mark.o")
                        objects.append(str(temporary / "mark.o"))
                    with objects_in_memory(self.mod, fcompile, kwargs.get("cc")) as pack:
                        result = self.mod.export_library(
                            str(aside),
                            fcompile=fcompile,
                            fpack_imports=pack,
                            addons=objects,  # TVM appends to it
                            workspace_dir=workspace_dir or str(temporary),
                            **kwargs,
                        )
                if aside.exists():
                    if _native.available():
                        seal(aside)
                elif fcompile is None:
                    raise ExportError(f"cannot export {path}: the linker reported success, but wrote no file")
            return result
        except ByocError:
            raise
        except (RuntimeError, ValueError, AssertionError) as error:
            raise ExportError(_explain(path, error)) from error

    def jit(self, **kwargs: Any) -> tvm.runtime.Module:
        """A module to run; `ExportError` where it calls a function that no library has."""
        try:
            return super().jit(**kwargs)
        except RuntimeError as error:
            if isinstance(error, ByocError) or "undefined symbol" not in str(error):
                raise
            raise ExportError(_explain("the model, to run it", error)) from error


def _check(path: Path, *, linked: bool, cc: str | None) -> None:
    if (reason := why_not_written(path)) is not None:
        raise ExportError(f"cannot export {path}: {reason}")
    if linked and not (cc or get_cc()):
        raise ExportError(
            f"cannot export {path}: no C++ compiler is on PATH (g++, gcc, clang++ ...) to link it with. "
            "Install one (apt-get install g++), or name it: CXX=..., export_library(path, cc=...). "
            "Loading a library needs none"
        )


def _explain(path: Path | str, error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = "\n".join(lines)
    noise = ("Compilation error", "ld returned")
    telling = [
        line
        for line in lines
        if any(word in line.lower() for word in _TELLING) and not any(words in line for words in noise)
    ]
    said = "; ".join((telling or lines or [type(error).__name__])[:_LINES_SHOWN])
    if "no space left" in text.lower() or "disk quota" in text.lower():
        advice = "make room there or in the temporary folder: TMPDIR=..., export_library(path, workspace_dir=...)"
    elif "file too large" in text.lower() or "file size limit" in text.lower():
        advice = "raise the limit of file sizes (ulimit -f)"
    elif "permission denied" in text.lower() or "read-only" in text.lower():
        advice = "choose a folder that you may write to"
    elif "undefined reference" in text or "cannot find -l" in text or "undefined symbol" in text:
        advice = "a library or object file is missing: pass it as addons=[...] or options=[...]"
    else:
        advice = "the whole output of the linker is in the error before this one"
    return f"cannot export {path}: {said}. {advice[0].upper()}{advice[1:]}"


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


def _listed(options: str | Sequence[str] | None) -> Sequence[str]:
    return [options] if isinstance(options, str) else options or []


def _options(builds: Sequence[SourceBuild]) -> list[str]:
    compiling = [option for build in builds for option in build.compile_options]
    return [*dict.fromkeys(compiling), *(option for build in builds for option in build.link_options)]


class SourceExecutable(ByocExecutable):
    """The result of `compile` for ``output="source"``: it knows the headers and libraries that its sources need."""

    def __init__(self, mod: tvm.runtime.Module, builds: Sequence[SourceBuild]) -> None:
        super().__init__(mod)
        self._builds = list(builds)
        self._lock = threading.Lock()

    def export_library(self, file_name: str | PathLike[str], **kwargs: Any) -> Any:
        """Write one shared library, as for module output; ``options`` come on top of those that the sources need."""
        if kwargs.get("fcompile") is None and Path(file_name).suffix not in (".tar", ".wasm"):
            kwargs["options"] = [*_options(self._builds), *_listed(kwargs.get("options"))]
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
            set_imports(parent, imports)


def _compile(sources: Sequence[tvm.runtime.Module], builds: Sequence[SourceBuild]) -> list[tvm.runtime.Module]:
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
        _run(["-shared", "-fPIC", _BIND_NOW, *linking, *map(str, objects), "-o", str(library)])
        symbols = [str(s.get_function("get_symbol")()) for s in sources]
        return [object_module(o, library, [y], s.inspect_source()) for o, y, s in zip(objects, symbols, sources)]


def _run(arguments: Sequence[str]) -> None:
    command = [cc.get_cc() or "c++", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExportError(f"the C++ compiler failed:\n{done.stderr}\nCommand line: {' '.join(command)}")
