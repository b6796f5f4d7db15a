"""What the C source of a namespace needs to be compiled, linked and loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tvm
import tvm_ffi
from tvm.support import cc

from ..errors import NativeLibraryError

__all__ = ["SUPPORT_HEADERS", "SourceBuild"]

#: folder of the headers that emitted source includes
SUPPORT_HEADERS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class SourceBuild:
    """How source modules of a namespace are compiled and linked.

    Attributes
    ----------
    include : sequence of Path
        Folders of headers, besides those of TVM.
    libraries : sequence of Path
        Shared libraries. What is linked looks for them beside itself first, then where they are now.
    """

    include: Sequence[Path] = ()
    libraries: Sequence[Path] = ()

    @property
    def compile_options(self) -> list[str]:
        """For the compiler; TVM's own headers included. What is hot runs inside of the libraries."""
        folders = [
            *self.include,
            tvm.libinfo.find_include_path(),
            tvm_ffi.libinfo.find_include_path(),
            tvm_ffi.libinfo.find_dlpack_include_path(),
        ]
        return ["-O1", *(f"-I{folder}" for folder in folders)]

    @property
    def link_options(self) -> list[str]:
        """For the linker; they may stand in front of the object files."""
        places = ["$ORIGIN", *dict.fromkeys(str(path.parent) for path in self.libraries)]
        return [
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
            Naming what is missing: the compiler, headers, or a library.
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
