"""Arithmetic on constants, done by NumPy while the model is prepared.

TVM's own ``FoldConstant`` compiles and runs a function per fold, seconds for an ordinary network. A fold that
would make a constant much larger than its operands is not done, unless the reader needs a constant there
(the weights of a convolution made by ``broadcast_to``). Large weights that a product alone reads, and transposed, may
stay as they are, for a compiler that packs them from any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..core.tvm_fast import is_a, items
from .rewrite import Rules, Scope

_SMALL = 1 << 18  # bytes: a fold may always make this much
_GROWTH = 2  # a larger result may have this many times the bytes of the operands
_TRANSPOSED = 1 << 23  # bytes: smaller weights are transposed in less time than a pattern and its question take

# fold(call, shape of the result, *operands); None when it cannot be done. The caller fixes the dtype.
Fold = Callable[..., "np.ndarray | None"]


def _ints(values: Any) -> Any:
    if isinstance(values, relax.ShapeExpr):
        values = values.values
    elif isinstance(values, relax.Tuple):
        values = values.fields
    if not all(isinstance(v, (int, tirx.IntImm)) for v in values):
        return None
    return [int(v) for v in values]


def _view(_call: Any, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    return x.reshape(shape)


def _spread(_call: Any, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, shape)


def _astype(_call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
    return x if x.dtype.kind in "biu" or np.isfinite(x.astype("float64")).all() else None


def _permute(call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    axes = call.attrs.axes
    return np.transpose(x, None if axes is None else [int(a) for a in axes])


def _strided_slice(call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
    parts = [_ints(a) for a in call.args[1:]]
    if any(p is None for p in parts):
        return None
    axes, begin, end = parts[:3]
    strides = parts[3] if len(parts) > 3 else [1] * len(axes)
    index = [slice(None)] * x.ndim
    for axis, b, e, s in zip(axes, begin, end, strides, strict=True):
        if s < 0 and (e < 0 or b < 0):
            return None  # "one before the first element" and "last element" are both written -1
        index[axis] = slice(b, e, s)
    return x[tuple(index)]


def _take(call: Any, _shape: tuple[int, ...], x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    if indices.size and (indices.min() < 0 or indices.max() >= x.shape[axis]):
        return None  # the behaviour of TVM then depends on its mode
    return np.take(x, indices, axis)


def _gather_elements(call: Any, _shape: tuple[int, ...], x: np.ndarray, indices: np.ndarray) -> np.ndarray | None:
    axis = int(call.attrs.axis) % x.ndim
    if indices.size and (indices.min() < 0 or indices.max() >= x.shape[axis]):
        return None
    own = [slice(None) if a == axis else slice(size) for a, size in enumerate(indices.shape)]  # there may be fewer
    return np.take_along_axis(x[tuple(own)], indices, axis)


def _index_tensor(_call: Any, _shape: tuple[int, ...], x: np.ndarray, *indices: np.ndarray) -> np.ndarray | None:
    if any(i.size and (i.min() < 0 or i.max() >= d) for i, d in zip(indices, x.shape, strict=False)):
        return None
    return x[tuple(indices)]


def _cumsum(call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
    if call.attrs.axis is None or call.attrs.exclusive or x.dtype.kind not in "ifb":
        return None
    dtype = np.dtype(str(call.ty.dtype))
    if x.dtype.kind == "f" and dtype.kind != "f":
        return None
    sums = np.cumsum(x.astype({"b": "int64", "f": "float64"}.get(dtype.kind, dtype)), int(call.attrs.axis))
    # PyTorch counts booleans in int64, the importer calls the result bool: fold where both are the same.
    return None if dtype.kind == "b" and sums.size and sums.max() > 1 else sums.astype(dtype)


def _concat(call: Any, _shape: tuple[int, ...], *parts: np.ndarray) -> np.ndarray:
    axis = call.attrs.axis
    return np.concatenate(parts, None if axis is None else int(axis))


def _stack(call: Any, _shape: tuple[int, ...], *parts: np.ndarray) -> np.ndarray:
    return np.stack(parts, int(call.attrs.axis or 0))


def _tile(call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    return np.tile(x, [int(r) for r in call.attrs.repeats])


def _arange(call: Any, _shape: tuple[int, ...]) -> np.ndarray | None:
    numbers: list[Any] = [getattr(a, "value", None) for a in call.args]
    return None if None in numbers else np.arange(*numbers)


def _clip(call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    low, high = (a.value for a in call.args[1:])
    if x.dtype.kind in "iu":  # which may not have the bounds
        low, high = (min(max(bound, np.iinfo(x.dtype).min), np.iinfo(x.dtype).max) for bound in (low, high))
    return np.maximum(np.minimum(x, np.asarray(high, x.dtype)), np.asarray(low, x.dtype))


def _reduce(function: Callable[..., Any]) -> Fold:
    def fold(call: Any, _shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
        axis = call.attrs.axis
        if not x.size or x.dtype.kind == "b":
            return None
        x = x if x.dtype.kind in "iu" else x.astype("float64")  # NumPy adds bfloat16 in bfloat16
        return function(x, axis=None if axis is None else tuple(int(a) for a in axis), keepdims=call.attrs.keepdims)

    return fold


def _plain(function: Callable[..., np.ndarray], kinds: str = "fiub") -> Fold:
    """Element by element, for dtypes of these NumPy kinds."""

    def fold(_call: Any, _shape: tuple[int, ...], *operands: np.ndarray) -> np.ndarray | None:
        if any(x.dtype.kind not in kinds for x in operands):
            return None
        with np.errstate(all="ignore"):
            return function(*operands)

    return fold


def _fill(value: float) -> Fold:
    return lambda _call, shape, *_like: np.broadcast_to(np.float64(value), shape)


_SAME_IN_NUMPY = (
    *("add", "multiply", "maximum", "minimum", "abs", "floor", "ceil"),
    *("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"),
    *("logical_and", "logical_or", "logical_not", "isnan", "isinf", "isfinite"),
)
_SAME_IN_NUMPY_ON_FLOATS = ("divide", "power", "sqrt", "exp", "log", "tanh", "sin", "cos", "square")
_FLOAT = "f"  # integer division, powers and roots follow other rules in TVM than in NumPy
FOLDS: dict[str, Fold] = {
    **dict.fromkeys(["reshape", "squeeze", "expand_dims", "flatten", "nn.batch_flatten"], _view),
    "broadcast_to": _spread,
    "full": lambda _call, shape, value: np.broadcast_to(value, shape),
    "full_like": lambda _call, shape, _like, value: np.broadcast_to(value, shape),
    **dict.fromkeys(["zeros", "zeros_like"], _fill(0)),
    **dict.fromkeys(["ones", "ones_like"], _fill(1)),
    "arange": _arange,
    "astype": _astype,
    "permute_dims": _permute,
    "strided_slice": _strided_slice,
    "take": _take,
    "gather_elements": _gather_elements,
    "index_tensor": _index_tensor,
    "cumsum": _cumsum,
    **{f"bitwise_{name}": _plain(getattr(np, f"bitwise_{name}"), "iub") for name in ("and", "or", "xor")},
    **{f"{side}_shift": _plain(getattr(np, f"{side}_shift"), "iu") for side in ("left", "right")},
    "concat": _concat,
    "stack": _stack,
    "tile": _tile,
    "clip": _clip,
    "where": _plain(np.where),
    "sum": _reduce(np.sum),
    "prod": _reduce(np.prod),
    "max": _reduce(np.max),
    "min": _reduce(np.min),
    **{name: _plain(getattr(np, name), "fiu") for name in ("subtract", "negative")},
    "sign": _plain(lambda x: (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype), "fiu"),  # of a NaN 0, as TVM's
    **{name: _plain(getattr(np, name)) for name in _SAME_IN_NUMPY},
    **{name: _plain(getattr(np, name), _FLOAT) for name in _SAME_IN_NUMPY_ON_FLOATS},
    "rsqrt": _plain(lambda x: 1 / np.sqrt(x), _FLOAT),
    "sigmoid": _plain(lambda x: 1 / (1 + np.exp(-x)), _FLOAT),
    "erf": _plain(np.vectorize(math.erf, otypes=["float64"]), _FLOAT),
}


_FOLDED = tuple(f"relax.{name}" for name in FOLDS)


def _operands(call: Any) -> Iterator[Any]:
    """Tensor operands of a call, those inside a tuple one by one; a tuple that is a variable stands for itself."""
    for arg in items(call.args):
        if is_a(arg, relax.Tuple):
            yield from (f for f in items(arg.fields) if is_a(f.ty, relax.TensorType))
        elif is_a(ty := arg.ty, relax.TensorType) or is_a(ty, relax.TupleType):
            yield arg


def fold(scope: Scope, call: Any, any_size: bool = False) -> Any:
    """The constant that ``call`` computes, ``None`` when it is not one or would be too large.

    Of ``any_size``, operands may be computed from constants, too.
    """
    likeness = call.op.name.endswith("_like")  # only the shape of the first operand matters
    arrays: list[Any] = []
    for operand in _operands(call):
        is_needed = bool(arrays) or not likeness
        arrays.append(None if not is_needed else evaluated(scope, operand) if any_size else scope.const(operand))
        if is_needed and arrays[-1] is None:
            return None
    shape, dtype = scope.shape(call), scope.dtype(call)
    if shape is None or not dtype:
        return None
    result_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if not any_size and result_bytes > max(_SMALL, _GROWTH * sum(a.nbytes for a in arrays if a is not None)):
        return None
    result = FOLDS[call.op.name.removeprefix("relax.")](call, shape, *arrays)
    if result is None or result.shape != shape:
        return None
    return scope.constant(result.astype(dtype, copy=False), dtype)


def evaluated(scope: Scope, expr: Any) -> np.ndarray | None:
    """The value of ``expr``, of whatever size, if it is computed from constants alone."""
    call = scope.call(expr, *_FOLDED)
    return scope.const(expr if call is None else fold(scope, call, any_size=True))


def weights_of(scope: Scope, expr: Any) -> np.ndarray | None:
    """Of those that a product reads transposed, too."""
    turned = scope.call(expr, "relax.permute_dims")
    array = scope.const(expr if turned is None else turned.args[0])
    return array if turned is None or array is None else _permute(turned, (), array)


def _fold_unless_weights(scope: Scope, call: Any) -> Any:
    whole = scope.const(call.args[0])
    is_large = whole is not None and whole.ndim == 2 and whole.nbytes >= _TRANSPOSED
    return None if is_large and scope.is_weights() else fold(scope, call)


def _shape_of(scope: Scope, call: Any) -> Any:
    shape = scope.shape(call.args[0])
    return None if shape is None else relax.ShapeExpr(shape)


def _shape_to_tensor(scope: Scope, call: Any) -> Any:
    if not isinstance(call.args[0], relax.ShapeExpr):
        return None
    dims = _ints(call.args[0])
    return None if dims is None else scope.constant(np.array(dims, "int64"))


def _tensor_to_shape(scope: Scope, call: Any) -> Any:
    dims = scope.const(call.args[0])
    return None if dims is None else relax.ShapeExpr(dims.tolist())


def _item(scope: Scope, item: Any) -> Any:
    """One element of a tuple that is written out, or of a split constant."""
    whole = scope.value(item.tuple_value)
    if is_a(whole, relax.Tuple):
        return whole.fields[item.index]
    split = scope.call(whole, "relax.split")
    array = None if split is None else scope.const(split.args[0])
    if array is None:
        return None
    sections = split.attrs.indices_or_sections
    cut = [int(i) for i in sections] if hasattr(sections, "__len__") else int(sections)
    axis = int(split.attrs.axis)
    if isinstance(cut, int) and array.shape[axis] % cut:
        return None
    part = np.split(array, cut, axis)[item.index]
    return scope.constant(part, scope.dtype(split.args[0]))


def _bias(scope: Scope, call: Any) -> Any:
    """A quantised bias, which is always int32, or one number, as real numbers. Quantised weights are not changed."""
    whole, scale, zero = (scope.const(a) for a in call.args)
    if whole is None or scale is None or zero is None:
        return None
    if whole.dtype != np.int32 and (whole.ndim > 1 or whole.size != 1):
        return None
    shape = [1] * whole.ndim
    if scale.size > 1:
        shape[int(call.attrs.axis) % whole.ndim] = -1
    centred = whole.astype("float64") - zero.reshape(shape if zero.size > 1 else [1] * whole.ndim)
    return scope.constant(centred * scale.reshape(shape), scope.dtype(call))


# Operators whose operands from this position on must be constants to be fast at all.
_WEIGHTS_FROM = {
    **{f"relax.nn.conv{d}d{t}": 1 for d in (1, 2, 3) for t in ("", "_transpose")},
    "relax.matmul": 1,
    "relax.nn.batch_norm": 1,
    "relax.nn.layer_norm": 1,
}


_SPREAD = tuple(f"relax.{name}" for name in ("broadcast_to", "full", "zeros", "ones"))


def _weights(scope: Scope, call: Any) -> Any:
    """Make weights real that are written as a broadcast of one number."""
    args, first = items(call.args), _WEIGHTS_FROM[call.op.name]
    folded = 0
    for i, arg in enumerate(args[first:], first):
        turned = scope.call(arg, "relax.permute_dims")
        spread = scope.call(arg if turned is None else turned.args[0], *_SPREAD)
        constant = None if spread is None else fold(scope, turned or spread, any_size=True)
        if constant is not None:
            args[i], folded = constant, folded + 1
    return scope.with_args(call, *args) if folded else None


#: in the place of the row below, where a compiler reads transposed weights as they are
KEEP_TRANSPOSED: Rules = {"relax.permute_dims": [_fold_unless_weights]}
#: for what is left of them
FOLD_TRANSPOSED: Rules = {"relax.permute_dims": [fold]}

RULES: Rules = {
    # shifts stay: they unpack weights of four bits (`compression`)
    **{name: [fold] for name in _FOLDED if not name.endswith("_shift")},
    "relax.dequantize": [_bias],
    "relax.shape_of": [_shape_of],
    "relax.shape_to_tensor": [_shape_to_tensor],
    "relax.tensor_to_shape": [_tensor_to_shape],
    "TupleGetItem": [_item],
    **{name: [_weights] for name in _WEIGHTS_FROM},
}
