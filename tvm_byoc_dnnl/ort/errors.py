"""The errors of ONNX Runtime, by its names; each is an error of this package as well."""

from __future__ import annotations

from ..core.errors import ByocError


class Fail(ByocError, RuntimeError):
    """Something failed that no other class names."""


class InvalidArgument(ByocError, ValueError):
    """A name, dtype or shape in a call is none of the model's."""


class NoSuchFile(ByocError, FileNotFoundError):
    """There is no such file."""


class NoModel(ByocError):
    """There is no model."""


class EngineError(ByocError):
    """The engine failed."""


class RuntimeException(ByocError, RuntimeError):
    """The model failed while it ran."""


class InvalidProtobuf(ByocError, ValueError):
    """The file is no model."""


class ModelLoaded(ByocError):
    """A model is loaded already."""


class NotImplemented(ByocError, NotImplementedError):
    """An operator or a form of it is not implemented."""


class InvalidGraph(ByocError, ValueError):
    """The model is not valid ONNX."""


class EPFail(ByocError):
    """A provider failed."""


_BY_NAME: dict[str, type[ByocError]] = {
    kind.__name__: kind for kind in ByocError.__subclasses__() if kind.__module__ == __name__
}


def raised_as(error: Exception) -> Exception:
    """ONNX Runtime's own error as the class of the same name here; any other as it is."""
    own = _BY_NAME.get(type(error).__name__)
    return own(str(error)) if own is not None and type(error).__module__.startswith("onnxruntime") else error
