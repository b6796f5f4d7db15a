"""Run a compiled model: NumPy or DLPack in, NumPy out."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import tvm

from ..core import _native
from ..core.arguments import as_tensor
from ..core.errors import (
    ArgumentTypeError,
    ArtifactError,
    ByocError,
    InputError,
    InputIndexError,
    InputValueError,
    MissingFileError,
    OutOfMemoryError,
    VendorError,
    out_of_resources,
)
from ..core.threads import Company, check_number
from ..ir.signature import TensorInfo, random_arrays, with_named_sizes
from ..pipeline import library_file
from ..pipeline.kv_cache import CACHES_FUNCTION
from ..pipeline.metadata import read_metadata
from ..vendors.blobs import checked_run_options
from .call_arguments import InputPlan, SymbolPlan, Views, as_array
from .machines import NO_MEMORY, Machines, calls_of, fault_of_sizes, give_back

_RUNNERS: weakref.WeakSet[Runner] = weakref.WeakSet()


class Runner:
    """A compiled model as a Python callable; any number of threads may call it.

    It is a context manager, too. Its memory is freed at the end of the context, at `close`, or when no reference to the
    runner is left.

    Parameters
    ----------
    ex : tvm.runtime.Executable or tvm.runtime.Module
        The result of `compile`, or a loaded library.
    entry : str
        Name of the function to call.
    threads : int, optional
        Threads that each call of this runner may use; other runners of the process are not affected. By default the
        number that `compile` was given, and without one OpenMP's and TVM's own numbers.
    workers : int, optional
        Calls of `submit` that run at the same time; by default as many as have ``threads`` cores each, and one where
        the number of threads is open.
    options : mapping, optional
        Namespace → option → value: what the vendors of the model's regions let a user choose when they are opened, such
        as the device; see `register_blob_runner`. Regions of a module that is open already keep theirs.

    Raises
    ------
    InputError
        If ``threads`` or ``workers`` is not a positive number, an option is unknown, or ``ex`` is something else, such
        as a path.
    NativeLibraryError
        If the native library that the model needs cannot be loaded.
    """

    def __init__(
        self,
        ex: Any,
        entry: str = "main",
        *,
        threads: int | None = None,
        workers: int | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.threads = check_number("threads", threads if threads is not None else getattr(ex, "threads", None))
        self.workers = check_number("workers", workers) or self._usual_workers()
        if not isinstance(ex, (tvm.runtime.Executable, tvm.runtime.Module)):
            got = repr(ex) if isinstance(ex, (str, PathLike)) else f"a value of type {type(ex).__name__}"
            raise InputError(
                f"got {got}, expected what compile(...) or load(...) returns: compile a model, load a library"
            )
        if self.threads is not None or _native.available():
            _native.load()
        # A relax.VirtualMachine keeps its stack in itself: each thread needs one of its own. They share the module.
        module = ex.jit() if isinstance(ex, tvm.runtime.Executable) else ex
        machines = Machines(module, entry, self.threads, checked_run_options(options or {}))
        self._machines: Machines | None = machines
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()
        _RUNNERS.add(self)
        self.entry = entry
        vm = machines.start()
        metadata = (read_metadata(vm) if entry == "main" else None) or {}
        has_caches = entry == "main" and vm.module.implements_function(CACHES_FUNCTION)
        # positions of the inputs and of the outputs that are caches
        self._caches = tuple(frozenset(map(int, side)) for side in vm[CACHES_FUNCTION]()) if has_caches else ()
        self._describes_inputs = "inputs" in metadata
        self._views = Views()
        if self._caches:
            self._use_caches = _native.function("tvm_byoc_dnnl.UseCaches")
        #: the model's inputs in order, under the names that its author gave them; empty when the file does not say
        self.inputs = tuple(map(_tensor_info, metadata.get("inputs", ())))
        unaligned, grown = metadata.get("unaligned", ()), self._caches[0] if self._caches else ()
        self._plans = [
            InputPlan(info, i not in unaligned, self._views if i in grown else None)
            for i, info in enumerate(self.inputs)
        ]
        self._symbols = SymbolPlan(self.inputs)
        if not all(i.is_static for i in self.inputs):
            machines.pooled = False
            machines.start()
        #: the model's outputs in order; empty when the file does not say
        self.outputs = tuple(map(_tensor_info, metadata.get("outputs", ())))

    @property
    def module(self) -> tvm.runtime.Module:
        """The module behind it; another runner may be made of it."""
        return self._open().module

    @property
    def company(self) -> Company:
        """How the calls of its regions fared beside other programs and other calls, since the model was loaded."""
        return Company.of(self.module)

    def close(self) -> None:
        """Give back the model's plans, its packed weights and the mapped file; every later call is an `InputError`.

        So is what the process keeps for later calls of any model: TVM's pool of tensors, and the code that engines
        have made for layers.

        Calls that run in other threads, and those that were submitted before, still end normally. Other references to
        `module`, or to a function of it, keep the module loaded.
        """
        with self._pool_lock:
            pool, self._pool, self._machines = self._pool, None, None
        if pool is not None:
            pool.shutdown(wait=False)
        give_back()

    def __enter__(self) -> Runner:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Runner cannot be pickled: it is bound to the memory of this process. Give the other process the path of "
            "the exported library, and call byoc.load(path) there"
        )

    def __repr__(self) -> str:
        if self._machines is None:
            return "<Runner, closed>"
        return f"<Runner: {', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}>"

    def _open(self) -> Machines:
        machines = self._machines
        if machines is None:
            raise InputError("this Runner is closed; load the model again, or make another Runner of its module before")
        return machines

    def _usual_workers(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return max(1, cores // self.threads) if self.threads is not None else 1

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs in order; empty when the file does not say."""
        return [i.name for i in self.inputs]

    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | list[np.ndarray]:
        """Run the model.

        Parameters
        ----------
        *args, **kwargs
            Inputs in the model's order or by name: NumPy arrays, or anything with ``__dlpack__``. A single mapping of
            names to inputs is taken too.

        Returns
        -------
        numpy.ndarray or list of numpy.ndarray
            The output; a list where the model has several.

        Raises
        ------
        InputError
            If number, name, dtype or shape of an input is wrong, or sizes do not fit each other; an `InputIndexError`
            for an index out of range, an `InputValueError` for a value without a result, such as a divisor of 0.
        OutOfMemoryError
            If the model's tensors need more memory than there is.
        """
        return self._call(self._open(), args, kwargs)

    def _call(
        self, machines: Machines, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> np.ndarray | list[np.ndarray]:
        named = args[0] if len(args) == 1 and isinstance(args[0], dict) and not kwargs else None
        tensors = self.tensors((), named) if named is not None else self.tensors(args, kwargs)
        try:
            return self._to_numpy(self._run(machines, tensors))
        except IndexError as error:
            raise InputIndexError(
                f"{error}: {self._givers_of(tensors)}; give indices that are within the axis"
            ) from error
        except InputValueError as error:
            raise InputValueError(f"{error}: {self._givers_of(tensors)}") from error
        except (RuntimeError, ValueError) as error:
            is_static = all(i.is_static for i in self.inputs)
            fault = None if isinstance(error, ByocError) else fault_of_sizes(str(error), is_static)
            if fault is None and NO_MEMORY.search(str(error)):
                raise OutOfMemoryError(f"the model's tensors need more memory than there is ({error})") from error
            if fault is None:
                raise
            raise InputError(f"{fault}: {self._shapes_of(tensors)}; give sizes that it was exported for") from error

    def _givers_of(self, tensors: Sequence[tvm.runtime.Tensor]) -> str:
        return f"the inputs have it, or the model computes it from them ({self._shapes_of(tensors)})"

    def _shapes_of(self, tensors: Sequence[tvm.runtime.Tensor]) -> str:
        return ", ".join(f"{i} is {list(t.shape)}" for i, t in zip(self.inputs, tensors))

    def submit(self, *args: Any, **kwargs: Any) -> Future[np.ndarray | list[np.ndarray]]:
        """Run the model in a thread of this runner, and return at once.

        Calls begin in the order in which they were submitted, as many at the same time as the runner has ``workers``.
        The others wait in a queue, which has no bound: a caller that submits faster than the model runs waits for
        earlier futures. NumPy arrays are not copied: leave them as they are until the future is done.

        Parameters
        ----------
        *args, **kwargs
            As for a call.

        Returns
        -------
        concurrent.futures.Future
            Its result is what a call returns, or its exception what a call raises.

        Raises
        ------
        InputError
            If the runner is closed.
        """
        with self._pool_lock:
            machines = self._open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="tvm_byoc_dnnl")
            return self._pool.submit(self._call, machines, args, kwargs)

    def named(self, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """Run the model as a call does, and return the outputs by their names.

        An output that the file has no name for is ``output_0``, ``output_1`` ...
        """
        result = self(*args, **kwargs)
        values = result if isinstance(result, list) else [result]
        names = [o.name for o in self.outputs] or [f"output_{i}" for i in range(len(values))]
        return dict(zip(names, values, strict=True))

    def tensors(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Inputs by position and name, checked, as the TVM tensors that `run_tvm` takes."""
        values = self._in_order(tuple(args), kwargs or {})
        if not self._describes_inputs:
            return [as_tensor(v, f"input {i}", "a tensor") for i, v in enumerate(values)]
        tensors = [plan.tensor(value) for plan, value in zip(self._plans, values, strict=True)]
        self._symbols.check(tensors)
        return tensors

    def random_tensors(self, seed: int = 0, shapes: Mapping[str, Sequence[int | str]] | None = None) -> list[Any]:
        """Made-up inputs of the model's dtypes and shapes, standard normal or small integers.

        Parameters
        ----------
        seed : int
            Of the generator.
        shapes : mapping, optional
            Input name to shape, for inputs with open dims.

        Raises
        ------
        InputError
            If the file does not describe its inputs, or a shape is not fixed.
        """
        if not self._describes_inputs:
            raise InputError("this library does not describe its inputs; pass some")
        return self.tensors(random_arrays(self.inputs, seed, shapes or {}))

    def warm_up(self, shapes: Mapping[str, Sequence[int | str]] | Sequence[Mapping[str, Sequence[int | str]]]) -> None:
        """Prepare the plans for some sizes, so that the first call of each is as fast as the later ones.

        Parameters
        ----------
        shapes : mapping or sequence of mappings
            Input name to shape; several of them prepare several sizes. An open dim that another input gives the size
            of need not be repeated.

        Raises
        ------
        InputError
            If the file does not describe its inputs, or a shape is missing or does not fit.
        """
        make = _native.function("tvm_byoc_dnnl.MakePlans")
        before = make(True)
        try:
            for sizes in [shapes] if isinstance(shapes, Mapping) else shapes:
                self._run(self._open(), self.random_tensors(shapes=with_named_sizes(self.inputs, sizes)))
        finally:
            make(before)

    def _function(self, machines: Machines) -> Any:
        """The model's function; where a device fails, the form without it, if the model has one."""
        function = machines.function()

        def call(*tensors: tvm.runtime.Tensor) -> Any:
            try:
                return function(*tensors)
            except (ArtifactError, VendorError) as error:
                if (host := machines.without_devices(error)) is not None:
                    return host(*tensors)
                raise type(error)(f"{error}{calls_of(machines.module, error)}") from error

        return call

    def run_tvm(self, *tensors: tvm.runtime.Tensor) -> Any:
        """The zero-copy form: TVM tensors in, TVM tensors out, no checks but the VM's own."""
        return self._function(self._open())(*tensors)

    def _run(self, machines: Machines, tensors: Sequence[tvm.runtime.Tensor]) -> Any:
        """The same with caches in buffers that grow, where the model has some."""
        if not self._caches:
            return self._function(machines)(*tensors)
        before = self._use_caches(True)
        try:
            return self._function(machines)(*tensors)
        finally:
            self._use_caches(before)

    def _to_numpy(self, result: Any) -> Any:
        if not self._caches or isinstance(result, tvm.runtime.Tensor):
            return as_array(result)
        return [self._views.array(r) if i in self._caches[1] else as_array(r) for i, r in enumerate(result)]

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        if not self._describes_inputs:
            if kwargs:
                raise InputError("this library does not name its inputs; pass them in order")
            return list(args)
        if not kwargs and len(args) == len(self.inputs):
            return list(args)
        if not args and len(kwargs) == len(self.inputs) and all(name in kwargs for name in self.input_names):
            return [kwargs[name] for name in self.input_names]
        names = self.input_names
        unknown = [k for k in kwargs if k not in names]
        if unknown:
            raise InputError(f"unknown input {', '.join(map(repr, unknown))}; the model's inputs are {_listed(names)}")
        values = dict(zip(names, args, strict=False))
        twice = [k for k in kwargs if k in values]
        if twice:
            raise InputError(f"input {twice[0]!r} was given twice, by position and by name")
        values.update(kwargs)
        if len(args) > len(names) or len(values) != len(names):
            missing = [n for n in names if n not in values]
            raise InputError(
                f"got {len(args) + len(kwargs)} inputs, expected {len(names)}: {_listed(names)}"
                + (f"; missing {_listed(missing)}" if missing else "")
            )
        return [values[n] for n in names]


def _in_child() -> None:
    """A fork copies the thread that calls it and no other: the pools of the parent have no threads here."""
    for runner in list(_RUNNERS):
        runner._pool_lock, runner._pool = threading.Lock(), None


os.register_at_fork(after_in_child=_in_child)


def _tensor_info(entry: Mapping[str, Any]) -> TensorInfo:
    shape = entry.get("shape")
    return TensorInfo(str(entry["name"]), entry.get("dtype", ""), None if shape is None else tuple(shape))


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def load(
    path: str | PathLike[str],
    *,
    threads: int | None = None,
    workers: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Runner:
    """Load a library that ``export_library`` wrote.

    Parameters
    ----------
    path : path-like
        The ``.so``.
    threads, workers, options : optional
        As for `Runner`.

    Raises
    ------
    InputError
        If ``threads`` or ``workers`` is not a positive number, or an option is unknown.
    MissingFileError
        If there is no such file.
    ArtifactError
        If it is no such library, is damaged, or was written by an incompatible version.
    OutOfFilesError, OutOfMemoryError
        If no descriptor or no memory is left.
    """
    if not isinstance(path, (str, PathLike)):
        raise ArgumentTypeError(f"path is a {type(path).__name__}; expected that of a library")
    path = Path(path)
    try:
        module = library_file.load(path)
    except FileNotFoundError as error:
        raise MissingFileError(f"no file {path}; expected a library written by export_library") from error
    except (ArtifactError, MemoryError, OSError) as error:
        if (resources := out_of_resources(error)) is not None:
            raise resources from error
        if not isinstance(error, OSError):
            raise
        raise ArtifactError(
            f"cannot load {path}: {error.strerror or error}; expected a library written by export_library"
        ) from error
    return Runner(module, threads=threads, workers=workers, options=options)
