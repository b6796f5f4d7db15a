"""The memory of a vendor's device while a model runs: values that stay there from region to region.

Values that stay on a device between the regions of one namespace: copies where the host writes or reads them.

    y = my_npu_0(x)              a = my_npu_0.copy_in(x)
    z = my_npu_1(y)       →      b = my_npu_0(a)
    exp(z)                       c = my_npu_1(b)
                                 z = my_npu_1.copy_out(c, x)
                                 exp(z)

A copy back is made where the first reader is, so what comes before runs beside the device. It has the tensors of the
host from which its value was computed as further arguments: until then TVM does not use their memory for others, and a
device may read them late, or in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ..core.arguments import as_tensor
from ..core.errors import VendorError
from ..core.verdict import calling
from ..ir.order import IN_PLACE
from ..ir.relax_utils import is_op_call
from ..ir.tvm_compat import dtype_of, make_string, make_var

#: what follows a region's name in the names of its functions: itself, and the copies to its device and back
COPY_IN, COPY_OUT = ".copy_in", ".copy_out"
SUFFIXES = ("", COPY_IN, COPY_OUT)
#: inside, code of a vendor runs while a model runs; its errors name the region
running = functools.partial(calling, named=True, refuses=False)


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
    """

    def copy_in(tensor: Any) -> OnDevice:
        with running(f"{where}: copy_in"):
            return OnDevice(_there(held.memory.copy_in(tensor), where, "copy_in"), where)

    def copy_out(value: OnDevice, shape: Sequence[int], dtype: str, *_read_until_now: Any) -> tvm.runtime.Tensor:
        with running(f"{value.where}: wait"):
            held.memory.wait(value.buffer)
        with running(f"{value.where}: copy_out"):
            made = _there(held.memory.copy_out(value.buffer), value.where, "copy_out")
            tensor = as_tensor(made, "what copy_out returned", "an array or a tensor")
        if (got := (str(tensor.dtype), tuple(tensor.shape))) != (expected := (str(dtype), tuple(map(int, shape)))):
            raise VendorError(f"{value.where}: copy_out gave {_shown(got)}; the region's result is {_shown(expected)}")
        return tensor

    def enqueue(*arguments: Any) -> list[OnDevice]:
        buffers = [a.buffer if isinstance(a, OnDevice) else a for a in arguments]
        with running(f"{where}: run"):
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


class _Value(NamedTuple):
    """The form of a variable on the device, the region that knows how to copy it, and the host's tensors behind it."""

    var: Any
    symbol: str
    sources: tuple[Any, ...]


def with_residents(symbols: Mapping[Any, str], block: Any) -> Any:
    """A dataflow block whose values stay on a device from region to region; ``symbols`` names these regions' functions.

    It is the same one, if it calls no such region.
    """
    if not any(_is_call_of(b.value, symbols) for b in block.bindings):
        return block
    return relax.DataflowBlock(_Block(symbols).rewritten(block.bindings))


def _is_call_of(value: Any, symbols: Mapping[Any, str]) -> bool:
    return isinstance(value, relax.Call) and value.op in symbols


class _Block:
    def __init__(self, symbols: Mapping[Any, str]) -> None:
        self._symbols = symbols
        self._values: dict[Any, _Value] = {}  # variable → its form on the device
        self._owed: dict[Any, None] = {}  # variables of which the host has no form yet, in order
        self._made: list[Any] = []

    def rewritten(self, bindings: Any) -> list[Any]:
        for binding in bindings:
            var, value = binding.var, binding.value
            if isinstance(binding, relax.MatchCast) or not self._stays(var, value):
                writes = is_op_call(value) and value.op.name in IN_PLACE
                for read in list(self._owed) if writes else relax.analysis.free_vars(value):
                    self._copy_out(read)
                if writes:  # what was copied in before is another value now
                    self._values.clear()
                self._made.append(binding)
        for var in [v for v in self._owed if not isinstance(v, relax.DataflowVar)]:
            self._copy_out(var)
        return self._made

    def _stays(self, var: Any, value: Any) -> bool:
        """Whether a value is made on the device, and nothing of it on the host."""
        if _is_call_of(value, self._symbols):
            symbol = self._symbols[value.op]
            inputs = [self._copy_in(a, symbol) if isinstance(a.ty, relax.TensorType) else a for a in value.args]
            arguments = [a.var if isinstance(a, _Value) else a for a in inputs]
            sources = [source for a in inputs if isinstance(a, _Value) for source in a.sources]
            made = self._bind(var.name, _call(symbol, arguments, _on_device(value.ty)))
            self._values[var] = _Value(made, symbol, tuple(dict.fromkeys(sources)))
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._owed:
            whole = self._values[value.tuple_value]
            item = self._bind(var.name, relax.TupleGetItem(whole.var, value.index))
            self._values[var] = whole._replace(var=item)
        elif isinstance(value, relax.Var) and value in self._owed:
            self._values[var] = self._values[value]
        else:
            return False
        self._owed[var] = None
        return True

    def _copy_in(self, argument: Any, symbol: str) -> _Value:
        if argument not in self._values:
            made = self._bind("on_device", _call(symbol + COPY_IN, [argument], relax.ObjectType()))
            sources = (argument,) if isinstance(argument, relax.Var) else ()
            self._values[argument] = _Value(made, symbol, sources)
        return self._values[argument]

    def _copy_out(self, var: Any) -> None:
        """Bind the host's form of a variable, if that was not done yet."""
        if var not in self._owed:
            return
        del self._owed[var]
        value = self._values[var]
        if isinstance(var.ty, relax.TensorType):
            self._made.append(relax.VarBinding(var, _to_host(value, value.var, var.ty)))
            return
        fields = []
        for number, ty in enumerate(var.ty.fields):
            item = self._bind("on_device", relax.TupleGetItem(value.var, number))
            fields.append(self._bind("on_host", _to_host(value, item, ty)))
        self._made.append(relax.VarBinding(var, relax.Tuple(fields)))
        del self._values[var]

    def _bind(self, name: str, value: Any) -> Any:
        ty = value.ty_args[0] if isinstance(value, relax.Call) else relax.ObjectType()
        var = make_var(name, ty, is_dataflow=True)
        self._made.append(relax.VarBinding(var, value))
        return var


def _on_device(ty: Any) -> Any:
    return relax.TupleType([_on_device(t) for t in ty.fields]) if hasattr(ty, "fields") else relax.ObjectType()


def _to_host(value: _Value, var: Any, ty: Any) -> Any:
    arguments = [var, ty.shape, make_string(dtype_of(ty)), *value.sources]
    return _call(value.symbol + COPY_OUT, arguments, ty)


def _call(function: str, arguments: list[Any], ty: Any) -> Any:
    op = tvm.ir.Op.get("relax.call_pure_packed")
    return relax.Call(op, [relax.ExternFunc(function), *arguments], None, [ty])
