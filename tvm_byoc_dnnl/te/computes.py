"""The TE compute of an op, which says *what* is calculated, in which stages: TVM's legalisation, or a registered one.

On a CPU, TVM's is that of `legalize` where there is one. And the constructs
that TE cannot express, and why: the same text in the error and in the documentation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..core.errors import InputError, UnsupportedError
from ..ir.tvm_compat import dtype_of, substitute
from .legalize import MENDED


def is_tir(call: relax.Call) -> bool:
    """Whether a call is a scalar TIR expression (`tirx.exp`, …) and not a Relax call that returns a scalar."""
    return tvm.ir.is_prim_expr(call) and isinstance(call.op, tvm.ir.Op) and not call.op.name.startswith("relax.")


def leaves(expr: relax.Expr) -> list[relax.Expr]:
    return [leaf for f in expr.fields for leaf in leaves(f)] if isinstance(expr, relax.Tuple) else [expr]


def symbols_in(dim: Any) -> list[tirx.Var]:
    return list(tirx.analysis.undefined_vars(dim)) if isinstance(dim, tvm.ir.Expr) else []


def symbols_of(params: Iterable[relax.Var]) -> list[tirx.Var]:
    """In order, scalar parameters included."""
    every = (
        symbol
        for param in params
        for symbol in ([param] if tvm.ir.is_prim_expr(param) else relax.analysis.tir_vars_in_type(param.ty))
    )
    return list(dict.fromkeys(every))


def paired_dims(ty: Any, value: relax.Expr) -> Iterable[tuple[Any, Any]]:
    """Dimensions in a type, each with that of a resolved value; dimensions that the type leaves open are left out."""
    if isinstance(ty, relax.TupleType):
        for inner, field in zip(ty.fields, value.fields, strict=True):
            yield from paired_dims(inner, field)
    elif isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        yield from zip(ty.shape.values, value.ty.shape.values, strict=True)
    elif isinstance(ty, relax.ShapeType) and ty.values is not None:
        yield from zip(ty.values, value.values, strict=True)


_BY_REASON: dict[str, str] = {
    "its output shape depends on the values of its inputs": "dynamic_strided_slice nonzero unique",
    "it calls a function that only exists at run time, whose computation TE cannot see": (
        "call_builtin_with_ctx call_dps_packed call_inplace_packed call_pure_packed call_py_func invoke_closure "
        "invoke_pure_closure make_closure"
    ),
    "it overwrites one of its arguments, and a TE tensor is written once": "call_tir_inplace",
    "it has a side effect, and TE has values only": "assert_op print",
    "it manages memory, which TE leaves to the lowering": (
        "builtin.alloc_tensor memory.alloc_storage memory.alloc_tensor memory.ensure_zero_offset memory.kill_storage "
        "memory.kill_tensor memory.view vm.alloc_storage vm.alloc_tensor vm.call_tir_dyn vm.kill_object"
    ),
    "it reads a field of the tensor's descriptor at run time": (
        "inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code inspect.tensor_dtype_lanes "
        "inspect.tensor_elem_offset inspect.tensor_ndim inspect.tensor_shape_i inspect.tensor_stride_i"
    ),
    "it moves data between devices or workers": (
        "ccl.allgather ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0 dist.annotate_sharding "
        "dist.call_tir_local_view dist.redistribute dist.redistribute_replica_to_shard hint_on_device to_vdevice"
    ),
    "TVM has no lowering of it for a CPU": (
        "ewise_fma multinomial_from_uniform nn.attention_var_len null_value wrap_param"
    ),
}

# op name -> reason
REFUSED: dict[str, str] = {f"relax.{op}": reason for reason, ops in _BY_REASON.items() for op in ops.split()}

# Ops that Relax accepts in every dtype and TVM computes in floats. Its own message prints the TE expression, which its
# printer warns about.
FLOATS_ONLY = frozenset({"relax.log_add_exp"})


class Refusal(UnsupportedError):
    """An `UnsupportedError` that remembers the refused construct, and the reason."""

    def __init__(self, what: str, reason: str, advice: str):
        super().__init__(f"{what} cannot be translated to TE: {reason}; {advice}")
        self.what = what
        self.reason = reason


def refuse(what: str, reason: str, advice: str | None = None) -> Refusal:
    if advice is None:
        advice = "keep it outside of the translated function"
        if what.startswith("relax."):
            advice += f", or register_te_compute({what!r}, fn)"
    return Refusal(what, reason, advice)


# One thread at a time builds TE: TVM keeps the tag of the op under construction in a global of the process.
TE_LOCK = threading.RLock()

CallTE = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], relax.Expr]


@contextmanager
def capture_call_te(builder: relax.BlockBuilder, handler: CallTE) -> Iterator[None]:
    """Send this builder's ``call_te(func, *args, **kwargs)`` to ``handler(func, args, kwargs)``, in this thread."""
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
    """``call_tir(func, args)`` as an extern stage of a name, whose body is the function's.

    ``te.extern_primfunc`` tells inputs from outputs by what the body reads and writes, which takes an accumulator for
    an input; here it is the position that counts, as in ``call_tir``: the arguments, then the outputs.
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


# (op name, attrs, TE arguments, target) -> a TECompute, a bare function fn(attrs, *args), or None for TVM's own
Selector = Callable[[str, Any, Sequence[Any], tvm.target.Target], Any]


@dataclass(frozen=True)
class TECompute:
    """One way to compute one op.

    Attributes
    ----------
    name : str
        Its name in a preference list.
    fn : callable, optional
        ``fn(attrs, *args)`` returns a ``te.Tensor`` or a list of them. An argument is a ``te.Tensor``, a list
        (for a tuple or a shape), or a TIR expression. None: TVM's lowering.
    supports : callable, optional
        ``supports(attrs, *args)`` says whether the compute applies to this call. None: always.
    """

    name: str
    fn: Callable[..., Any] | None = None
    supports: Callable[..., bool] | None = None


TVM_LEGALIZATION = TECompute("tvm")

_registry: dict[str, dict[str, TECompute]] = {}
_lock = threading.Lock()


def register_te_compute(
    op: str,
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    supports: Callable[..., bool] | None = None,
) -> Callable[..., Any]:
    """Register a TE function for an op; also usable as a decorator.

    The default selector takes the newest registered compute that supports a call, and TVM's own when none does.

    Parameters
    ----------
    op : str
        A registered Relax op, such as ``"relax.nn.conv2d"``.
    fn : callable
        ``fn(attrs, *args)``, see :class:`TECompute`. The result must have the dtype and shape that Relax infers.
    name : str, optional
        How preference lists call it; the function's name by default.
    supports : callable, optional
        ``supports(attrs, *args) -> bool``.

    Returns
    -------
    callable
        ``fn`` itself, or the decorator when ``fn`` is not given.

    Raises
    ------
    InputError
        The op does not exist, or it has a compute of that name already.
    """
    if fn is None:
        return lambda f: register_te_compute(op, f, name=name, supports=supports)
    if op not in tvm.ir.Op.list_op_names():
        raise InputError(f"register_te_compute: no op named {op!r}; expected a name such as 'relax.nn.conv2d'")
    compute = TECompute(name or fn.__name__, fn, supports)
    with _lock:
        owned = _registry.setdefault(op, {})
        if compute.name in owned or compute.name == TVM_LEGALIZATION.name:
            raise InputError(
                f"register_te_compute: {op} has a compute named {compute.name!r} already; pass another name="
            )
        owned[compute.name] = compute
    return fn


def unregister_te_compute(op: str, name: str) -> None:
    """Take back the compute ``name`` of ``op``; an `InputError` when there is none."""
    with _lock:
        if _registry.get(op, {}).pop(name, None) is None:
            raise InputError(f"unregister_te_compute: {op} has no compute named {name!r}")


def te_candidates(op: str, attrs: Any, args: Sequence[Any]) -> list[TECompute]:
    """All computes that apply to a call: registered ones, the newest first, then TVM's own."""
    registered = reversed(list(_registry.get(op, {}).values()))
    found = [c for c in registered if c.supports is None or c.supports(attrs, *args)]
    if op in MENDED or tvm.ir.Op.get(op).get_attr("FLegalize") is not None:
        found.append(TVM_LEGALIZATION)
    return found


def default_selector(op: str, attrs: Any, args: Sequence[Any], target: tvm.target.Target) -> TECompute | None:
    """The newest registered compute that supports the call, else TVM's own."""
    return next(iter(te_candidates(op, attrs, args)), None)


def prefer(names: Sequence[str] | Mapping[str, Sequence[str]]) -> Selector:
    """A selector that uses the first compute of a preference list that applies.

    Parameters
    ----------
    names : sequence of str, or mapping of op name to such a sequence
        Names of computes, the best first; ``"tvm"`` is TVM's legalisation. A call to which none of them
        applies gets what the default selector gives it.
    """

    def select(op: str, attrs: Any, args: Sequence[Any], target: tvm.target.Target) -> TECompute | None:
        wanted = names.get(op, ()) if isinstance(names, Mapping) else names
        found = {c.name: c for c in reversed(te_candidates(op, attrs, args))}
        listed = (found[name] for name in wanted if name in found)
        return next(listed, None) or default_selector(op, attrs, args, target)

    return select


def cheapest(cost: Callable[[TECompute, str, Any, Sequence[Any], tvm.target.Target], float]) -> Selector:
    """A selector that takes the candidate with the lowest cost.

    Parameters
    ----------
    cost : callable
        ``cost(compute, op, attrs, args, target) -> float``; equal costs go to the newest registered one.
    """

    def select(op: str, attrs: Any, args: Sequence[Any], target: tvm.target.Target) -> TECompute | None:
        return min(te_candidates(op, attrs, args), key=lambda c: cost(c, op, attrs, args, target), default=None)

    return select
