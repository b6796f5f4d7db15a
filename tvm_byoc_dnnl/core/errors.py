"""Errors of the package: one class per kind, each message says what, got, expected and what to do.

The C++ side throws the same kinds by name, so they arrive in Python as these classes.
"""

from __future__ import annotations

import errno
import os

from tvm_ffi import register_error

from .compilation import cause_of

_FILES, _MEMORY = (errno.EMFILE, errno.ENFILE), (errno.ENOMEM,)

__all__ = [
    "ArgumentTypeError",
    "ArtifactError",
    "ByocError",
    "ExportError",
    "GraphError",
    "InputError",
    "InputIndexError",
    "InputValueError",
    "MissingFileError",
    "NativeLibraryError",
    "OutOfFilesError",
    "OutOfMemoryError",
    "UnsupportedError",
    "VendorError",
    "out_of_resources",
]


class ByocError(Exception):
    """Base class of every error that this package raises on purpose."""


@register_error("ByocGraphError")
class GraphError(ByocError, ValueError):
    """A portable graph (or a Relax region) is malformed."""


@register_error("ByocInputError")
class InputError(ByocError, ValueError):
    """A call's argument has the wrong number, dtype, rank, shape, layout or name."""


class ArgumentTypeError(InputError, TypeError):
    """An argument of a public function has another type than documented."""


class MissingFileError(InputError, FileNotFoundError):
    """There is no such file."""


class InputIndexError(InputError, IndexError):
    """An index that a call gives, or makes the model compute, is out of range."""


@register_error("ByocInputValueError")
class InputValueError(InputError):
    """A value that a call gives, or makes the model compute, has no result: a divisor of 0, a size below 0."""


class OutOfMemoryError(ByocError, MemoryError):
    """A model or a call needs more memory than there is."""


class OutOfFilesError(ByocError, OSError):
    """The process, or the system, has as many open files as it may have."""


def out_of_resources(error: BaseException) -> ByocError | None:
    """The error for one whose cause is that no memory or no descriptor was left; ``None`` for another cause.

    Parameters
    ----------
    error : BaseException
        As Python or C++ raised it: the message of a library that cannot be loaded says the cause in words.
    """
    number, text = getattr(error, "errno", None), str(error)
    if number in _FILES or any(os.strerror(n) in text for n in _FILES):
        return OutOfFilesError(errno.EMFILE, f"{text}; close files, or raise the limit (ulimit -n)")
    if isinstance(error, MemoryError) or number in _MEMORY or any(os.strerror(n) in text for n in _MEMORY):
        return OutOfMemoryError(f"no memory was left: {text or type(error).__name__}")
    return None


@register_error("ByocUnsupportedError")
class UnsupportedError(ByocError):
    """The library has no implementation for exactly this on this machine, or an op is not expressible."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # tvm-ffi copies an error that comes out of a pass, without its cause.
        if (cause := cause_of(str(self))) is not None:
            self.__cause__ = cause


@register_error("ByocArtifactError")
class ArtifactError(ByocError, ValueError):
    """A saved module or file is damaged, or of a version that this package does not read."""


@register_error("ByocExportError")
class ExportError(ByocError, RuntimeError):
    """A compiled model cannot be linked into a library, or the library not be written."""


@register_error("ByocVendorError")
class VendorError(ByocError, RuntimeError):
    """A vendor's function failed, or gave what the contract does not say; the message names both."""


@register_error("ByocNativeLibraryError")
class NativeLibraryError(ByocError, ImportError):
    """The native library, or one that it needs, is missing, cannot be loaded or belongs to another package."""


# tvm-ffi knows the exceptions that are errors. Ctrl-C inside of a pass or a hook would come out as `RuntimeError('')`,
# and be taken for a vendor's failure on its way, and `sys.exit(7)` as `RuntimeError('7')`, which says nothing.
register_error("KeyboardInterrupt", KeyboardInterrupt)
register_error("SystemExit", SystemExit)
