"""Machine code that a compiler made, as a module of an executable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tvm
import tvm_ffi

from ...core import _native


def object_module(object_file: Path, library: Path, symbols: Sequence[str], source: str = "") -> tvm.runtime.Module:
    """A module that is run from a shared library, and exported as an object file.

    Neither file is needed afterwards. Without our native library the module can only be exported: TVM then links and
    loads the whole executable, with all its constants, before it runs it for the first time.

    Parameters
    ----------
    object_file : Path
        The object code that is linked into an exported library; position-independent.
    library : Path
        The same, linked.
    symbols : sequence of str
        The functions in them, each exported as ``__tvm_ffi_<symbol>``.
    source : str
        What ``inspect_source`` shows.
    """
    if not _native.available():
        return tvm.get_global_func("runtime.ModuleLoadStaticLibrary")(str(object_file), list(symbols))
    loaded = tvm_ffi.load_module(str(library), keep_module_alive=False)
    return _native.function("tvm_byoc_dnnl.ObjectModuleCreate")(object_file.read_bytes(), loaded, source, "object")
