"""The choice of the TE compute of an op: TVM's own legalisation, or a registered one.

The choice knows nothing about schedules: a compute says *what* is calculated, in which stages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

from ..core.errors import InputError
from .computes import BUILTIN

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
    """All computes that apply to one call: registered ones, the newest first, then TVM's own.

    Parameters
    ----------
    op : str
        Name of the op.
    attrs, args
        The call's attributes and TE arguments, as a selector receives them.
    """
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
