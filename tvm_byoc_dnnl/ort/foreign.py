"""The installed ONNX Runtime, for what this package refuses."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

from .options import RunOptions, SessionOptions, raised_as
from .values import OrtValue

_NAME = "onnxruntime"


def installed() -> types.ModuleType:
    """The real package, also where its name stands for this one (`python -m tvm_byoc_dnnl.ort`)."""
    if getattr(sys.modules.get(_NAME), "InferenceSession", None) is not None and _is_real(sys.modules[_NAME]):
        return sys.modules[_NAME]
    aliases = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _NAME}
    for name in aliases:
        del sys.modules[name]
    try:
        return importlib.import_module(_NAME)
    finally:
        sys.modules.update(aliases)


def _is_real(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] == _NAME


class ForeignSession:
    """A session of ONNX Runtime with arrays in and out.

    Raises `ImportError` if ONNX Runtime is not installed.
    """

    def __init__(self, model: str | bytes, options: SessionOptions, *providers: Any) -> None:
        self._package = installed()
        with _renamed():
            self.session = self._package.InferenceSession(model, self._options(options), *providers)

    def _options(self, options: SessionOptions) -> Any:
        package, theirs = self._package, self._package.SessionOptions()
        for name, value in vars(options).items():
            if name.startswith("_"):
                continue
            kind = getattr(package, type(value).__name__, None)  # an enumeration of theirs
            setattr(theirs, name, getattr(kind, value.name) if kind is not None and hasattr(value, "name") else value)
        for name, entry in options._entries.items():
            theirs.add_session_config_entry(name, entry)
        for name, size in options._sizes.items():
            theirs.add_free_dimension_override_by_name(name, size)
        #: ONNX Runtime reads initialisers where they lie
        self._kept = [(method, self._their_values(given)) for method, given in options._for_onnxruntime]
        for method, arguments in self._kept:
            getattr(theirs, method)(*arguments)
        return theirs

    def _their_values(self, given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [self._their_values(value) for value in given]
        return self._package.OrtValue.ortvalue_from_numpy(given.numpy()) if isinstance(given, OrtValue) else given

    def run(self, output_names: list[str], feed: dict[str, Any], options: RunOptions | None) -> list[Any]:
        """Run it."""
        theirs = None
        if options is not None:
            theirs = self._package.RunOptions()
            for name, value in vars(options).items():
                if not name.startswith("_"):
                    setattr(theirs, name, value)
            for name, entry in options._entries.items():
                theirs.add_run_config_entry(name, entry)
        with _renamed():
            return list(self.session.run(output_names, feed, theirs))


@contextlib.contextmanager
def _renamed() -> Iterator[None]:
    """Raise ONNX Runtime's errors as the classes of the same names here."""
    try:
        yield
    except Exception as error:
        own = raised_as(error)
        if own is error:
            raise
        raise own from error
