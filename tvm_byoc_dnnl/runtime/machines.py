"""What runs a module: a virtual machine for each thread; what TVM's errors say about sizes and memory; and what a call
takes and returns.

That is done with as little Python as possible for usual arrays: dense, aligned tensors on the CPU. Behind a run of the
model this code is no longer in the processor's caches, and each line costs several times what a loop measures. So what
can be known of an input is computed once, and an array that fits is not examined further. All other values take the way
with all checks and messages.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from ..core import _native
from ..core._native import limited
from ..core.arguments import as_copy, as_tensor, as_view
from ..core.compilation import knowing
from ..core.errors import ArtifactError
from ..core.tensor_info import TensorInfo
from ..core.tvm_fast import items
from ..pipeline.metadata import FALLBACK_FUNCTIONS, read_account
from ..vendors.blobs import Opening

#: TVM's messages where two sizes, which the model needs to be equal, are not
_UNEQUAL = re.compile(r"match_cast error|Mismatched .* on argument #")
NO_MEMORY = re.compile(r"std::bad_alloc|std::bad_array_new_length|vector::(reserve|_M)")
_logger = logging.getLogger("tvm_byoc_dnnl")


_LONGEST_END = 5.0  # seconds
_computing: set[int] = set()  # threads
_ends = False


class Computing:
    """Around a call of TVM: a daemon thread that comes back from one while Python ends would abort the process."""

    def __enter__(self) -> None:
        _computing.add(threading.get_ident())
        if _ends and threading.current_thread().daemon:
            _computing.discard(threading.get_ident())
            threading.Event().wait()

    def __exit__(self, *_: object) -> None:
        _computing.discard(threading.get_ident())


@atexit.register
def _wait_for_calls() -> None:
    global _ends
    _ends = True
    end = time.monotonic() + _LONGEST_END
    while _computing - {threading.get_ident()} and time.monotonic() < end:
        time.sleep(0.001)


os.register_at_fork(after_in_child=_computing.clear)


class Machines:
    """A module, and a virtual machine for each thread that calls it: a machine keeps its stack in itself."""

    def __init__(
        self,
        module: tvm.runtime.Module,
        entry: str,
        threads: int | None,
        options: Mapping[str, Any],
        is_described: bool = False,
    ) -> None:
        self.module = module
        #: TVM keeps all freed tensors, and reuses those of one size only: with open sizes the memory would grow
        self.pooled = True
        self._entry = entry
        self._options = options
        self._is_described = is_described
        self._threads = threads
        self._local = threading.local()

    def start(self) -> relax.VirtualMachine:
        made: list[relax.VirtualMachine] = []
        self._local.entry = self._entry  # which another thread may change
        memory = "pooled" if self.pooled else "naive"
        make = limited(lambda: made.append(relax.VirtualMachine(self.module, tvm.cpu(), memory)), self._threads)
        opening = Opening(self._options, is_described=self._is_described)
        with knowing(opening=opening):
            try:
                make()  # the first machine makes the plans, which are for a number of threads
            except ArtifactError as error:
                if not self._has_host_form():
                    raise
                opening.is_described = True
                make()
                self._local.machine = made[0]
                if self._local.entry in FALLBACK_FUNCTIONS.values() or self.without_devices(error) is None:
                    raise
        self._local.machine = made[0]
        self._local.function = limited(made[0][self._local.entry], self._threads)
        return made[0]

    def function(self) -> Any:
        if not hasattr(self._local, "function"):
            self.start()
        return self._local.function

    def _has_host_form(self) -> bool:
        """Whether the code has the form without devices, before a machine can be made."""
        try:
            code = str(self.module["as_text"]())
        except AttributeError:  # no executable
            return False
        return any(f"@{name}:" in code for name in FALLBACK_FUNCTIONS.values())

    def without_devices(self, error: Exception) -> Any:
        """The model's function in which TVM computes what others did, after an error; None where it has none."""
        module = self._local.machine.module
        form = next((f for f in FALLBACK_FUNCTIONS.items() if module.implements_function(f[1])), None)
        if form is None or self._local.entry != "main":
            return None
        goes_on, name = form
        if self._entry == "main":  # else another thread has said so
            _logger.warning(
                "a device failed, and TVM goes on %s: %s", "from now on" if goes_on is True else "once", error
            )
        if goes_on is True:
            self._entry = self._local.entry = name
        function = limited(self._local.machine[name], self._threads)
        if goes_on is True:
            self._local.function = function
        return function


def fault_of_sizes(message: str, is_static: bool) -> str | None:
    if _UNEQUAL.search(message):
        numbers = re.search(r"\((\d+) vs\. (\d+)\)", message)
        where = f", which needs {numbers[2]} where it has {numbers[1]}" if numbers else ""
        return f"the sizes of the inputs do not fit the model{where}"
    if rank := re.search(r"expect Tensor with ndim (\d+) but get (\d+)", message):
        return f"the sizes of the inputs do not fit the model, which needs {rank[1]} dims where a tensor has {rank[2]}"
    if NO_MEMORY.search(message) and not is_static:
        return (
            "the sizes of the inputs do not fit the model, which makes of them a tensor that is larger than the "
            "memory, or has a size below 0, as a window does that is larger than its picture"
        )
    return None


def calls_of(module: tvm.runtime.Module, error: Exception) -> str:
    account = read_account(module)
    region = re.match(r"region '([^']+)'", str(error))
    calls = [c for c in account.calls if c.region == region[1]] if account is not None and region else []
    names = [f"{c.name} ({c.op})" for c in calls]
    shown = ", ".join(names[:2]) + (f" … {names[-1]}, {len(names)} calls" if len(names) > 2 else "")
    return f"; the region computes {shown}" if names else ""


def give_back() -> None:
    """Free what TVM, the engines and malloc keep for later calls of this process."""
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    if _native.is_loaded():
        _native.function("tvm_byoc_dnnl.ForgetAll")()
    trim()


def trim() -> None:
    """Give memory that malloc keeps for later calls back to the system."""
    ctypes.CDLL(None).malloc_trim(0)


# ---- what a call takes and returns ------------------------------------------------------------------

#: what NumPy raises at a dtype that DLPack knows and NumPy does not
_NOT_OF_NUMPY = (BufferError, RuntimeError, TypeError, ValueError)


class Views:
    """Read-only arrays of tensors, which are taken back as these tensors."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Any, Any, tuple[Any, ...]]] = {}  # by the address of the array

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        try:
            array = np.from_dlpack(tensor)
        except _NOT_OF_NUMPY:
            array = as_view(tensor)
        array.flags.writeable = False
        key, tensors = id(array), self._tensors
        alive = weakref.ref(array, lambda _: tensors.pop(key, None))
        tensors[key] = (alive, tensor, (array.shape, array.strides, array.dtype))
        return array

    def tensor(self, array: np.ndarray) -> tvm.runtime.Tensor | None:
        """The tensor that this array is all of."""
        found = self._tensors.get(id(array))
        if found is None or found[0]() is not array or found[2] != (array.shape, array.strides, array.dtype):
            return None
        return found[1]


class InputPlan:
    """How one input becomes tensors; ``views`` are given where compiled code knows of its strides."""

    def __init__(self, info: TensorInfo, aligned: bool, views: Views | None) -> None:
        self._info, self._aligned, self._views = info, aligned, views
        self._name, self._text = f"input {info.name!r}", info.type_text
        is_usual = info.shape is not None and re.fullmatch(r"u?int\d+|float(16|32|64)", info.dtype)
        self._dtype = np.dtype(info.dtype) if is_usual or views is not None else np.dtype("V0")  # which no array has
        self._shape = info.shape if info.is_static else None
        self._rank = len(info.shape or ())
        self._axes = [axis for axis, size in enumerate(info.shape or ()) if isinstance(size, int)]
        self._sizes = [(info.shape or ())[axis] for axis in self._axes]

    def tensor(self, value: Any) -> tvm.runtime.Tensor:
        """In place where it can be, or a copy; an `InputError` where the value is no such tensor."""
        if type(value) is np.ndarray and value.dtype == self._dtype and self._fits(value.shape):
            if self._views is not None:
                seen = self._views.tensor(value)
                if seen is not None:
                    return seen
            else:
                flags = value.flags
                if flags.c_contiguous and value.size:
                    if self._aligned:
                        return as_copy(value)
                    if flags.writeable:
                        return tvm_ffi.from_dlpack(value)
        tensor = as_tensor(value, self._name, self._text, self._views is not None, self._aligned)
        self._info.check(str(tensor.dtype), tuple(int(d) for d in tensor.shape))
        return tensor

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self._shape is not None:
            return shape == self._shape
        if len(shape) != self._rank:
            return False
        return [shape[axis] for axis in self._axes] == self._sizes


def elements(result: Any) -> Any:
    """The list of results that an array of TVM is, which gives each of them three times as slowly; others as it is."""
    return items(result) if isinstance(result, tvm_ffi.Array) else result


def as_array(result: Any) -> Any:
    if not isinstance(result, tvm.runtime.Tensor):
        return [as_array(r) for r in result]
    try:
        return np.from_dlpack(result).copy()
    except _NOT_OF_NUMPY:
        return result.numpy()
