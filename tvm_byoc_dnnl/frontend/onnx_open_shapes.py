"""Operators of ONNX whose shapes are open: converted by the sizes that the graph computes, and sizes that must agree.

Where ONNX needs two sizes to be equal and they are different expressions, a ``match_cast`` says so: the rest of the
model has one size there, and a call with other sizes fails with an error. ONNX would also repeat a size of 1 there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from .._compat import constant_numpy, dtype_of, is_a, is_constant, shape_dims
from ..errors import UnsupportedError
from .onnx_shape_values import Numbers, Sizes, is_open

__all__ = ["OpenShapes"]

_MOST = 64  # elements of a constant that may be a shape
_FAR = 1 << 27  # at least this is "to the end" for exporters

_BROADCASTING = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"),
        *("Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)


class OpenShapes:
    """The known sizes of one function that is being imported.

    Parameters
    ----------
    bb : BlockBuilder
        Where expressions are emitted.

    Attributes
    ----------
    sizes : Sizes
        Compares them.
    """

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb
        self.sizes = Sizes()
        self._known: dict[Any, Numbers] = {}  # variable → its numbers

    def know(self, tensor: Any, numbers: Numbers) -> None:
        """Note the numbers of a variable."""
        self._known[tensor] = numbers

    # ---- numbers ------------------------------------------------------------------------------------

    def numbers(self, value: Any) -> Numbers | None:
        """The integers or truth values of a tensor, as far as they are known."""
        if value is None:
            return None
        if is_a(value, relax.Var):
            return self._known.get(value)
        if is_constant(value):
            array = constant_numpy(value)
            if array.dtype.kind in "ib" and array.size <= _MOST:
                found = np.empty(array.size, object)
                found[:] = array.reshape(-1).tolist()
                return found.reshape(array.shape)
        return None

    def tensor(self, numbers: Numbers, dtype: str) -> Any:
        """A tensor of known numbers; computed at run time, where something reads it."""
        flat = list(numbers.reshape(-1))
        if not is_open(numbers):
            return relax.const(np.array(flat, dtype).reshape(numbers.shape), dtype)
        made = self._bb.emit(relax.op.shape_to_tensor(_shape(flat)))
        if numbers.ndim != 1:
            made = self._bb.emit(relax.op.reshape(made, numbers.shape))
        if dtype != "int64":
            made = self._bb.emit(relax.op.astype(made, dtype))
        self._known[made] = numbers
        return made

    # ---- nodes --------------------------------------------------------------------------------------

    def convert(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any], dtype: str | None) -> Any:
        """The result of a node, or ``None`` for those that the importer converts."""
        if op in ("Shape", "Size"):
            return self._shape_of(op, inputs[0], attrs)
        converter = _CONVERTERS.get(op)
        if converter is None and not self._known:  # no number is open
            return None
        known = [self.numbers(i) for i in inputs]
        if any(is_open(k) for k in known):
            integral = op != "Cast" or dtype in ("int64", "int32")
            result = self.sizes.evaluate(op, known, attrs) if integral else None
            if result is not None:
                kind = dtype if op == "Cast" else "bool" if result.size and isinstance(result.flat[0], bool) else None
                return self.tensor(result, kind or _common_dtype(op, inputs))
        return None if converter is None else converter(self, inputs, known, attrs)

    def _shape_of(self, op: str, value: Any, attrs: Mapping[str, Any]) -> Any:
        dims = shape_dims(value.ty) if isinstance(value.ty, relax.TensorType) else None
        if dims is None:
            return None
        if op == "Size":
            return self.tensor(_vector([self.sizes.product(dims)]).reshape(()), "int64")
        return self.tensor(_vector(dims[attrs.get("start", 0) : attrs.get("end", len(dims))]), "int64")

    # ---- sizes that must be equal -------------------------------------------------------------------

    def agree(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a node, with equal sizes where the node needs them."""
        given = list(inputs)
        if op in _BROADCASTING:
            return self._made_equal(given, lambda axis: True)
        if op == "Concat":
            rank = next((len(d) for i in given if (d := _dims(i)) is not None), 0)
            axis = attrs.get("axis", 0) % max(rank, 1)
            return self._made_equal(given, lambda a: a != axis - rank)
        if op in ("Scatter", "ScatterElements"):
            return self._scattered(given, attrs)
        return given

    def _scattered(self, given: list[Any], attrs: Mapping[str, Any]) -> list[Any]:
        """As many indices as the data has elements along the other axes: TVM's operator knows no fewer."""
        data, indices, updates = (_dims(i) for i in given)
        if data is None or indices is None or updates is None or len({len(data), len(indices), len(updates)}) > 1:
            raise UnsupportedError(
                f"ScatterElements (node `{attrs['tvm_custom']['name']}`) of tensors of unknown ranks"
            )
        axis = attrs.get("axis", 0) % max(1, len(data))
        wanted = [own if i == axis else size for i, (own, size) in enumerate(zip(indices, data, strict=True))]
        if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(indices, wanted, strict=True)):
            raise UnsupportedError(
                f"ScatterElements (node `{attrs['tvm_custom']['name']}`) with indices of {indices} for data of "
                f"{data}: fix the open sizes"
            )
        return [given[0], self.cast(given[1], wanted), self.cast(given[2], wanted)]

    def _made_equal(self, given: list[Any], applies: Callable[[int], bool]) -> list[Any]:
        """Inputs of which the sizes of one axis, counted from the last, are equal or 1."""
        dims = [_dims(i) for i in given]
        if any(d is None for i, d in zip(given, dims) if i is not None):
            return given
        if all(isinstance(size, int) for d in dims if d is not None for size in d):
            return given
        new = [None if d is None else list(d) for d in dims]
        for axis in range(-max((len(d) for d in dims if d is not None), default=0), 0):
            here = [d for d in new if d is not None and len(d) >= -axis]
            if applies(axis):
                sizes = [d[axis] for d in here if d[axis] != 1 or isinstance(d[axis], tirx.Expr)]
                chosen = _common(sizes) if sizes else 1
                for d in here:
                    open_size = not isinstance(d[axis], int)
                    if open_size and not self.sizes.equal(d[axis], chosen):
                        d[axis] = chosen
        return self._with_dims(given, new)

    def _with_dims(self, given: list[Any], wanted: Sequence[list[Any] | None]) -> list[Any]:
        return [i if w is None else self.cast(i, w) for i, w in zip(given, wanted, strict=True)]

    def cast(self, value: Any, dims: Sequence[Any]) -> Any:
        """``value``, which must have these sizes when the model runs."""
        own = _dims(value)
        if own is not None and all(a is b or self.sizes.equal(a, b) for a, b in zip(own, dims, strict=True)):
            return value
        if not isinstance(value, relax.Var):
            value = self._bb.emit(value)
        return self._bb.match_cast(value, relax.TensorType(_shape(dims), dtype_of(value.ty)))

    # ---- operators that take shapes -----------------------------------------------------------------

    def _reshape(self, inputs: Sequence[Any], known: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Any:
        data, target = _dims(inputs[0]), known[1]
        if data is None or target is None or not (is_open(target) or _is_open_shape(data)):
            return None
        sizes = list(target)
        if not attrs.get("allowzero", 0):
            sizes = [data[axis] if isinstance(s, int) and s == 0 else s for axis, s in enumerate(sizes)]
        rest = [axis for axis, s in enumerate(sizes) if isinstance(s, int) and s == -1]
        if rest:
            size = self.sizes.quotient(data, [s for axis, s in enumerate(sizes) if axis != rest[0]])
            if size is None:
                return None
            sizes[rest[0]] = size
        value, count = inputs[0], self.sizes.product(data)
        if not self.sizes.equal(count, wanted := self.sizes.product(sizes)):
            value = self.cast(relax.op.reshape(value, _shape([count])), [wanted])
        return relax.op.reshape(value, _shape(sizes))

    def _expand(self, inputs: Sequence[Any], known: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Any:
        data, target = _dims(inputs[0]), known[1]
        if data is None or target is None or not (is_open(target) or _is_open_shape(data)):
            return None
        rank = max(len(data), target.size)
        own = [1] * (rank - len(data)) + data
        wanted = [1] * (rank - target.size) + list(target)
        sizes = [
            a if isinstance(b, int) and b == 1 else b if isinstance(a, int) else _common([b, a])
            for a, b in zip(own, wanted, strict=True)
        ]
        value = self.cast(
            inputs[0],
            [d if isinstance(d, int) else s for d, s in zip(data, sizes[rank - len(data) :], strict=True)],
        )
        return relax.op.broadcast_to(value, _shape(sizes))

    def _filled(self, inputs: Sequence[Any], known: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Any:
        if not is_open(known[0]):
            return None
        from onnx import numpy_helper

        value = attrs.get("value")
        fill = np.zeros(1, "float32") if value is None else numpy_helper.to_array(value)
        dtype = str(fill.dtype)
        assert known[0] is not None
        return relax.op.full(_shape(list(known[0])), relax.const(fill.reshape(()), dtype), dtype)

    def _range(self, inputs: Sequence[Any], known: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Any:
        if any(k is None for k in known) or not any(is_open(k) for k in known):
            return None
        start, stop, step = (k.reshape(-1)[0] for k in known if k is not None)
        count = self.sizes.simplify(stop - start)
        if step != 1 or not self.sizes.at_least(count, 0):
            return None
        dtype = dtype_of(inputs[0].ty)
        made = self._bb.emit(relax.op.arange(0, count, 1, "int64"))
        if not (isinstance(start, int) and start == 0):
            made = self._bb.emit(relax.op.add(made, self.tensor(_vector([start]).reshape(()), "int64")))
        return made if dtype == "int64" else relax.op.astype(made, dtype)

    def _slice(self, inputs: Sequence[Any], known: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Any:
        data = _dims(inputs[0])
        starts, ends, axes, steps = (*known[1:], None, None, None)[:4]
        given = [k for i, k in zip(inputs, known, strict=True) if i is not None]
        if data is None or starts is None or ends is None or any(k is None for k in given[1:]):
            return None
        along = list(range(starts.size)) if axes is None else [int(a) % len(data) for a in axes]
        by = [1] * starts.size if steps is None else list(steps)
        if not (is_open(starts) or is_open(ends) or any(not isinstance(data[a], int) for a in along)):
            return None
        if any(not isinstance(s, int) or s != 1 for s in by):
            return None
        first, last, sizes = [], [], list(data)
        for axis, start, stop in zip(along, starts, ends, strict=True):
            start, stop = self._bound(start, data[axis]), self._bound(stop, data[axis])
            if start is None or stop is None:
                return None
            size = self.sizes.simplify(stop - start)
            if not self.sizes.at_least(size, 0):
                return None
            first.append(start)
            last.append(stop)
            sizes[axis] = size
        # TVM's slice reads beyond the end if a bound is too large: the cut sizes are compared first.
        whole = self._cut(inputs[0], data, along, last)
        return relax.op.strided_slice(whole, along, first, last, by, assume_inbound=True)

    def _bound(self, bound: Any, size: Any) -> Any:
        """A start or stop counted from the first element, not beyond the size; ``None`` if it cannot be said."""
        if isinstance(bound, int):
            if bound >= _FAR:
                return size
            if bound < 0:  # ONNX cuts it, here and below
                from_start = tirx.max(_dim(size) + bound, _dim(0))
                bound = self.sizes.simplify(from_start) if bound > -_FAR else 0
        if isinstance(bound, int):
            return self.sizes.simplify(tirx.min(_dim(bound), _dim(size)))
        return bound if self.sizes.at_least(bound, 0) else None

    def _cut(self, value: Any, data: list[Any], along: Sequence[int], stops: Sequence[Any]) -> Any:
        """``value``, after a check at run time that no stop is beyond its size."""
        dims = list(data)
        for axis, stop in zip(along, stops, strict=True):
            if not self.sizes.at_least(data[axis], stop):
                dims[axis] = tirx.max(_dim(data[axis]), _dim(stop))
        return value if dims == data else self.cast(value, dims)

    def _squeeze(self, inputs: Sequence[Any], known: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Any:
        data = _dims(inputs[0])
        if data is None or "axes" in attrs or any(i is not None for i in inputs[1:]) or not _is_open_shape(data):
            return None
        raise UnsupportedError(
            f"Squeeze (node `{attrs['tvm_custom']['name']}`) has no axes, and its input has the shape "
            f"({', '.join(map(str, data))}): the number of dimensions of its result depends on the call. Fix the open "
            "ones, or give the node axes"
        )


def _dims(value: Any) -> list[Any] | None:
    if value is None or not is_a(getattr(value, "ty", None), relax.TensorType):
        return None
    return shape_dims(value.ty)


def _common(sizes: Sequence[Any]) -> Any:
    """The one of these sizes, which must be equal, that all others are cast to: a number, or the first that can be.

    A symbol cannot be given by an expression of itself: TVM would put the expression in its place without end. A
    picture of height ``n`` that was halved and doubled again has the height ``n // 2 * 2``.
    """
    numbers = [s for s in sizes if isinstance(s, int)]
    return numbers[0] if numbers else next(s for s in sizes if not any(_is_within(s, other) for other in sizes))


def _is_within(size: Any, other: Any) -> bool:
    """Whether a symbol is a part of another expression."""
    if not isinstance(size, tirx.Var) or isinstance(other, tirx.Var):
        return False
    return any(size.same_as(symbol) for symbol in tirx.analysis.undefined_vars(other))


def _is_open_shape(dims: Sequence[Any]) -> bool:
    return any(not isinstance(d, int) for d in dims)


def _dim(size: Any) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, (int, np.integer)) else size


def _shape(sizes: Sequence[Any]) -> relax.ShapeExpr:
    return relax.ShapeExpr([_dim(s) for s in sizes])


def _vector(numbers: Sequence[Any]) -> Numbers:
    array = np.empty(len(numbers), object)
    array[:] = numbers
    return array


def _common_dtype(op: str, inputs: Sequence[Any]) -> str:
    """Dtype of a result that has the dtype of its data."""
    return dtype_of(inputs[1 if op == "Where" else 0].ty)


Converter = Callable[[OpenShapes, Sequence[Any], Sequence["Numbers | None"], Mapping[str, Any]], Any]
_CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": OpenShapes._filled,
    "Expand": OpenShapes._expand,
    "Range": OpenShapes._range,
    "Reshape": OpenShapes._reshape,
    "Slice": OpenShapes._slice,
    "Squeeze": OpenShapes._squeeze,
}
