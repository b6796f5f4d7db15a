"""Kernels whose body is statements, where no expression of each element says what is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

_OPAQUE = 8  # TVM's kind of a function that is fused with nothing


def stage(
    name: str, write: Callable[..., None], tensors: Sequence[te.Tensor], results: Sequence[tuple[Sequence[Any], str]]
) -> Any:
    """The results, of these shapes and dtypes: a tensor, or a list of them.

    ``write(*inputs, *outputs)`` writes them by the IRBuilder, for buffers that are indexed. Memory to work with is a
    result that nobody reads.
    """
    shapes = [list(shape) for shape, _ in results]
    outs = [tirx.decl_buffer(shape, dtype, f"out{i}", layout=None) for i, (shape, dtype) in enumerate(results)]

    def body(inputs: Any, outputs: Any) -> Any:
        with IRBuilder() as ib, T.seq_scope():
            write(*map(T.buffer_proxy, (*inputs, *outputs)))
        return ib.get()

    return te.extern(shapes, list(tensors), body, out_buffers=outs, name=name)


def emitted(bb: relax.BlockBuilder, name: str, kernel: Callable[..., Any], *operands: Any) -> Any:
    """A call of a function of TE, which is fused with nothing."""
    attrs = {"op_pattern": _OPAQUE}
    return bb.emit(bb.call_te(kernel, *operands, primfunc_name_hint=name, primfunc_attrs=attrs))
