"""Operators that put elements to other places, or read their bits in another way."""

from __future__ import annotations

from typing import Any

from onnx import helper
from tvm import te, tirx

from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .computed import computed


@operator("ReverseSequence", since=10)
def _reverse_sequence(e: Emit, node: Node, x: Value) -> Any:
    lengths = e.cast(node.needed(1), "int64")
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise node.wrong(f"has the time_axis {time} and the batch_axis {batch}; one must be 0 and the other 1")

    def compute(data: Any, counts: Any) -> Any:
        def element(*at: Any) -> Any:
            count = counts(at[batch])
            place = tirx.Select(at[time] < count, tirx.max(count - 1 - at[time], tirx.const(0, "int64")), at[time])
            return data(*(place if axis == time else i for axis, i in enumerate(at)))

        return te.compute(data.shape, element, name="reverse_sequence")

    return computed(e, "reverse_sequence", compute, x, lengths)


@operator("TensorScatter", since=24)
def _tensor_scatter(e: Emit, node: Node) -> Any:
    """Writes ``update`` into a cache, from a place of each batch on; a circular cache begins again at its end."""
    past, update, starts = node.needed(0), node.needed(1), node.input(2)
    rank, mode = past.rank, node.attr("mode", "linear")
    if rank is None:
        raise node.refused("has a cache of unknown rank")
    axis = node.attr("axis", -2) % rank
    if axis == 0:
        raise node.wrong("has the axis 0, which is the batch")
    if starts is None:
        starts = e.const([0])
    one = starts.dims is not None and starts.sizes[0] == 1

    def compute(cache: Any, new: Any, begins: Any) -> Any:
        def element(*at: Any) -> Any:
            size, length = cache.shape[axis], new.shape[axis]
            after = at[axis] - begins(tirx.const(0, "int64") if one else at[0])
            if mode == "circular":
                after = tirx.floormod(after, size)
            is_new = tirx.all(after >= 0, after < length)
            place = tirx.max(tirx.min(after, length - 1), tirx.const(0, "int64"))
            return tirx.if_then_else(is_new, new(*(place if i == axis else a for i, a in enumerate(at))), cache(*at))

        return te.compute(cache.shape, element, name="tensor_scatter")

    return computed(e, "tensor_scatter", compute, past, update, e.cast(starts, "int64"))


_PLAIN = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


@operator("BitCast", since=26)
def _bit_cast(e: Emit, node: Node, x: Value, *, to: Any = None) -> Any:
    dtype = str(helper.tensor_dtype_to_np_dtype(to))
    if x.dtype == dtype:
        return x
    if x.dtype not in _PLAIN or dtype not in _PLAIN:
        raise node.refused(f"reads {x.dtype} as {dtype}; numbers of 8 to 64 bits that C has can be")

    def compute(data: Any) -> Any:
        return te.compute(data.shape, lambda *at: tirx.reinterpret(dtype, data(*at)), name="bit_cast")

    made: Value = computed(e, "bit_cast", compute, x)
    return made
