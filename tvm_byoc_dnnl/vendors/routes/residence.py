"""Values that stay on a device between the regions of one namespace: copies where the host writes or reads them.

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

from collections.abc import Mapping
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ...ir.order import IN_PLACE
from ...ir.relax_utils import is_op_call
from ...ir.tvm_compat import dtype_of, make_string, make_var, var_name
from ..devices import COPY_IN, COPY_OUT


class _Value(NamedTuple):
    """The form of a variable on the device, the region that knows how to copy it, and the host's tensors behind it."""

    var: Any
    symbol: str
    sources: tuple[Any, ...]


class Residence:
    """Rewrites a dataflow block; to be given to `rewrite_blocks`.

    Parameters
    ----------
    symbols : mapping of GlobalVar to str
        The regions of a namespace, and the names of their functions.
    """

    def __init__(self, symbols: Mapping[Any, str]) -> None:
        self._symbols = symbols

    def __call__(self, block: Any) -> Any:
        """The block; the same one, if it calls no such region."""
        if not any(_is_call_of(b.value, self._symbols) for b in block.bindings):
            return block
        return relax.DataflowBlock(_Block(self._symbols).rewritten(block.bindings))


def _is_call_of(value: Any, symbols: Mapping[Any, str]) -> bool:
    return isinstance(value, relax.Call) and value.op in symbols


class _Block:
    def __init__(self, symbols: Mapping[Any, str]) -> None:
        self._symbols = symbols
        self._values: dict[Any, _Value] = {}  # variable → its form on the device
        self._owed: dict[Any, None] = {}  # variables of which the host has no form yet, in order
        self._made: list[Any] = []

    def rewritten(self, bindings: Any) -> list[Any]:
        """The bindings in the place of those of a block."""
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
            made = self._bind(var_name(var), _call(symbol, arguments, _on_device(value.ty)))
            self._values[var] = _Value(made, symbol, tuple(dict.fromkeys(sources)))
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._owed:
            whole = self._values[value.tuple_value]
            item = self._bind(var_name(var), relax.TupleGetItem(whole.var, value.index))
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
    return (
        relax.TupleType([relax.ObjectType() for _ in ty.fields])
        if isinstance(ty, relax.TupleType)
        else relax.ObjectType()
    )


def _to_host(value: _Value, var: Any, ty: Any) -> Any:
    arguments = [var, ty.shape, make_string(dtype_of(ty)), *value.sources]
    return _call(value.symbol + COPY_OUT, arguments, ty)


def _call(function: str, arguments: list[Any], ty: Any) -> Any:
    op = tvm.ir.Op.get("relax.call_pure_packed")
    return relax.Call(op, [relax.ExternFunc(function), *arguments], None, [ty])
