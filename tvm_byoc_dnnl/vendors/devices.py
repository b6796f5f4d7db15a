"""The memory of a vendor's device while a model runs: values that stay there from region to region."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm

from ..core.arguments import as_tensor
from ..core.errors import ByocError, VendorError
from ..regions.failure import describe

#: what follows a region's name in the names of its functions: itself, and the copies to its device and back
COPY_IN, COPY_OUT = ".copy_in", ".copy_out"
SUFFIXES = ("", COPY_IN, COPY_OUT)


class DeviceMemory:
    """The memory of a device and the queue of its work; a vendor derives its own, of which each runner makes one.

    A *buffer* is any object of the vendor's that stands for a tensor in this memory. It is given up when nothing refers
    to it. Any number of threads may call each function.

    Parameters
    ----------
    options : mapping
        The options of loading that `register_blob_runner` declares, with the user's values.
    """

    def __init__(self, options: Any) -> None:
        self.options = options

    def copy_in(self, tensor: tvm.runtime.Tensor) -> Any:
        """A buffer with the elements of a tensor of the host, dense and read-only.

        The tensor stays as it is until each buffer that was computed from it and is read by the host has been copied
        out. So the copy may be work in the queue, and a device that can read the host's memory needs none.
        """
        raise NotImplementedError

    def copy_out(self, buffer: Any) -> Any:
        """The elements of a buffer: an array of NumPy, or what has ``__dlpack__``, on the CPU.

        It may be a view of memory that the device does not write to for as long as the view is there.
        """
        raise NotImplementedError

    def enqueue(self, run: Callable[..., Any], *arguments: Any) -> Any:
        """Begin the work of a region: what ``run(*arguments)``, its function, gives.

        Arguments are buffers, or shapes. It gives a buffer, or a list with one for each result; they need not be
        computed before `wait`.
        """
        return run(*arguments)

    def wait(self, buffer: Any) -> None:
        """Return when a buffer is computed; it raises the error of its work. It is called before `copy_out`."""


class TvmMemory(DeviceMemory):
    """The memory of a device that TVM has an interface for; buffers are TVM's tensors.

    Parameters
    ----------
    options : mapping
        See `DeviceMemory`.
    device : tvm.runtime.Device
        Such as ``tvm.cuda(0)``.
    """

    def __init__(self, options: Any, device: Any) -> None:
        super().__init__(options)
        self.device = device

    def copy_in(self, tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """See `DeviceMemory.copy_in`."""
        return tensor.copyto(self.device)

    def copy_out(self, buffer: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """See `DeviceMemory.copy_out`."""
        return buffer.copyto(tvm.cpu())

    def wait(self, buffer: Any) -> None:
        """See `DeviceMemory.wait`."""
        self.device.sync()


class Held:
    """A memory, for as long as a region refers to it."""

    def __init__(self, memory: Any) -> None:
        for name in ("copy_in", "copy_out", "enqueue", "wait"):
            if not callable(getattr(memory, name, None)):
                raise TypeError(f"memory= gave {memory!r}, which has no function {name}; derive it from DeviceMemory")
        self.memory = memory


class OnDevice:
    """A value that is on a device, as TVM's machine passes it on."""

    __slots__ = ("buffer", "where")

    def __init__(self, buffer: Any, where: str) -> None:
        self.buffer = buffer
        #: the region that computes it, for messages
        self.where = where


def resident(run: Callable[..., Any], held: Held, where: str, results: int) -> dict[str, Callable[..., Any]]:
    """The functions of a region whose values stay on a device: what follows its name → the function.

    The region's own function takes values on the device, or else tensors of the host, with its results behind them.

    Parameters
    ----------
    run : callable
        ``run(*buffers)``.
    held : Held
        The memory of the runner.
    where : str
        The region and its compiler, for messages.
    results : int
        The number of its results.

    Returns
    -------
    dict
        They raise `VendorError`.
    """

    def copy_in(tensor: Any) -> OnDevice:
        with naming(where, "copy_in"):
            return OnDevice(_there(held.memory.copy_in(tensor), where, "copy_in"), where)

    def copy_out(value: OnDevice, shape: Sequence[int], dtype: str, *_read_until_now: Any) -> tvm.runtime.Tensor:
        with naming(value.where, "wait"):
            held.memory.wait(value.buffer)
        with naming(value.where, "copy_out"):
            made = _there(held.memory.copy_out(value.buffer), value.where, "copy_out")
            tensor = as_tensor(made, "what copy_out returned", "an array or a tensor")
        if (got := (str(tensor.dtype), tuple(tensor.shape))) != (expected := (str(dtype), tuple(map(int, shape)))):
            raise VendorError(f"{value.where}: copy_out gave {_shown(got)}; the region's result is {_shown(expected)}")
        return tensor

    def enqueue(*arguments: Any) -> list[OnDevice]:
        buffers = [a.buffer if isinstance(a, OnDevice) else a for a in arguments]
        with naming(where, "run"):
            made = held.memory.enqueue(run, *buffers)
        found = list(made) if isinstance(made, (list, tuple)) else [made]
        if len(found) != results or any(buffer is None for buffer in found):
            raise VendorError(
                f"{where}: run gave {type(made).__name__}, which is {len(found)} value(s); expected a buffer of the "
                f"device for each of {results} result(s)"
            )
        return [OnDevice(buffer, where) for buffer in found]

    def region(*values: Any) -> Any:
        if any(map(_is_tensor, values)):
            given, filled = values[: len(values) - results], values[len(values) - results :]
            made = enqueue(*(copy_in(value) if _is_tensor(value) else value for value in given))
            for value, result in zip(made, filled, strict=True):
                result.copyfrom(copy_out(value, result.shape, str(result.dtype)))
            return None
        made = enqueue(*values)
        return made[0] if results == 1 else made

    return {"": region, COPY_IN: copy_in, COPY_OUT: copy_out}


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr")


def _there(made: Any, where: str, what: str) -> Any:
    if made is None:
        raise VendorError(f"{where}: {what} returned None; expected {'a buffer' if what == 'copy_in' else 'an array'}")
    return made


def _shown(tensor: tuple[str, tuple[int, ...]]) -> str:
    return f"{tensor[0]}{list(tensor[1])}"


@contextmanager
def naming(where: str, what: str) -> Iterator[None]:
    """Inside, code of a vendor runs while a model runs; its errors name the region."""
    try:
        yield
    except (ByocError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise VendorError(f"{where}: {what} raised {describe(error)}") from error
