"""Run a compiled model: NumPy or DLPack in, NumPy out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import tvm

from ..core import _native
from ..core.arguments import as_tensor, as_view
from ..core.errors import (
    ArgumentTypeError,
    ArtifactError,
    ByocError,
    InputError,
    InputIndexError,
    InputValueError,
    OutOfMemoryError,
    VendorError,
    of_type,
    short,
)
from ..core.tensor_info import check_symbols
from ..pipeline.memory import CACHES_FUNCTION
from ..pipeline.metadata import read_metadata
from ..vendors.blobs import checked_run_options
from .base import BaseRunner, Company, loading, tensor_info
from .machines import (
    NO_MEMORY,
    Computing,
    InputPlan,
    Machines,
    Views,
    as_array,
    calls_of,
    elements,
    fault_of_sizes,
    give_back,
)
from .native import NativeRunner


class Runner(BaseRunner):
    """A compiled model as a Python callable; any number of threads may call it.

    It is a context manager, too. Its memory is freed at the end of the context, at `close`, or when no reference to the
    runner is left.

    Parameters
    ----------
    ex : tvm.runtime.Executable, tvm.runtime.Module, path or Runner
        The result of `compile`, a library that ``export_library`` wrote, or its path; or another runner, whose module
        this one shares.
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
        If ``threads`` or ``workers`` is not a positive number, an option is unknown, or ``ex`` is something else.
    ArtifactError, MissingFileError
        As of `load`.
    NativeLibraryError
        If the native library that the model needs cannot be loaded.
    """

    _is_described = False

    def __init__(
        self,
        ex: Any,
        entry: str = "main",
        *,
        threads: int | None = None,
        workers: int | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(threads if threads is not None else getattr(ex, "threads", None), workers)
        module = _module_of(ex)
        if self.threads is not None or _native.available():
            _native.load()
        # A relax.VirtualMachine keeps its stack in itself: each thread needs one of its own. They share the module.
        machines = Machines(module, entry, self.threads, checked_run_options(options), self._is_described)
        self._model = machines
        self.entry = of_type("entry", entry, str)
        try:
            vm = machines.start()
        except AttributeError as error:
            if "no function 'vm_load_executable'" in str(error):
                raise InputError("the module has no Relax function; expected one to call, such as `main`") from error
            if f"no function '{entry}'" not in str(error):
                raise
            raise InputError(
                f"entry is {entry!r}, which the model does not have; expected one of its public functions"
            ) from error
        metadata = (read_metadata(vm) if entry == "main" else None) or {}
        has_caches = entry == "main" and vm.module.implements_function(CACHES_FUNCTION)
        # positions of the inputs and of the outputs that are caches
        self._caches = tuple(frozenset(map(int, side)) for side in vm[CACHES_FUNCTION]()) if has_caches else ()
        self._describes_inputs = "inputs" in metadata
        self._views = Views()
        if self._caches:
            self._use_caches = _native.function("tvm_byoc_dnnl.UseCaches")
        self.inputs = tuple(map(tensor_info, metadata.get("inputs", ())))
        unaligned, grown = metadata.get("unaligned", ()), self._caches[0] if self._caches else ()
        self._plans = [
            InputPlan(info, i not in unaligned, self._views if i in grown else None)
            for i, info in enumerate(self.inputs)
        ]
        #: names of the inputs to which compiled code may append in place
        self.grown = frozenset(info.name for i, info in enumerate(self.inputs) if i in grown)
        self._is_static = all(i.is_static for i in self.inputs)
        if not self._is_static:
            machines.pooled = False
            machines.start()
        self.outputs = tuple(map(tensor_info, metadata.get("outputs", ())))

    @property
    def module(self) -> tvm.runtime.Module:
        """The module behind it; another runner may be made of it."""
        return self._open().module

    @property
    def company(self) -> Company:
        """How the calls of its regions fared beside other programs and other calls, since the model was loaded."""
        counters = [json.loads(region["plans"]()) for region in _native.regions([self.module]).values()]
        return Company(*(sum(each[name] for each in counters) for name in Company._fields))

    def _give_back(self) -> None:
        give_back()

    def _call(self, model: Machines, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> np.ndarray | list[np.ndarray]:
        return self._to_numpy(self._computed(model, self.tensors(args, kwargs)))

    def _write(
        self, model: Machines, given: list[np.ndarray], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        result = self._computed(model, self.tensors(args, kwargs))
        results = list(map(as_view, [result] if isinstance(result, tvm.runtime.Tensor) else result))
        self._check_given(given, [(r.shape, r.dtype) for r in results])
        shared = [any(np.may_share_memory(r, array) for array in given) for r in results]  # an input that is a result
        for array, r in zip(given, [r.copy() if s else r for r, s in zip(results, shared, strict=True)], strict=True):
            np.copyto(array, r)

    def appended(self, inputs: Mapping[str, Any]) -> dict[str, tvm.runtime.Tensor]:
        """Run the model as a call does, with caches from step to step as they are; gives all outputs by their names.

        A tensor of TVM is neither checked nor copied. What a step gives for one of the `grown` is an input of the next.
        """
        values = self._in_order((inputs,), {})
        is_ready = [isinstance(value, tvm.runtime.Tensor) for value in values]
        tensors = [v if r else p.tensor(v) for p, v, r in zip(self._plans, values, is_ready, strict=True)]
        result = self._computed(self._open(), tensors)
        results = [result] if isinstance(result, tvm.runtime.Tensor) else result
        return dict(zip((o.name for o in self.outputs), results, strict=True))

    def _computed(self, model: Machines, tensors: Sequence[tvm.runtime.Tensor]) -> Any:
        """What the model gives for checked inputs; its errors say whose fault they are."""
        try:
            with Computing():
                return elements(self._run(model, tensors))
        except IndexError as error:
            raise InputIndexError(
                f"{error}: {self._givers_of(tensors)}; give indices that are within the axis"
            ) from error
        except InputValueError as error:
            raise InputValueError(f"{error}: {self._givers_of(tensors)}") from error
        except (RuntimeError, ValueError) as error:
            fault = None if isinstance(error, ByocError) else fault_of_sizes(str(error), self._is_static)
            if fault is None and NO_MEMORY.search(str(error)):
                raise OutOfMemoryError(f"the model's tensors need more memory than there is ({error})") from error
            if fault is None:
                raise
            raise InputError(f"{fault}: {self._shapes_of(tensors)}; give sizes that it was exported for") from error

    def tensors(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Inputs by position and name, checked, as the TVM tensors that `run_tvm` takes."""
        values = self._in_order(tuple(args) if isinstance(args, (list, tuple)) else (args,), kwargs or {})
        if not self._describes_inputs:
            return [as_tensor(v, f"input {i}", "a tensor") for i, v in enumerate(values)]
        tensors = [plan.tensor(value) for plan, value in zip(self._plans, values, strict=True)]
        if not self._is_static:
            check_symbols(self.inputs, [tensor.shape for tensor in tensors])
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
        return self.tensors(self._made_up(seed, {} if shapes is None else shapes))

    def _make_plans(self, model: Machines, arrays: list[np.ndarray]) -> None:
        make = _native.function("tvm_byoc_dnnl.MakePlans")
        before = make(True)
        try:
            self._run(model, self.tensors(arrays))
        finally:
            make(before)

    @staticmethod
    def _called(machines: Machines, tensors: Sequence[tvm.runtime.Tensor]) -> Any:
        """What the model's function gives; where a device fails, the form without it, if the model has one."""
        try:
            return machines.function()(*tensors)
        except (ArtifactError, VendorError) as error:
            if (host := machines.without_devices(error)) is not None:
                return host(*tensors)
            raise type(error)(f"{error}{calls_of(machines.module, error)}") from error

    def run_tvm(self, *tensors: tvm.runtime.Tensor) -> Any:
        """The zero-copy form: TVM tensors in, TVM tensors out, no checks but the VM's own."""
        for tensor in tensors:
            if not isinstance(tensor, tvm.runtime.Tensor):  # the VM's check of others may end the process
                raise ArgumentTypeError(f"run_tvm got {short(tensor)}; expected what tensors(...) returns")
        return self._called(self._open(), tensors)

    def _run(self, machines: Machines, tensors: Sequence[tvm.runtime.Tensor]) -> Any:
        """The same with caches in buffers that grow, where the model has some."""
        if not self._caches:
            return self._called(machines, tensors)
        before = self._use_caches(True)
        try:
            return self._called(machines, tensors)
        finally:
            self._use_caches(before)

    def _to_numpy(self, result: Any) -> Any:
        if not self._caches or isinstance(result, tvm.runtime.Tensor):
            return as_array(result)
        return [self._views.array(r) if i in self._caches[1] else as_array(r) for i, r in enumerate(result)]


def _module_of(ex: Any) -> tvm.runtime.Module:
    if isinstance(ex, (str, PathLike)):
        with loading(ex) as path:
            return _native.load_library(path)
    if isinstance(ex, NativeRunner):
        ex = ex.with_tvm
    if isinstance(ex, Runner):
        return ex.module
    if not isinstance(ex, (tvm.runtime.Executable, tvm.runtime.Module)):
        raise ArgumentTypeError(
            f"ex is {short(ex)}; expected what compile(...) returns, or the path of a library that it wrote"
        )
    return ex.jit() if isinstance(ex, tvm.runtime.Executable) else ex


class _Described(Runner):
    _is_described = True


def described(model: Any) -> Runner:
    """For what it says of itself: a region that this machine cannot open is an error of its call."""
    return _Described(model)
