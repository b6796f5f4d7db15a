"""The calls of Relax that entries emit, and what all of them need: constants, casts, sizes that agree, shapes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - tells NumPy the names of its dtypes
import numpy as np
import tvm
from onnx import TensorProto, helper
from tvm import relax

from ...core.compilation import knowing
from ...core.errors import ByocError, InputError, UnsupportedError
from ...core.tensor_info import STORED, as_stored
from ...core.tvm_fast import is_a
from ...ir.native_loop import native_call
from ...ir.relax_utils import make_constant, shape_dims
from ...ir.tvm_compat import analyzer, tensor_constant
from .dim import Dim, Size, at_least, equal, expr_of, product, substituted, symbols_of
from .value import MOST, MOST_OPEN, Node, Value, few, known_result

#: what comes of operands that the standard does not allow
_BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
_ALIGNMENT = 64  # bytes
LARGE = 1 << 12  # elements: smaller arrays are copied

Operand = Any  # a Value, an expression, a number or an array


class Emit:
    """Emits calls of Relax into one function: ``e.exp(x)`` for each operator of Relax, by its own name."""

    def __init__(self, bb: relax.BlockBuilder, apply: Callable[[Node], list[Any]] | None = None) -> None:
        self.bb = bb
        self._apply = apply
        self.weights: list[tuple[Any, np.ndarray]] = []  # large constants and the arrays that they were made of
        self.node: Node | None = None  # that is being converted
        self.given: set[Any] = set()  # the symbols that its parameters have, or that these decide
        self.settled: dict[Any, Size] = {}  # those of them that must be a number, or a call is refused

    def value(self, expr: Any) -> Value:
        """The value that an expression computes; a call is emitted."""
        return Value(self.bb.emit(expr) if is_a(expr, (relax.Call, relax.Tuple, relax.TupleGetItem)) else expr)

    def const(self, numbers: Any, dtype: str | None = None) -> Value:
        """A constant, which is not emitted until something reads it."""
        array = np.asarray(numbers)
        if dtype is not None and dtype != str(array.dtype):
            array = array.astype(np.dtype(dtype))
        return Value(known=array)

    def tensor(self, x: Operand, like: Value | None = None) -> Any:
        """The expression of a value; numbers have the dtype of ``like``."""
        if isinstance(x, Value):
            if x.words is not None:
                raise x.words.refused()
            if x.expr is None:
                x.expr = self._emitted(x)
            return x.expr
        if isinstance(x, (bool, int, float, np.ndarray, np.generic)):
            dtype = like.dtype if like is not None and not isinstance(x, (np.ndarray, np.generic)) else None
            return self.tensor(self.const(x, dtype))
        return x

    def _emitted(self, value: Value) -> Any:
        if value.is_constant:
            memory = value.memory
            assert memory is not None
            if value.dtype in STORED:
                known = value.known
                assert known is not None
                return _constant(as_stored(known), lambda: None)
            constant = _constant(memory, lambda: value.known)
            if memory.size >= LARGE:
                self.weights.append((constant, memory))
            return constant
        known = value.known
        if known is None:
            what = str(value) if value.is_sequence else f"a tensor of {value.dtype}"
            raise self.refused(f"reads {'an empty optional' if value.is_empty else what} as a tensor")
        if known.size > MOST_OPEN:
            raise self.refused(f"computes {known.size} numbers from open sizes; the limit is {MOST_OPEN}")
        made = self.bb.emit(relax.op.shape_to_tensor(self.shape(known.reshape(-1).tolist())))
        if known.ndim != 1:
            made = self.bb.emit(relax.op.reshape(made, known.shape))
        return made if value.dtype == "int64" else self.bb.emit(relax.op.astype(made, value.dtype))

    def call(self, function: Callable[..., Any], *operands: Operand, **attrs: Any) -> Value:
        known = known_result(function, operands, attrs)
        if known is not None:
            return known
        values = [x for x in operands if isinstance(x, Value)]
        if any(x.dims is None and is_a(getattr(x.expr, "ty", None), relax.TensorType) for x in values):
            raise self.refused("reads a tensor of unknown rank")  # no kernel can
        like = values[0] if values else None
        return self.value(function(*(x if x is None else self.tensor(x, like) for x in operands), **attrs))

    def __getattr__(self, name: str) -> Callable[..., Value]:
        return functools.partial(self.call, _function(name))

    def elementwise(self, function: Callable[..., Any], *operands: Operand) -> Value:
        """The result of one call for each element of operands that are broadcast."""
        if any(isinstance(x, (bool, int, float)) for x in operands):
            return self.call(function, *operands)
        return self.call(function, *self.broadcast(*operands))

    def where(self, condition: Value, a: Operand, b: Operand) -> Value:
        dtype = next((x.dtype for x in (a, b) if isinstance(x, Value)), None)
        given = (x if isinstance(x, Value) else self.const(x, dtype) for x in (a, b))
        return self.call(relax.op.where, *self.broadcast(condition, *given))

    def onnx(
        self, op: str, *inputs: Operand | None, opset: int = 0, domain: str = "", outputs: int = 1, **attrs: Any
    ) -> Any:
        """The result of another operator of ONNX, by the table; a list of ``outputs`` values if these are several."""
        assert self._apply is not None
        outer = self.node
        like = next((x for x in inputs if isinstance(x, Value)), None)
        given = [x if x is None or isinstance(x, Value) else Value(self.tensor(x, like)) for x in inputs]
        if not opset:
            opset = outer.opset if outer is not None and outer.domain == domain else NEWEST_USED
        name = outer.name if outer is not None else op
        found = self._apply(Node(op, domain, opset, name, given, attrs, (True,) * outputs))
        return found[0] if outputs == 1 else found

    @contextlib.contextmanager
    def emitting(self) -> Iterator[Emit]:
        """Inside, the operators of values go here."""
        with knowing(emitting=self):
            yield self

    @contextlib.contextmanager
    def converting(self, node: Node) -> Iterator[None]:
        outer, self.node = self.node, node
        try:
            with self.emitting():
                yield
        except ByocError:
            raise
        except _BROKEN as error:
            given = ", ".join(str(x) for x in node.inputs if x is not None)
            what = f"{node.what} is not as ONNX defines it, with inputs of {given or 'no tensor'}"
            raise InputError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self.node = outer

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """The parts one behind the other; a single part is itself."""
        if len(parts) == 1:
            return parts[0]
        known = few(*parts)
        if known is not None and sum(array.size for array in known) <= MOST:
            return Value(known=np.concatenate(known, axis), dtype=parts[0].dtype)
        return self.value(relax.op.concat([self.tensor(part) for part in parts], axis))

    def stack(self, parts: Sequence[Operand], axis: int) -> Value:
        return self.value(relax.op.stack([self.tensor(part) for part in parts], axis))

    def refused(self, reason: str) -> UnsupportedError:
        if self.node is not None:
            return self.node.refused(reason)
        return UnsupportedError(f"no Relax equivalent: the model {reason}")

    def shape(self, dims: Sequence[Size]) -> relax.ShapeExpr:
        return relax.ShapeExpr([expr_of(d) for d in dims])

    def zeros(self, dims: Sequence[Size], dtype: str) -> Value:
        return self.value(relax.op.zeros(self.shape(dims), dtype))

    def places(self, size: Size) -> Value:
        """The numbers from 0 on, int64."""
        if isinstance(size, int) and size <= MOST:
            return self.const(np.arange(size))
        return self.value(relax.op.arange(0, expr_of(size), 1, "int64"))

    def agree(self, x: Value, dims: Sequence[Size], *, hidden: bool = False) -> Value:
        """A value that must have these sizes when the model runs, which is checked then.

        ``hidden``: TVM is not to see the sizes that are compared. It drops comparisons that it takes for granted, and
        some operators refuse sizes that are not proved to be equal.
        """
        own = x.dims
        if own is not None and all(_is_same(a, b) for a, b in zip(own, dims, strict=True)):
            return x
        for a, b in zip(own or (), dims, strict=False):
            if isinstance(a, int) and isinstance(b, int) and a != b:
                raise self._unequal(a, b)
        for pair in zip(own or (), dims, strict=False):
            for a, b in (pair, pair[::-1]):
                if isinstance(a, Dim) and isinstance(b, int) and expr_of(a) in self.given:
                    self.settled[expr_of(a)] = b
        (dims,) = _settled([own or ()], [dims])
        tensor = self.tensor(x)
        if own is not None and any(
            hidden or symbol not in self.given or is_within(b, a)  # else TVM replaces the symbol without end
            for a, b in zip(own, dims, strict=True)
            if not _is_same(a, b)
            for symbol in (*symbols_of(a), *symbols_of(b))
        ):
            # TVM would take one symbol for the other from here on, and not in the types of what was before: their sizes
            # would be unlike. So it does not see the sizes that are compared. The copy has memory of its own: TVM gives
            # that of an argument to another tensor when nobody reads the argument itself any more.
            unknown = relax.TensorType(dtype=x.stored, ndim=len(dims))
            tensor = self.bb.emit(native_call("Copy", [tensor], unknown))
        if not is_a(tensor, relax.Var):
            tensor = self.bb.emit(tensor)
        return Value(self.bb.match_cast(tensor, relax.TensorType(self.shape(dims), x.stored)), dtype=x.dtype)

    def _unequal(self, *sizes: Size, either: str = "") -> InputError:
        what = f"needs sizes that are equal{either}, and they are {' and '.join(map(str, sizes))}"
        return self.node.wrong(what) if self.node is not None else InputError(f"the model {what}")

    def named(self, x: Value, sizes: Sequence[int | None] | None = None) -> Value:
        """A value whose sizes have names, if their number is known: a call may compute them, and others read them.

        ``sizes`` are those that are known already.
        """
        ty: Any = getattr(x.expr, "ty", None)
        rank = int(ty.ndim) if x.dims is None and is_a(ty, relax.TensorType) else -1
        if rank < 0:
            return x
        op = self.node.op.lower() if self.node is not None else "value"
        dims = [Dim.symbol(f"{op}_dim{axis}") if d is None else d for axis, d in enumerate(sizes or [None] * rank)]
        return Value(self.bb.match_cast(x.expr, relax.TensorType(self.shape(dims), x.stored)), dtype=x.dtype)

    def broadcast(self, *operands: Operand) -> list[Value]:
        """Values of which the sizes of each axis, counted from the last, are equal or the number 1."""
        like = next((x for x in operands if isinstance(x, Value)), None)
        given = [x if isinstance(x, Value) else Value(self.tensor(x, like)) for x in operands]
        return self.equalised(given, lambda axis: True)

    def equalised(
        self, given: Sequence[Value], applies: Callable[[int], bool], *, broadcasts: bool = True
    ) -> list[Value]:
        """Values of which the sizes of those axes are equal to which ``applies``; axes count from the last.

        ``broadcasts``: they may also be 1.
        """
        known = [x.dims for x in given]
        if any(d is None for d in known):
            return list(given)
        new = [list(d or ()) for d in known]
        for axis in range(-max(map(len, new), default=0), 0):
            here = [d for d in new if len(d) >= -axis]
            if applies(axis):
                sizes = [d[axis] for d in here if not broadcasts or d[axis] != 1]
                if len({size for size in sizes if isinstance(size, int)}) > 1:
                    raise self._unequal(*sizes, either=" or 1" if broadcasts else "")
                if broadcasts and len(set(sizes)) > 1:  # ``x[:, :1]`` has at most one element
                    sizes = [size for size in sizes if not at_least(1, size)] or sizes
                chosen = common(sizes) if sizes else 1
                for d in here:
                    if isinstance(d[axis], Dim):
                        d[axis] = chosen if not broadcasts or d[axis] in sizes else 1
        if all(isinstance(size, int) for d in known for size in d or ()):
            return list(given)
        new = _settled([d or () for d in known], new)
        agreed = [self.agree(x, dims) for x, dims in zip(given, new, strict=True)]
        if _are_seen(agreed, applies):
            return agreed
        shapes = (relax.TensorType(self.shape(dims), x.stored) for x, dims in zip(agreed, new, strict=True))
        return [
            Value(self.bb.match_cast(self.bb.emit(self.tensor(x)), ty), dtype=x.dtype)
            for x, ty in zip(agreed, shapes, strict=True)
        ]

    def cast(self, x: Operand, dtype: str) -> Value:
        """A value of another dtype, between dtypes that TVM converts as ONNX does."""
        if isinstance(x, Value) and x.dtype == dtype:
            return x
        if isinstance(x, Value) and (known := few(x)) is not None and (x.is_constant or dtype in _SIZES):
            return Value(known=known[0].astype(dtype) if x.is_constant else known[0], dtype=dtype)
        return self.call(relax.op.astype, x, dtype=dtype)

    def reshape(self, x: Value, dims: Sequence[Size]) -> Value:
        """A value in another shape; where it may have another number of elements, that is checked in the call."""
        if x.dims is not None and len(x.dims) == len(dims) and all(map(_is_same, x.dims, dims)):
            return x
        if x.dims is not None:
            count, wanted = product(x.dims), product(dims)
            known = few(x)
            if (
                known is not None
                and known[0].size < LARGE
                and count == wanted
                and not any(isinstance(d, Dim) for d in dims)
            ):
                return Value(known=known[0].reshape(dims), dtype=x.dtype)
            if not equal(count, wanted):
                if not isinstance(count, Dim) and not isinstance(wanted, Dim):
                    raise self.refused(f"reshapes {count} elements to ({', '.join(map(str, dims))})")
                nothing = self.zeros([0], x.stored) if count == 0 else None
                x = self.agree(nothing or self.call(relax.op.reshape, x, self.shape([count])), [wanted])
            if 0 in dims:  # a 0 keeps an axis in TVM's reshape
                return self.zeros(dims, x.stored)
        return self.call(relax.op.reshape, x, self.shape(dims))

    def cut(self, x: Value, axis: int, start: Size, end: Size) -> Value:
        """The elements of one axis from ``start`` to ``end``, which lie inside of it."""
        if x.dims is not None and start == 0 and x.dims[axis] == end:
            return x
        if start == end and x.known is None:
            return self.zeros([0 if a == axis else d for a, d in enumerate(x.dims or ())], x.stored)
        bounds = [[s if isinstance(s, int) else expr_of(s)] for s in (start, end)]
        return self.call(relax.op.strided_slice, x, axes=[axis], begin=bounds[0], end=bounds[1], assume_inbound=True)

    def transpose(self, x: Operand, axes: Sequence[int]) -> Value:
        if list(axes) == sorted(axes):
            return x if isinstance(x, Value) else self.value(x)
        return self.call(relax.op.permute_dims, x, axes=list(axes))

    def expand(self, x: Value, dims: Sequence[Size]) -> Value:
        """A value repeated along axes of size 1; its open sizes are those of the result, which a call checks."""
        if x.dims is not None and len(x.dims) <= len(dims):
            own = dims[len(dims) - len(x.dims) :]
            x = self.agree(x, [d if isinstance(d, int) else _repeated(d, s) for d, s in zip(x.dims, own, strict=True)])
            if len(x.sizes) == len(dims) and all(map(_is_same, x.sizes, dims)):
                return x
        known = few(x)
        if known is not None and not any(isinstance(d, Dim) for d in dims) and product(dims) <= MOST:
            return Value(known=np.broadcast_to(known[0], tuple(dims)), dtype=x.dtype)  # type: ignore[arg-type]
        return self.call(relax.op.broadcast_to, x, self.shape(dims))


#: the version of operators of another domain than the node's that `Emit.onnx` makes
NEWEST_USED = 21


#: what open sizes may be cast to: they are whole numbers in all
_SIZES = ("int64", "int32", "float32", "float64")


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    for module in (relax.op, relax.op.nn, relax.op.image, relax.op.vision):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"Relax has no operator {name}")


def elem_type(dtype: str) -> int:
    """ONNX's element type, 0 when it is unknown."""
    if dtype in ("", "object"):
        return TensorProto.STRING if dtype else TensorProto.UNDEFINED
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _settled(known: Sequence[Sequence[Size]], new: Sequence[Sequence[Size]]) -> list[list[Size]]:
    """New sizes of values: a symbol that has to be a number in one place is that number in all."""
    numbers = {
        expr_of(a): b
        for own, dims in zip(known, new, strict=True)
        for a, b in zip(own, dims, strict=False)
        if isinstance(a, Dim) and type(b) is int
    }
    return [[substituted(d, numbers) for d in dims] for dims in new]


def _are_seen(values: Sequence[Value], applies: Callable[[int], bool]) -> bool:
    """Whether TVM sees that sizes are equal: it does not of ``(n - m) // 4`` and ``(n + 3*m) // 4 - m``."""
    prover, first = analyzer(), dict[int, Any]()
    for x in values:
        dims = () if x.expr is None else shape_dims(x.expr.ty) or ()
        for axis, expr in zip(range(-1, -1 - len(dims), -1), reversed(dims), strict=True):
            if not applies(axis) or (isinstance(expr, int) and expr == 1):
                continue
            other = first.setdefault(axis, expr)
            is_plain = all(isinstance(d, int) or is_a(d, tvm.tirx.Var) for d in (other, expr))
            if not is_plain and not prover.can_prove_equal(other, expr):
                return False
    return True


def split_last(e: Emit, x: Value, widths: Sequence[Size]) -> list[Value]:
    """Parts of these widths along the last axis, which is that wide."""
    ends = list(itertools.accumulate(widths))
    x = e.agree(x, [*x.sizes[:-1], ends[-1]])
    return [e.cut(x, len(x.sizes) - 1, start, end) for start, end in zip([0, *ends], ends, strict=False)]


def pieces(e: Emit, x: Value, axis: int, count: int) -> list[Value]:
    """The elements of an axis, which has so many, each as a tensor without it."""
    rest = [d for i, d in enumerate(x.sizes) if i != axis]
    return [e.reshape(e.strided_slice(x, axes=[axis], begin=[i], end=[i + 1]), rest) for i in range(count)]


def common(sizes: Sequence[Size]) -> Size:
    """The one of these sizes, which must be equal, that all others are cast to: a number, or the first that can be.

    A symbol cannot be given by an expression of itself: TVM would put the expression in its place without end. A
    picture of height ``n`` that was halved and doubled again has the height ``n // 2 * 2``.
    """
    found = [s for s in sizes if isinstance(s, int)]
    return found[0] if found else next(s for s in sizes if not any(is_within(s, other) for other in sizes))


def _repeated(size: Dim, wanted: Size) -> Size:
    """The size that an axis has before it is repeated to another size; of ``x[:, :1]`` it is 1."""
    return 1 if size != wanted and at_least(1, size) else wanted


def is_within(size: Size, other: Size) -> bool:
    """Whether a symbol is a part of another expression."""
    if not isinstance(size, Dim) or not isinstance(other, Dim) or size == other:
        return False
    own = expr_of(size)
    return is_a(own, tvm.tirx.Var) and any(own.same_as(symbol) for symbol in symbols_of(other))


def _is_same(a: Size, b: Size) -> bool:
    return a == b or equal(a, b)


def _constant(memory: np.ndarray, complete: Callable[[], Any]) -> Any:
    """A constant: small ones are copied, large ones keep their memory, into which threads may still be reading."""
    if memory.size >= LARGE and not (memory.size and 0 in memory.strides):
        if not is_as_tvm_wants(memory):
            complete()
        return tensor_constant(as_tensor(memory))
    complete()
    if memory.dtype.isbuiltin == 1 and memory.dtype.kind in "biuf":
        return make_constant(np.ascontiguousarray(memory).reshape(memory.shape))
    return relax.const(memory, str(memory.dtype))


def as_tensor(array: np.ndarray) -> tvm.runtime.Tensor:
    """A tensor of ``array``: its own memory, if that is as TVM wants it."""
    return tvm.runtime.from_dlpack(array) if is_as_tvm_wants(array) else tvm.runtime.tensor(array)


def is_as_tvm_wants(array: np.ndarray) -> bool:
    """Whether a tensor can have an array's own memory; it has a copy else."""
    return array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0
