"""The errors that C++ throws by name arrive in Python as the package's classes; to be imported before one is thrown."""

from __future__ import annotations

from tvm_ffi import register_error

from . import errors
from .compilation import cause_of

for _kind in ("Graph", "Input", "InputValue", "Unsupported", "Artifact", "Export", "Vendor", "NativeLibrary"):
    register_error(f"Byoc{_kind}Error", getattr(errors, f"{_kind}Error"))

# tvm-ffi knows the exceptions that are errors. Ctrl-C inside of a pass or a hook would come out as `RuntimeError('')`,
# and be taken for a vendor's failure on its way, and `sys.exit(7)` as `RuntimeError('7')`, which says nothing.
register_error("KeyboardInterrupt", KeyboardInterrupt)
register_error("SystemExit", SystemExit)

errors.UnsupportedError.cause_of = staticmethod(cause_of)
