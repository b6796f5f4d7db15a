"""Stages out of what TVM has: its legalisers, run on TE tensors, and existing PrimFuncs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..ir.tvm_compat import dtype_of, substitute

# One thread at a time builds TE: TVM keeps the tag of the op under construction in a global of the process.
TE_LOCK = threading.RLock()

CallTE = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], relax.Expr]


@contextmanager
def capture_call_te(builder: relax.BlockBuilder, handler: CallTE) -> Iterator[None]:
    """Send ``builder.call_te(func, *args, **kwargs)`` to ``handler(func, args, kwargs)`` in this thread.

    Parameters
    ----------
    builder : relax.BlockBuilder
        The builder that is given to the legaliser; calls on any other builder are not touched.
    handler : callable
        Replaces ``call_te``; returns the Relax expression of the result.
    """
    thread = threading.get_ident()
    with TE_LOCK:
        original = relax.BlockBuilder.call_te

        def call_te(self: relax.BlockBuilder, func: Callable[..., Any], *args: Any, **kwargs: Any) -> relax.Expr:
            if threading.get_ident() == thread and builder.same_as(self):
                return handler(func, args, kwargs)
            return original(self, func, *args, **kwargs)

        relax.BlockBuilder.call_te = call_te
        try:
            yield
        finally:
            # Somebody else may have replaced it meanwhile: then it is not ours to restore.
            if relax.BlockBuilder.call_te is call_te:
                relax.BlockBuilder.call_te = original


def embed_primfunc(func: tirx.PrimFunc, args: Sequence[Any], name: str) -> list[te.Tensor]:
    """``call_tir(func, args)`` as an extern stage, whose body is the function's.

    ``te.extern_primfunc`` tells inputs from outputs by what the body reads and writes, which takes an
    accumulator for an input; here it is the position that counts, as in ``call_tir``.

    Parameters
    ----------
    func : tirx.PrimFunc
        Parameters: the arguments, then the outputs.
    args : sequence of te.Tensor or TIR expression
        The arguments.
    name : str
        Name of the stage.
    """
    func = tvm.get_global_func("s_tir.RenewDefs")(func)  # a function may be embedded more than once
    formal, outputs = func.params[: len(args)], func.params[len(args) :]
    tensors = [arg for arg in args if isinstance(arg, te.Tensor)]

    pairs = list(zip(formal, args, strict=True))
    mapping: dict[Any, Any] = {param: arg for param, arg in pairs if not isinstance(arg, te.Tensor)}
    in_params = [param for param, arg in pairs if isinstance(arg, te.Tensor)]
    for param, tensor in zip(in_params, tensors, strict=True):
        dims = zip(param.shape, tensor.shape, strict=True)
        mapping.update({dim: actual for dim, actual in dims if isinstance(dim, tirx.Var)})
    # TE compares dimensions by identity, so the buffers must carry the very dimensions of the tensors.
    in_buffers = [tirx.decl_buffer(t.shape, dtype_of(t), t.op.name) for t in tensors]
    out_buffers = [tirx.decl_buffer([substitute(d, mapping) for d in p.shape], dtype_of(p), p.name) for p in outputs]
    mapping.update(zip([*in_params, *outputs], [*in_buffers, *out_buffers], strict=True))
    body = _without_root(substitute(func.body, mapping), name)
    result = te.extern(
        [buffer.shape for buffer in out_buffers],
        tensors,
        lambda ins, outs: body,
        in_buffers=in_buffers,
        out_buffers=out_buffers,
        dtype=[dtype_of(buffer) for buffer in out_buffers],
        name=f"call_{name}",
    )
    return [result] if isinstance(result, te.Tensor) else list(result)


def _without_root(body: Any, name: str) -> Any:
    """The function's own root block would be a second one of that name in the graph's function."""
    root = getattr(body, "block", None)
    if root is None or root.name_hint != "root":
        return body
    if not root.alloc_buffers:
        return root.body
    named = type(root)([], [], [], f"{name}_root", root.body, None, root.alloc_buffers, [], root.annotations)
    return type(body)([], True, named)
