"""One value of an ONNX graph, and one node with its inputs resolved."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from tvm import relax

from ...core.compilation import current
from ...core.errors import InputError, UnsupportedError
from ...core.tensor_info import STORED
from ...core.tvm_fast import is_a
from ...ir.relax_utils import shape_dims
from ...ir.tvm_compat import dtype_of
from .dim import Dim, Size, Undecided, at_least, max_of, min_of, quotient, size_of


def _binary(call: Any, of_bits: Any = None, *, is_turned: bool = False) -> Callable[[Any, Any], Any]:
    """An operator of two values, or of a value and a number; ``of_bits`` is that of integers."""

    def compute(a: Any, b: Any) -> Any:
        used = call if of_bits is None or a.dtype == "bool" else of_bits
        return current().emitting.elementwise(used, *((b, a) if is_turned else (a, b)))

    return compute


class Type(NamedTuple):
    """Dtype and dims of a value; ``dims`` is ``None`` where even the rank is unknown."""

    dtype: str
    dims: tuple[Size, ...] | None


#: dtype and sizes of the items of a sequence, as far as all of them have the same
Item = tuple[str, tuple[int | None, ...] | None]


class Words(NamedTuple):
    """Strings that a call chooses from, and the node that gives them, for messages."""

    table: tuple[str, ...]
    what: str

    def refused(self) -> UnsupportedError:
        """The error where they are read, or given back without being asked for."""
        return UnsupportedError(
            f"no Relax equivalent: {self.what} gives labels that are strings; ask for their indices by "
            "to_relax(model, string_labels=True), read its scores only, or export it with integers for labels"
        )


class Ways(NamedTuple):
    """The condition on which the rank of a value depends, and the types that it may have where it holds, or does not.

    Values of one ``If`` share ``flag``; ``name`` says for errors and decisions which it is.
    """

    flag: Value
    name: str
    node: Node
    types: tuple[list[Any], list[Any]]


class Value:
    """One value of an ONNX graph: an expression of Relax, known numbers, or both; or a sequence.

    Python's operators compute each element by itself, for the node that is being converted; ``==`` is identity. Known
    numbers have no expression until something reads them. They are of dtype ``object`` where some are open sizes;
    ``dtype`` says then what they are. If it is one of `STORED`, the expression has the dtype in which such numbers are
    kept. ``items`` are those of a sequence; if only a call knows them, ``item`` is their dtype and sizes. ``words`` say
    which strings the numbers of the expression stand for. ``ready`` waits until ``known`` is filled: threads may read
    weights while the model is imported.
    """

    __slots__ = ("_dims", "_known", "_ready", "dtype", "expr", "is_constant", "item", "items", "ways", "words")

    def __init__(
        self,
        expr: Any = None,
        known: np.ndarray | None = None,
        dtype: str = "",
        items: list[Value] | None = None,
        ready: Callable[[], None] | None = None,
        item: Item | None = None,
        words: Words | None = None,
    ) -> None:
        self.expr, self.items, self.item, self.words = expr, items, item, words
        self._known, self._ready = known, ready
        self._dims: Any = ...
        self.ways: Ways | None = None
        #: whether its numbers are known and none of them is an open size
        self.is_constant = False
        if known is not None:
            self.is_constant = known.dtype != object
            self._dims = known.shape
            self.dtype = dtype or str(known.dtype)
        else:
            ty = getattr(expr, "ty", None)
            self.dtype = dtype or (dtype_of(ty) if is_a(ty, relax.TensorType) else "")

    @property
    def known(self) -> np.ndarray | None:
        """Its numbers, if they are known; not to be written to."""
        if self._ready is not None:
            self._ready()
            self._ready = None
        return self._known

    @property
    def memory(self) -> np.ndarray | None:
        """The memory of its numbers, into which threads may be reading them."""
        return self._known

    @property
    def stored(self) -> str:
        """The dtype of its expression."""
        return STORED.get(self.dtype, self.dtype)

    @property
    def dims(self) -> tuple[Size, ...] | None:
        if self._dims is ...:
            ty = getattr(self.expr, "ty", None)
            dims = shape_dims(ty) if is_a(ty, relax.TensorType) else None
            self._dims = None if dims is None else tuple(d if type(d) is int else size_of(d) for d in dims)
        return self._dims

    @property
    def sizes(self) -> tuple[Size, ...]:
        if self.dims is None:
            raise current().emitting.refused("reads a tensor of unknown rank")
        return self.dims

    @property
    def rank(self) -> int | None:
        return None if self.dims is None else len(self.dims)

    @property
    def shape(self) -> tuple[int, ...] | None:
        dims: Any = self.dims
        return dims if dims is not None and all(type(d) is int for d in dims) else None

    @property
    def is_sequence(self) -> bool:
        return self.items is not None or self.item is not None

    @property
    def is_empty(self) -> bool:
        """Whether it is an optional without an element."""
        return self.expr is None and self.items is None and self._known is None

    @property
    def type(self) -> Type:
        return Type(self.dtype, self.dims)

    __array_ufunc__ = None  # arrays leave their operators to values
    __add__, __radd__ = _binary(relax.op.add), _binary(relax.op.add, is_turned=True)
    __sub__, __rsub__ = _binary(relax.op.subtract), _binary(relax.op.subtract, is_turned=True)
    __mul__, __rmul__ = _binary(relax.op.multiply), _binary(relax.op.multiply, is_turned=True)
    __truediv__, __rtruediv__ = _binary(relax.op.divide), _binary(relax.op.divide, is_turned=True)
    __floordiv__, __mod__ = _binary(relax.op.floor_divide), _binary(relax.op.floor_mod)
    __lt__, __le__ = _binary(relax.op.less), _binary(relax.op.less_equal)
    __gt__, __ge__ = _binary(relax.op.greater), _binary(relax.op.greater_equal)
    __and__ = _binary(relax.op.logical_and, relax.op.bitwise_and)
    __or__ = _binary(relax.op.logical_or, relax.op.bitwise_or)
    __xor__ = _binary(relax.op.logical_xor, relax.op.bitwise_xor)

    def __neg__(self) -> Any:
        return current().emitting.negative(self)

    def __invert__(self) -> Any:
        return current().emitting.logical_not(self)

    def __abs__(self) -> Any:
        return current().emitting.abs(self)

    def __str__(self) -> str:
        if self.items is not None:
            return f"sequence of {len(self.items)}"
        if self.item is not None:
            return f"sequence of tensors of {self.item[0] or 'unknown dtype'}"
        dims = "of unknown rank" if self.dims is None else f"({', '.join(map(str, self.dims))})"
        return f"{self.dtype or 'of unknown dtype'} {dims}"

    __repr__ = __str__


def numbers(values: Sequence[Size], shape: Sequence[int] | None = None) -> np.ndarray:
    """Integers and open sizes as an array: of dtype int64 if none of them is open, else ``object``."""
    array = np.empty(len(values), object)
    array[:] = values
    if not any(isinstance(v, Dim) for v in values):
        array = array.astype("int64")
    return array if shape is None else array.reshape(shape)


def whole(size: Size) -> Value:
    """An integer or an open size as a scalar, int64."""
    return Value(known=numbers([size], ()), dtype="int64")


def listed(*sizes: Size) -> Value:
    """Integers and open sizes as a vector, int64."""
    return Value(known=numbers(sizes), dtype="int64")


# ---- calls of which all operands are known ------------------------------------------------------------------

#: at most this many numbers are computed when a model is imported, and of open sizes as many as a model may have
MOST, MOST_OPEN = 1 << 14, 64


def few(*values: Value | None) -> list[np.ndarray] | None:
    """The numbers of values that are all known and small, else ``None``."""
    found = []
    for value in values:
        if value is None or value.memory is None or value.memory.size > MOST or value.known is None:
            return None
        found.append(value.known)
    return found


def known_result(function: Any, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Value | None:
    """What a call of Relax gives where all that it reads is known, open sizes included; ``None`` for all others."""
    moves, computes = _MOVES.get(function), _COMPUTES.get(function)
    like = next((x for x in operands if isinstance(x, Value)), None)
    if like is None or (moves is None and computes is None):
        return None
    given = [Value(known=np.array(x, like.dtype)) if isinstance(x, (bool, int, float)) else x for x in operands]
    known = few(*given) if all(isinstance(x, Value) for x in given) else None
    if known is None:
        return None
    with contextlib.suppress(Undecided, TypeError, ArithmeticError):  # it depends on the call, or is no number
        if moves is not None:
            return of_sizes(moves(*known, **attrs), like.dtype)
        if len({x.dtype for x in given[-2:]}) == 1:
            made = _computed(computes, known, is_real=given[-1].dtype.startswith("float"))
            return None if made is None else of_sizes(made, "bool" if function in _TESTS else given[-1].dtype)
    return None


def _computed(compute: Any, known: list[np.ndarray], *, is_real: bool) -> Any:
    """An operator of elements; ``None`` for more than are to be computed, and for axes that do not fit."""
    is_open = any(array.dtype == object for array in known)
    if is_open or (compute is np.divide and known[0].dtype.kind in "iu"):
        how = _EXACT if is_real else _OF_SIZES
        known, compute = [_integers(array) for array in known], how.get(compute, compute)
    try:
        count = math.prod(np.broadcast_shapes(*(array.shape for array in known)))
    except ValueError:
        return None
    if count > (MOST_OPEN if is_open else MOST) or any(array.dtype.kind not in "biufVO" for array in known):
        return None
    return compute(*known)


def of_sizes(array: Any, dtype: str) -> Value:
    """The value of integers and open sizes; of a NumPy dtype if none of them is open."""
    array = np.asarray(array)
    keeps = dtype == "object" or (array.dtype == object and any(isinstance(n, Dim) for n in array.flat))
    return Value(known=array if keeps else array.astype(dtype), dtype=dtype)


def _integer(value: Any) -> Any:
    """A number as an integer, as far as it is one."""
    if isinstance(value, float) and not value.is_integer():
        raise TypeError(f"{value} is no size")
    return int(value) if isinstance(value, (float, bool)) else value


def _integers(array: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(_integer, 1, 1)(array))


def _div(a: Any, b: Any) -> Any:
    """ONNX rounds towards zero, as ``//`` does for what is not negative."""
    if isinstance(b, int) and b < 0:
        a, b = -a, -b
    if isinstance(b, int) and b > 0 and not at_least(a, 0):
        return max_of(a, 0) // b - max_of(-a, 0) // b
    _without_signs(a, b)
    return a // b


def _without_signs(a: Any, b: Any) -> None:
    """What ends here may be negative, or divides by 0."""
    if b == 0 or not (at_least(a, 0) and at_least(b, 0)):
        raise Undecided


def _exact(a: Any, b: Any) -> Any:
    """Real numbers that are open sizes, divided: what is no whole number is computed in the call."""
    whole = quotient(a, b)
    if whole is None:
        raise Undecided
    return whole


def _fmod(a: Any, b: Any) -> Any:
    """With the sign of ``a``, as ``%`` is for what is not negative."""
    _without_signs(a, b)
    return a % b


def _taken(x: np.ndarray, indices: np.ndarray, axis: int, mode: str = "raise") -> np.ndarray:
    if x.size // max(x.shape[axis], 1) * indices.size > MOST:
        raise Undecided
    if mode == "raise" and indices.size and indices.min() < 0:  # counted from the first element already
        raise IndexError(f"there is no element {indices.min()}")
    return np.take(x, indices, axis, mode=mode)  # type: ignore[call-overload]


def _strided(x: np.ndarray, axes: Any, begin: Any, end: Any, strides: Any = None, **_: Any) -> np.ndarray:
    cut: list[Any] = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, begin, end, strides or [1] * len(axes), strict=True):
        cut[axis] = slice(*bounds)
    return x[tuple(cut)]


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, (list, tuple)) else axis


def _total(function: Any) -> Callable[..., Any]:
    """Of integers; those of real numbers are left to ONNX's reference."""
    return lambda x, axis, keepdims: function(_integers(x), axis=_axes(axis), keepdims=keepdims)


_TESTS = {
    getattr(relax.op, name): getattr(np, name)
    for name in ("equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_not", "logical_or")
}
#: Relax's operator → NumPy's of elements
_COMPUTES: dict[Any, Any] = {
    **_TESTS,
    **{
        getattr(relax.op, name): getattr(np, name)
        for name in ("abs", "add", "floor_divide", "maximum", "minimum", "multiply", "negative", "subtract", "where")
    },
    relax.op.bitwise_and: np.bitwise_and,
    relax.op.divide: np.divide,
    relax.op.floor_mod: np.mod,
    relax.op.logical_xor: np.logical_xor,
    relax.op.mod: np.fmod,
}
#: the same of integers and open sizes, where that is another
_OF_SIZES: dict[Any, Any] = {
    np.divide: np.frompyfunc(_div, 2, 1),
    np.equal: np.frompyfunc(lambda a, b: not a - b, 2, 1),
    np.fmod: np.frompyfunc(_fmod, 2, 1),
    np.maximum: np.frompyfunc(max_of, 2, 1),
    np.minimum: np.frompyfunc(min_of, 2, 1),
}
#: the same of sizes that were cast to real numbers
_EXACT = _OF_SIZES | {np.divide: np.frompyfunc(_exact, 2, 1)}
#: Relax's operator → NumPy's, whose results have the dtype of the first operand
_MOVES: dict[Any, Any] = {
    relax.op.expand_dims: lambda x, axis: np.expand_dims(x, _axes(axis)),
    relax.op.flip: np.flip,
    relax.op.permute_dims: np.transpose,
    relax.op.prod: _total(np.prod),
    relax.op.squeeze: lambda x, axis: np.squeeze(x, _axes(axis)),
    relax.op.strided_slice: _strided,
    relax.op.sum: _total(np.sum),
    relax.op.take: _taken,
}


class Node:
    """One node, with the values that it reads; ``opset`` is the version that the graph around it imports."""

    def __init__(
        self,
        op: str,
        domain: str,
        opset: int,
        name: str,
        inputs: Sequence[Value | None],
        attrs: Mapping[str, Any],
        wanted: Sequence[bool] = (True,),
        proto: onnx.NodeProto | None = None,
    ) -> None:
        self.op, self.domain, self.opset, self.name = op, domain, opset, name
        self.inputs = list(inputs)
        self.attrs = dict(attrs)
        self.wanted = tuple(wanted)
        self.proto = proto
        self.read = {"consumed_inputs"}  # attributes that were asked for, and one of opset 1 that changes no result
        self.read_by: Callable[[str], tuple[list[onnx.NodeProto], bool]] | None = None

    def input(self, i: int) -> Value | None:
        return self.inputs[i] if i < len(self.inputs) else None

    def needed(self, i: int) -> Value:
        """An input that the operator cannot do without."""
        value = self.input(i)
        if value is None:
            raise self.wrong(f"has no input {i}; the operator needs it")
        return value

    def readers(self, i: int) -> tuple[list[onnx.NodeProto], bool]:
        """The nodes that read an output, and whether the graph gives it back, or who reads it is not known."""
        if self.read_by is None or self.proto is None:
            return [], True
        return self.read_by(self.proto.output[i])

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: int, float, str, a tuple of these, an ndarray or a graph."""
        self.read.add(name)
        return self.attrs.get(name, default)

    def unused(self, *names: str) -> None:
        """Take note of attributes that change nothing here; others that are not read are refused."""
        self.read.update(names)

    def known(self, i: int, what: str = "") -> np.ndarray:
        """The numbers of an input, which must be known when the model is compiled."""
        value = self.needed(i)
        if value.known is None:
            raise self.refused(
                f"needs {what or f'its input {i}'} when it is compiled, and the model computes it in a call"
            )
        return value.known

    def ints(self, i: int, what: str = "") -> list[Any] | None:
        """The integers and open sizes of an input as a flat list; ``None`` where it is left out."""
        return None if self.input(i) is None else list(self.known(i, what).reshape(-1).tolist())

    @property
    def what(self) -> str:
        """Operator and name, as messages have them."""
        domain = f"{self.domain}." if self.domain else ""
        return f"{domain}{self.op} (node `{self.name}`)"

    def refused(self, reason: str) -> UnsupportedError:
        """The error for a node that is right and cannot be imported; ``reason`` follows the node's name."""
        return UnsupportedError(f"no Relax equivalent: {self.what} {reason}")

    def wrong(self, reason: str) -> InputError:
        """The error for a node that is not as ONNX defines it."""
        return InputError(f"{self.what} {reason}")
