"""What runners of both runtimes have in common; nothing of TVM is imported."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from html import escape
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ..core.errors import (
    ArgumentTypeError,
    ArtifactError,
    InputError,
    MissingFileError,
    check_number,
    out_of_resources,
)
from ..core.tensor_info import TensorInfo, checked_shapes, random_arrays, with_named_sizes

_Self = TypeVar("_Self", bound="BaseRunner")
_RUNNERS: weakref.WeakSet[BaseRunner] = weakref.WeakSet()


class Company(NamedTuple):
    """How a model's regions were called beside whatever else used the cores, since the model was loaded."""

    #: calls that were slower than fewer threads would have been, because a thread had to share its core
    late: int = 0
    #: calls on fewer threads than they may use: after late ones, beside other calls, or because the region is so small
    narrowed: int = 0


class BaseRunner:
    """A model as a Python callable; ``_call`` of a subclass runs ``_model``, which is None when it is closed."""

    #: the model's inputs in order, under the names that its author gave them; empty when the file does not say
    inputs: tuple[TensorInfo, ...] = ()
    #: the model's outputs in order; empty when the file does not say
    outputs: tuple[TensorInfo, ...] = ()
    _describes_inputs = True

    def __init__(self, threads: int | None, workers: int | None) -> None:
        self.threads = check_number("threads", threads)
        self.workers = check_number("workers", workers) or self._usual_workers()
        self._model: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()
        _RUNNERS.add(self)

    def _usual_workers(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return max(1, cores // self.threads) if self.threads is not None else 1

    def _open(self) -> Any:
        model = self._model
        if model is None:
            raise InputError("this Runner is closed; load the model again, or make another Runner of its module before")
        return model

    def close(self) -> None:
        """Give back the model's plans, its packed weights and the mapped file; every later call is an `InputError`.

        So is what the process keeps for later calls of any model: TVM's pool of tensors, and the code that engines
        have made for layers.

        Calls that run in other threads, and those that were submitted before, still end normally. Other references to
        ``module``, or to a function of it, keep the module loaded.
        """
        with self._pool_lock:
            pool, self._pool, self._model = self._pool, None, None
        if pool is not None:
            pool.shutdown(wait=False)
        self._give_back()

    def _give_back(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
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
        if self._model is None:
            return "<Runner, closed>"
        return f"<Runner: {', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))}>"

    def _repr_html_(self) -> str:
        if self._model is None:
            return f"<pre>{escape(repr(self))}</pre>"
        rows = [
            f"<tr><td>{side}</td><td>{escape(info.name)}</td><td>{escape(info.type_text)}</td></tr>"
            for side, infos in (("input", self.inputs), ("output", self.outputs))
            for info in infos
        ]
        return f"<table>{''.join(rows)}</table>"

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs in order; empty when the file does not say."""
        return [i.name for i in self.inputs]

    # A list where there are several: with `Any`, a checker lets users take what they know it to be, as in typeshed.
    def __call__(self, *args: Any, **kwargs: Any) -> np.ndarray | Any:
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

    def _call(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> np.ndarray | list[np.ndarray]:
        raise NotImplementedError

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
            model = self._open()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="tvm_byoc_dnnl")
            return self._pool.submit(self._call, model, args, kwargs)

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
        several: Any = shapes if isinstance(shapes, (list, tuple)) else [shapes]
        for sizes in map(checked_shapes, several):
            self._make_plans(self._open(), self._made_up(0, with_named_sizes(self.inputs, sizes)))

    def _make_plans(self, model: Any, arrays: list[np.ndarray]) -> None:
        raise NotImplementedError

    def _made_up(self, seed: int, shapes: Mapping[str, Sequence[int | str]]) -> list[np.ndarray]:
        if not self._describes_inputs:
            raise InputError("this library does not describe its inputs; pass some")
        return random_arrays(self.inputs, seed, shapes)

    def named(self, *args: Any, **kwargs: Any) -> dict[str, np.ndarray]:
        """Run the model as a call does, and return the outputs by their names.

        An output that the file has no name for is ``output_0``, ``output_1`` ...
        """
        result = self(*args, **kwargs)
        values = result if isinstance(result, list) else [result]
        names = [o.name for o in self.outputs] or [f"output_{i}" for i in range(len(values))]
        return dict(zip(names, values, strict=True))

    def into(self, outputs: np.ndarray | Sequence[np.ndarray], *args: Any, **kwargs: Any) -> None:
        """Run the model as a call does, and write the outputs into arrays of the caller's.

        A model that runs without TVM writes there what it computes; of others the outputs are copied, but no memory is
        taken for them.

        Parameters
        ----------
        outputs : numpy.ndarray or sequence of numpy.ndarray
            One for each output, in order, of its dtype and shape; inputs may be among them.
        *args, **kwargs
            As for a call.

        Raises
        ------
        InputError
            As a call does, and if an array does not fit its output, which is then left as it was.
        """
        given: Any = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        self._write(self._open(), given, args, kwargs)

    def _write(self, model: Any, given: list[np.ndarray], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _check_given(self, given: Sequence[Any], results: Sequence[tuple[tuple[int, ...], np.dtype]]) -> None:
        """`InputError` unless these are arrays of the results' shapes and dtypes."""
        if len(given) != len(results):
            raise InputError(f"got {len(given)} arrays, expected {len(results)}: one for each output")
        for i, (array, (shape, dtype)) in enumerate(zip(given, results)):
            got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            if got != f"{dtype} {list(shape)}" or not array.flags.writeable:
                name = repr(self.outputs[i].name) if self.outputs else i
                raise InputError(
                    f"output {name} is {dtype} {list(shape)}; got {got}; give an array that can be written"
                )

    def _givers_of(self, tensors: Sequence[Any]) -> str:
        return f"the inputs or the model's constants have it, or the model computes it ({self._shapes_of(tensors)})"

    def _shapes_of(self, tensors: Sequence[Any]) -> str:
        return ", ".join(f"{i} is {list(t.shape)}" for i, t in zip(self.inputs, tensors))

    def _in_order(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        named = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs else None
        if named is not None:
            args, kwargs = (), named
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


def tensor_info(entry: Mapping[str, Any]) -> TensorInfo:
    shape = entry.get("shape")
    return TensorInfo(str(entry["name"]), entry.get("dtype", ""), None if shape is None else tuple(shape))


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


@contextmanager
def loading(path: str | PathLike[str]) -> Iterator[Path]:
    """The path of a library that is loaded inside, whose errors come out as the package's."""
    if not isinstance(path, (str, PathLike)) or "\0" in str(path):
        raise ArgumentTypeError(f"path is a {type(path).__name__}; expected that of a library")
    path = Path(path)
    try:
        yield path
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
