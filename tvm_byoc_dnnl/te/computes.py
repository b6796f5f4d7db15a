"""The TE compute of an op, which says *what* is calculated, in which stages: TVM's legalisation, or a registered one.

Computes of our own: of the ops that TVM lowers outside of its legalisers (the sort and scan family), or not at all; and
of normalisations, in float64 and rounded once. TVM's own takes the variance from the mean of the squares, in float32:
here equal numbers have their value as mean, and a large mean costs nothing.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import tirx as T

from ..core.errors import InputError
from ..ir.statements import stage
from ..ir.tvm_compat import dtype_of, substitute

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


def _sort(attrs: Any, data: te.Tensor) -> te.Tensor:
    return topi.sort(data, attrs.axis, not attrs.descending)


def _argsort(attrs: Any, data: te.Tensor) -> te.Tensor:
    return topi.argsort(data, axis=attrs.axis, is_ascend=not attrs.descending, dtype=attrs.dtype)


def _topk(attrs: Any, data: te.Tensor) -> Any:
    size = data.shape[attrs.axis]
    takes_all = isinstance(size, tirx.IntImm) and attrs.k > int(size)
    return topi.topk(
        data,
        k=int(size) if takes_all else attrs.k,
        axis=attrs.axis,
        ret_type=attrs.ret_type,
        is_ascend=not attrs.largest,
        dtype=attrs.dtype,
    )


def _scan(binary: Callable[[Any, Any], Any], first: int) -> Any:
    """TOPI's writes to memory of others where an axis has no elements."""

    def compute(attrs: Any, data: te.Tensor) -> te.Tensor:
        if attrs.axis is None:
            data = topi.reshape(data, [topi.utils.prod(data.shape)])
        axis = 0 if attrs.axis is None else int(attrs.axis) % len(data.shape)
        dtype = str(attrs.dtype or "void")
        dtype = dtype_of(data) if dtype == "void" else dtype
        before, size = topi.utils.prod(data.shape[:axis]), data.shape[axis]
        lines = before * topi.utils.prod(data.shape[axis + 1 :])
        behind = tirx.max(topi.utils.prod(data.shape[axis + 1 :]), 1)  # to divide by, where there is no line

        def write(source: Any, out: Any) -> None:
            with T.parallel(0, lines) as line:
                start = line // behind * size * behind + line % behind
                with T.serial(0, size) as k:
                    here = start + k * behind
                    read = here - behind if attrs.exclusive else here
                    begin = tirx.const(first, dtype) if attrs.exclusive else source[here].astype(dtype)
                    out[here] = tirx.if_then_else(k == 0, begin, binary(out[here - behind], source[read].astype(dtype)))

        return stage("scan", write, [data], [(data.shape, dtype)])

    return compute


def _pixel_shuffle(attrs: Any, data: te.Tensor) -> te.Tensor:
    """TVM's legaliser calls a TOPI function that does not exist."""
    factor = attrs.upscale_factor
    *batch, channels, height, width = data.shape

    def element(*index: Any) -> Any:
        *lead, c, y, x = index
        channel = (c * factor + y % factor) * factor + x % factor
        return data(*lead, channel, y // factor, x // factor)

    shape = [*batch, channels // (factor * factor), height * factor, width * factor]
    return te.compute(shape, element, name="pixel_shuffle")


# op -> fn(attrs, *args)
BUILTIN: dict[str, Any] = {
    "relax.argsort": _argsort,
    "relax.cumprod": _scan(operator.mul, 1),
    "relax.cumsum": _scan(operator.add, 0),
    "relax.nn.pixel_shuffle": _pixel_shuffle,
    "relax.sort": _sort,
    "relax.topk": _topk,
}


def normalized(
    x: te.Tensor,
    axes: Sequence[int],
    epsilon: float,
    scale: Callable[[Sequence[Any]], Any],
    shift: Callable[[Sequence[Any]], Any],
) -> te.Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift``, with statistics over ``axes``.

    ``scale`` and ``shift`` give the factor and the summand at the indices of a number, in the dtype of ``x``.
    """
    dtype = dtype_of(x)
    used = "float64" if dtype == "float64" else "float32"
    kept = [1 if i in axes else size for i, size in enumerate(x.shape)]
    count = tirx.Cast("float64", tirx.const(1, "int64"))
    for axis in axes:
        count = count * tirx.Cast("float64", x.shape[axis])

    def wide(at: Sequence[Any]) -> Any:
        return tirx.Cast("float64", x[tuple(at)])

    def statistic(name: str, of: Callable[[Sequence[Any], Sequence[Any]], Any]) -> te.Tensor:
        inner = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}

        def one(*row: Any) -> Any:
            at = [inner[i].var if i in inner else row[i] for i in range(len(kept))]
            return te.sum(of(at, row), axis=list(inner.values()))

        return te.compute(kept, one, name=name)

    total = statistic("total", lambda at, _: wide(at))

    def centred(at: Sequence[Any], row: Sequence[Any]) -> Any:
        return wide(at) - total[tuple(row)] / count

    squares = statistic("squares", lambda at, row: centred(at, row) * centred(at, row))

    def result(*at: Any) -> Any:
        row = [0 if i in axes else at[i] for i in range(len(kept))]
        deviation = tirx.sqrt(squares[tuple(row)] / count + tirx.const(epsilon, "float64"))
        factor, summand = (part(at).astype(used) for part in (scale, shift))
        return (tirx.Cast(used, centred(at, row) / deviation) * factor + summand).astype(dtype)

    return te.compute(x.shape, result, name="normalized")


def group_normalized(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, groups: int, channel: int, axes: Sequence[int], epsilon: float
) -> te.Tensor:
    """`normalized` over ``axes`` and the channels of each of some groups; ``gamma`` and ``beta`` are per channel."""
    shape = list(x.shape)
    each = tirx.floordiv(shape[channel], groups)
    split = topi.reshape(x, [*shape[:channel], groups, each, *shape[channel + 1 :]])
    moved = [channel + 1, *(axis + (axis > channel) for axis in axes)]

    def of_channel(parameter: te.Tensor) -> Callable[[Sequence[Any]], Any]:
        return lambda at: parameter[at[channel] * each + at[channel + 1]]

    return topi.reshape(normalized(split, moved, epsilon, of_channel(gamma), of_channel(beta)), shape)


#: mode → elements that an axis must have to be padded by so many
_NEEDED = {"reflect": lambda pads: pads + 1, "replicate": lambda pads: 1, "circular": lambda pads: pads}


def least_sizes(attrs: Any) -> list[int]:
    """How many elements each axis must have, by the attributes of ``relax.nn.pad``; empty where it pads by a number."""
    needed = _NEEDED.get(str(attrs.pad_mode))
    if needed is None:
        return []
    widths = [int(width) for width in attrs.pad_width]
    return [needed(max(pair)) if max(pair) > 0 else 0 for pair in zip(widths[::2], widths[1::2], strict=True)]


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
    if op in BUILTIN or tvm.ir.Op.get(op).get_attr("FLegalize") is not None:
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
