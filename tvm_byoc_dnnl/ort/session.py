"""``InferenceSession``, as ONNX Runtime has it, on top of `compile` and `Runner`."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import onnx

from ..core.errors import ByocError, InputError, OutOfMemoryError, UnsupportedError, short
from ..core.machine import progress
from ..runtime import CachedModel, lightest
from ..runtime.base import BaseRunner
from .foreign import ForeignSession
from .options import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
    RunOptions,
    RuntimeException,
    SessionOptions,
    typed,
)
from .values import IOBinding, ModelMetadata, NodeArg, OrtValue, numpy_dtype, tensor_type, type_of

if TYPE_CHECKING:
    from ..onnx_backend import PreparedModel

_PROVIDER = "CPUExecutionProvider"
_CACHE = "TVM_BYOC_CACHE"


class InferenceSession:
    """A model that is ready to run.

    It is compiled for this CPU at its first use, into the folder ``$TVM_BYOC_CACHE`` (by default
    ``~/.cache/tvm_byoc_dnnl/models``); later sessions load the file. What this package refuses goes to the installed
    ONNX Runtime, with one warning that has the reason.

    Parameters
    ----------
    path_or_bytes : path-like or bytes
        The model.
    sess_options : SessionOptions, optional
        Options.
    providers, provider_options : sequence, optional
        For ONNX Runtime; the CPU is the only provider here.
    fallback : bool
        Whether ONNX Runtime runs what is refused; else the error is raised.

    Raises
    ------
    NoSuchFile
        If there is no such file.
    InvalidProtobuf
        If it is no model.
    InvalidGraph, NotImplemented
        If the model cannot be compiled, and ``fallback`` is off or ONNX Runtime is not installed.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        fallback: bool = True,
        **kwargs: Any,
    ) -> None:
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        options = SessionOptions() if sess_options is None else sess_options
        self._sess_options = typed("sess_options", options, SessionOptions)
        self._model = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        self._model_path = None if isinstance(self._model, bytes) else self._model  # other packages read it
        self._providers, self._provider_options = providers, provider_options
        self._foreign: ForeignSession | None = None
        self._events: list[dict[str, Any]] = []
        self._started = time.time_ns()
        proto = _read(self._model)
        self._describe(proto)
        try:
            if asked := self._sess_options._asked_of_onnxruntime():
                raise UnsupportedError(f"the options ask for {asked}")
            self._runner = self._compiled(proto)
            self._name_outputs()
            _warn_of_others(self._providers)
        except ByocError as error:
            self._refused(error, fallback)

    def _describe(self, proto: onnx.ModelProto) -> None:
        stored = {t.name for t in (*proto.graph.initializer, *(s.values for s in proto.graph.sparse_initializer))}
        arguments = list(map(NodeArg, proto.graph.input))
        self._inputs = {a.name: a for a in arguments if a.name not in stored}
        self._stored_inputs = {a.name: a for a in arguments if a.name in stored}
        self._outputs = {info.name: NodeArg(info) for info in proto.graph.output}
        self._metadata = ModelMetadata(proto)

    def _compiled(self, proto: onnx.ModelProto) -> BaseRunner | PreparedModel:
        threads, folder = self._sess_options.intra_op_num_threads or None, os.environ.get(_CACHE) or _cache_folder()
        for argument in (*self._inputs.values(), *self._outputs.values()):
            argument.shape = [self._sess_options._sizes.get(d, d) if isinstance(d, str) else d for d in argument.shape]
        fixed = {
            name: [d if d is not None else f"{name}_{axis}" for axis, d in enumerate(a.shape)]
            for name, a in self._inputs.items()
            if self._sess_options._sizes
        }
        has_sequences = any(argument._kind == "sequence_type" for argument in self._outputs.values())
        for argument in (*self._inputs.values(), *self._outputs.values()):
            if argument._kind != "tensor_type" and (argument.name in self._inputs or not has_sequences):
                raise UnsupportedError(f"`{argument.name}` is a {argument.type}; expected a tensor")
        name = "a model" if isinstance(self._model, bytes) else Path(self._model).name
        with progress(f"Loading {name}, which is compiled at its first use …"):
            cached = CachedModel(folder, self._model, fixed)
            if (known := cached.runner(threads)) is not None:
                return known
            return self._with_tvm(proto, cached, fixed, threads=threads, cache_dir=folder)

    def _with_tvm(
        self, proto: onnx.ModelProto, cached: CachedModel, fixed: Mapping[str, Any], **settings: Any
    ) -> BaseRunner | PreparedModel:
        """Imported here, as a later session of the same model may do without."""
        from .. import compile
        from ..api import DEFAULT_COMPILER
        from ..api.cache import is_plain
        from ..frontends.onnx.importer import load_onnx
        from ..frontends.onnx.inputs import deciding_inputs
        from ..onnx_backend import PreparedModel
        from ..vendors.namespaces import namespace

        model = proto if isinstance(self._model, bytes) else self._model
        about = namespace(DEFAULT_COMPILER).doctor
        reads = {"variables": about.variables, "packages": about.packages}
        has_sequences = any(argument._kind == "sequence_type" for argument in self._outputs.values())
        try:
            if has_sequences or any(name in self._inputs for name in deciding_inputs(proto)):
                return PreparedModel(load_onnx(Path(model)) if isinstance(model, str) else model, **settings)
            ex = compile(model, shapes=fixed or None, **settings)
        except UnsupportedError as error:
            if is_plain():
                cached.remember({"refused": str(error)}, reads)
            raise
        if ex.path is not None and is_plain():
            cached.remember({"key": ex.path.stem}, reads)
        return lightest(ex)

    def _name_outputs(self) -> None:
        """Give outputs that the file says little of what the compiled model says."""
        if not isinstance(self._runner, BaseRunner):
            return
        for argument, known in zip(self._outputs.values(), cast(BaseRunner, self._runner).outputs):
            if not argument._element and known.dtype:
                argument._element = int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(known.dtype)))
                argument.type = tensor_type(argument._element)
            if not argument.shape and known.shape is not None:
                argument.shape = list(known.shape)

    def _refused(self, error: ByocError, fallback: bool) -> None:
        kind = NotImplemented if isinstance(error, UnsupportedError) else InvalidGraph
        if not fallback:
            raise kind(str(error)) from error
        try:
            self._foreign = ForeignSession(self._model, self._sess_options, self._providers, self._provider_options)
        except ImportError:
            raise kind(f"{error} (ONNX Runtime, which would run it, is not installed)") from error
        warnings.warn(f"ONNX Runtime runs this model, because {error}", RuntimeWarning, stacklevel=3)
        theirs = self._foreign.session
        for own, arguments in ((self._inputs, theirs.get_inputs()), (self._outputs, theirs.get_outputs())):
            for argument in arguments:
                own[argument.name].type, own[argument.name].shape = argument.type, argument.shape

    def __repr__(self) -> str:
        return f"<InferenceSession: {self.get_inputs()} -> {self.get_outputs()}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an InferenceSession cannot be pickled: give the other process the path of the model, and make "
            "a session there"
        )

    def get_inputs(self) -> list[NodeArg]:
        """The inputs, without those that only repeat an initialiser."""
        return list(self._inputs.values())

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        return list(self._outputs.values())

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The initialisers that are inputs as well."""
        return list(self._stored_inputs.values())

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says about itself."""
        return self._metadata

    def get_providers(self) -> list[str]:
        """The CPU."""
        return [_PROVIDER] if self._foreign is None else list(self._foreign.session.get_providers())

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Provider → options."""
        return {name: {} for name in self.get_providers()}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Ask for other providers; there is one."""

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._sess_options

    def disable_fallback(self) -> None:
        """Of ONNX Runtime: do not try other providers after a failure."""

    enable_fallback = disable_fallback

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model.

        Parameters
        ----------
        output_names : sequence of str, optional
            The outputs to return; by default all.
        input_feed : mapping
            Input → array, `OrtValue` or list.
        run_options : RunOptions, optional
            Options.

        Returns
        -------
        list of numpy.ndarray
            The outputs.

        Raises
        ------
        TypeError
            If the names are no list, or the feed is no mapping.
        ValueError
            If an input is missing.
        InvalidArgument
            If there is no such name, or a dtype or a shape is wrong.
        Fail, RuntimeException
            If the model fails.
        """
        if isinstance(output_names, str) or not isinstance(input_feed, Mapping):
            got = f"{type(output_names).__name__} and {type(input_feed).__name__}"
            raise TypeError(f"run() got {got}; expected a list of output names, or None, and a mapping of inputs")
        if not self._inputs.keys() <= input_feed.keys():
            missing = [name for name in self._inputs if name not in input_feed]
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(input_feed)}).")
        if run_options is not None and typed("run_options", run_options, RunOptions).terminate:
            raise Fail("Exiting due to terminate flag being set to true.")
        wanted = list(output_names or ())
        for name in wanted:
            if name not in self._outputs:
                raise InvalidArgument(f"Invalid Output Name:{name}")
        feed = {name: self._value(name, value) for name, value in input_feed.items()}
        before = time.time_ns()
        results = self._run(wanted, feed, run_options)
        if self._sess_options.enable_profiling:
            self._events.append(self._event("model_run", before))
        return results

    def _value(self, name: str, value: Any) -> Any:
        argument = self._inputs.get(name) or self._stored_inputs.get(name)
        if argument is None:
            raise InvalidArgument(f"Invalid Feed Input Name:{name}")
        if isinstance(value, OrtValue):
            value = value.numpy()
        if self._foreign is not None:
            return value
        if value is None or isinstance(value, (str, bytes, Mapping)):
            raise Fail(f"The input {name} is {short(value)}; expected an array, an OrtValue or a list")
        wanted = argument._dtype
        if type(value) is np.ndarray and value.dtype == wanted:
            return value
        try:
            array = np.asarray(value, None if isinstance(value, (np.ndarray, np.generic)) else wanted)
        except (OverflowError, TypeError, ValueError) as error:
            kind = InvalidArgument if isinstance(error, ValueError) else Fail
            raise kind(f"The input {name} is no array of {wanted}: {error}") from error
        if array.dtype != wanted:
            got = type_of(array)
            raise InvalidArgument(f"Unexpected input data type. Actual: ({got}) , expected: ({argument.type})")
        return array

    def _run(self, wanted: list[str], feed: dict[str, Any], options: RunOptions | None) -> list[Any]:
        """All outputs, unless some are named."""
        if self._foreign is None and self._stored_inputs and not feed.keys().isdisjoint(self._stored_inputs):
            self._refused(UnsupportedError("a call replaces an initialiser, which is compiled in"), fallback=True)
        if self._foreign is not None:
            return self._foreign.run(wanted or list(self._outputs), feed, options)
        try:
            if isinstance(self._runner, BaseRunner):
                values = self._runner(*[feed[name] for name in self._inputs])
            else:
                values = self._runner.run(feed)
        except UnsupportedError as error:  # the values of this call cannot be compiled for
            self._refused(error, fallback=True)
            return self._run(wanted, feed, options)
        except InputError as error:
            raise InvalidArgument(str(error)) from error
        except (ByocError, OutOfMemoryError) as error:
            raise RuntimeException(str(error)) from error
        except RuntimeError as error:
            raise Fail(str(error)) from error
        results = [values] if isinstance(values, np.ndarray) else list(values)
        if not wanted:
            return results
        found = dict(zip(self._outputs, results, strict=True))
        return [found[name] for name in wanted]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in another thread, which calls ``callback(results, user_data, error)`` at the end."""

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as raised:
                results, error = [], str(raised) or type(raised).__name__
            callback(results, user_data, error)

        threading.Thread(target=work, name="tvm_byoc_dnnl.run_async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """The same with tensors in and out."""
        return list(map(OrtValue, self.run(output_names, input_dict_ort_values, run_options)))

    def io_binding(self) -> IOBinding:
        """New bindings of inputs and outputs."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run the model with its inputs and outputs bound."""
        typed("iobinding", iobinding, IOBinding)._run(self, run_options)

    def get_profiling_start_time_ns(self) -> int:
        """When the session was made."""
        return self._started

    def end_profiling(self) -> str:
        """Write the times of the calls so far as a trace, and return the file's name.

        ``tvm-byoc profile`` shows where the time of a call goes.
        """
        if not self._sess_options.enable_profiling:
            return ""
        name = f"{self._sess_options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        Path(name).write_text(json.dumps(self._events), encoding="utf-8")
        self._sess_options.enable_profiling = False
        return name

    def _event(self, name: str, began: int) -> dict[str, Any]:
        taken = (time.time_ns() - began) // 1000
        return {
            "cat": "Session",
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "dur": taken,
            "ts": (began - self._started) // 1000,
            "ph": "X",
            "name": name,
            "args": {},
        }


def _read(model: str | bytes) -> onnx.ModelProto:
    """The model without weights that lie in other files."""
    data = model if isinstance(model, bytes) else _bytes_of(model)
    if not data:
        raise InvalidArgument("No model: the file or the bytes are empty")
    proto = onnx.ModelProto()
    with contextlib.suppress(Exception):  # protobuf's, which has no public name here
        proto.ParseFromString(data)
        if proto.graph.node or proto.graph.output:
            return proto
    what = "model" if isinstance(model, bytes) else f"model from {model}"
    is_compiled = "; it is a compiled library, which `byoc.load` runs" if data[:4] == b"\x7fELF" else ""
    raise InvalidProtobuf(f"Load {what} failed: Protobuf parsing failed, it is no ONNX model{is_compiled}")


def _warn_of_others(providers: Sequence[Any] | None) -> None:
    """Warn, as ONNX Runtime does, if providers are asked for that are not there."""
    listed = [providers] if isinstance(providers, str) else providers or ()
    names = [p if isinstance(p, str) else p[0] if isinstance(p, tuple) and p else short(p) for p in listed]
    if others := [name for name in names if name != _PROVIDER]:
        warnings.warn(
            f"Specified provider {others[0]!r} is not in available provider names. Available providers: {_PROVIDER!r}",
            stacklevel=3,
        )


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, ValueError) as error:  # a name with a null byte
        raise NoSuchFile(f"Load model from {path} failed: File doesn't exist") from error
    except OSError as error:
        raise Fail(f"Load model from {path} failed: {error.strerror}") from error


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm_byoc_dnnl" / "models"
