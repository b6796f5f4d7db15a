"""Options of sessions and calls, and the errors, under ONNX Runtime's names; each error is one of this package as
well.

What concerns ONNX Runtime's own machinery, such as its arenas and its optimiser, is kept and has no effect here; a
session that goes to ONNX Runtime gets all of it.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

from ..core.errors import ByocError, did_you_mean, short

_LONGEST = 1024  # of a configuration's keys


class _Named(enum.IntEnum):
    __str__ = enum.Enum.__str__


class GraphOptimizationLevel(_Named):
    """How much ONNX Runtime rewrites a graph."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Named):
    """Whether nodes run one after the other."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Named):
    """The order of nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Options of a closed set, each of the type of its default."""

    _is_complete = False
    _entries: dict[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_complete:
            if name not in vars(self):
                known = [option for option in vars(self) if option[0] != "_"]
                raise AttributeError(f"{type(self).__name__} has no option {name!r}{did_you_mean(name, known)}")
            value = typed(name, value, type(vars(self)[name]))
        super().__setattr__(name, value)

    def _set_entry(self, name: str, value: str) -> None:
        """Set an entry of the configuration."""
        if not 0 < len(typed("name", name, str)) <= _LONGEST:
            raise RuntimeError(f"the key {short(name)} is empty, or longer than {_LONGEST}")
        self._entries[name] = typed("value", value, str)

    def _entry(self, name: str) -> str:
        """An entry of the configuration. Raises `RuntimeError` if it was not set."""
        if typed("name", name, str) not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {name}")
        return self._entries[name]


def typed(name: str, value: Any, kind: type) -> Any:
    """``value`` as a ``kind``; a whole number of any type is an int, and an int is a bool."""
    if kind in (bool, int) and hasattr(value, "__index__"):
        return kind(operator.index(value))
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {short(value)}; expected {kind.__name__}")
    return value


class SessionOptions(_Options):
    """Options of a session.

    ``intra_op_num_threads``, ``enable_profiling``, ``profile_file_prefix`` and the overrides of free dimensions have an
    effect.
    """

    def __init__(self) -> None:
        self.enable_cpu_mem_arena: bool = True
        self.enable_mem_pattern: bool = True
        self.enable_mem_reuse: bool = True
        self.enable_profiling: bool = False
        self.execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
        self.graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads: int = 0
        self.intra_op_num_threads: int = 0
        self.log_severity_level: int = -1
        self.log_verbosity_level: int = 0
        self.logid: str = ""
        self.optimized_model_filepath: str = ""
        self.profile_file_prefix: str = "onnxruntime_profile_"
        self.use_deterministic_compute: bool = False
        self.use_per_session_threads: bool = True
        self._entries = {}
        self._sizes: dict[str, int] = {}
        #: calls that this package has no part in, for a session that goes to ONNX Runtime
        self._for_onnxruntime: list[tuple[str, tuple[Any, ...]]] = []
        self._is_complete = True

    add_session_config_entry, get_session_config_entry = _Options._set_entry, _Options._entry

    def _asked_of_onnxruntime(self) -> str | None:
        """An option that only ONNX Runtime can do."""
        asked = [method for method, _ in self._for_onnxruntime]
        return next(iter(asked), None) or ("optimized_model_filepath" if self.optimized_model_filepath else None)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix an open size by its name."""
        self._sizes[typed("name", name, str)] = typed("value", value, int)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix an open size by what it denotes; models that say that are rare."""
        self._for_onnxruntime.append(("add_free_dimension_override_by_denotation", (denotation, value)))

    def register_custom_ops_library(self, path: str) -> None:
        """Operators of ONNX Runtime's own form, which only ONNX Runtime can run."""
        self._for_onnxruntime.append(("register_custom_ops_library", (path,)))

    def add_initializer(self, name: str, value: Any) -> None:
        """Weights from outside of the model, which only ONNX Runtime takes."""
        self._for_onnxruntime.append(("add_initializer", (name, value)))

    def add_external_initializers(self, names: list[str], values: list[Any]) -> None:
        """Weights in the place of those in other files, which only ONNX Runtime takes."""
        self._for_onnxruntime.append(("add_external_initializers", (names, values)))

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Ask for a provider; there is one here, the CPU."""

    def has_providers(self) -> bool:
        """Whether a provider was added."""
        return False


class RunOptions(_Options):
    """Options of a call; ``terminate`` has an effect here."""

    def __init__(self) -> None:
        self.log_severity_level: int = -1
        self.log_verbosity_level: int = 0
        self.logid: str = ""
        self.only_execute_path_to_fetches: bool = False
        self.terminate: bool = False
        self._entries = {}
        self._is_complete = True

    add_run_config_entry, get_run_config_entry = _Options._set_entry, _Options._entry


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
