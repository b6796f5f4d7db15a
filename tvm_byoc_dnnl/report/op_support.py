"""The operators that a namespace may take, how, and in which dtypes: from the registry, and by trial calls.

The dtypes are found by lowering one small sample call per operator and dtype. The library is not asked, so the answer
is the same on every machine; an operator of unusual arguments that has no sample here shows none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..partitioning.annotate.trial import ask
from ..vendors.namespace import Namespace

#: dtype → its name in the table
DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}


@dataclass(frozen=True)
class Support:
    """One row.

    Attributes
    ----------
    name : str
        Relax operator, or a pattern's name.
    how : str
        ``predicate``, ``lowering``, ``predicate + lowering`` or ``pattern``.
    dtypes : tuple of str
        Short names of the dtypes that are taken; empty where that is not known.
    notes : str
        First sentence of the vendor's docstring.
    function : callable, optional
        Where it is written.
    """

    name: str
    how: str
    dtypes: tuple[str, ...]
    notes: str
    function: Callable[..., Any] | None


def support_of(ns: Namespace) -> list[Support]:
    """The operators of a namespace by name, then its patterns in order of priority."""
    rows = []
    for op in ns.ops():
        how = " + ".join(w for w, table in (("predicate", ns.predicates), ("lowering", ns.lowerings)) if op in table)
        # The docstring of the lowering describes the nodes; a namespace without lowerings has that of its predicate.
        function = ns.lowerings.get(op) or ns.predicates[op]
        rows.append(Support(op, how, _dtypes(ns, op), _first_sentence(function), function))
    for name, pattern in ns.patterns.items():
        code = pattern.check or pattern.lower
        notes = _first_sentence(code) if code else "Its operators, one by one."
        rows.append(Support(name, "pattern", (), notes, code))
    return rows


def _first_sentence(function: Callable[..., Any]) -> str:
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return text.replace("``", "`")


# ---------------------------------------------------------------- dtypes
def _dtypes(ns: Namespace, op: str) -> tuple[str, ...]:
    alone = replace(ns, probe=None)
    return tuple(short for dtype, short in DTYPES.items() if any(ask(alone, c) is None for c in _samples(op, dtype)))


def _samples(op: str, dtype: str) -> list[Any]:
    """Calls of an operator with operands of a dtype, as far as Relax accepts them."""
    make: Any = relax.op
    for part in _CONSTRUCTORS.get(op, op).removeprefix("relax.").split("."):
        make = getattr(make, part, None)
    if make is None:
        return []
    calls = []
    for arguments in _ARGUMENTS.get(op, _GENERIC):
        try:
            calls.append(relax.BlockBuilder().normalize(make(*arguments(lambda *shape: _tensor(dtype, *shape)))))
        except Exception:  # Relax does not have the operator for this dtype, or with these arguments
            continue
    return calls


def _tensor(dtype: str, *shape: int) -> Any:
    return relax.Var("x", relax.TensorType(shape or (2, 4, 8, 8), dtype))


def _conv(d: int, transposed: bool = False) -> Callable[[Any], tuple[Any, ...]]:
    kernel = (3,) * d
    return lambda t: (t(2, 4, *(8,) * d), t(4, 6, *kernel) if transposed else t(6, 4, *kernel))


def _spatial(d: int) -> Callable[[Any], tuple[Any, ...]]:
    return lambda t: (t(2, 4, *(8,) * d), (2,) * d)


Arguments = Callable[[Any], tuple[Any, ...]]
#: one operand, or two
_GENERIC: list[Arguments] = [lambda t: (t(),), lambda t: (t(), t())]
#: operators that another function makes
_CONSTRUCTORS = {"relax.nn.attention_bias": "relax.nn.attention"}
#: operators that want more: ways to call them, given a maker of tensors
_ARGUMENTS: dict[str, list[Arguments]] = {
    **{f"relax.nn.conv{d}d": [_conv(d)] for d in (1, 2, 3)},
    **{f"relax.nn.conv{d}d_transpose": [_conv(d, transposed=True)] for d in (1, 2, 3)},
    **{f"relax.nn.{k}_pool{d}d": [_spatial(d)] for k in ("max", "avg", "adaptive_avg") for d in (1, 2, 3)},
    "relax.astype": [lambda t: (t(), "float32"), lambda t: (t(), "float16")],
    "relax.broadcast_to": [lambda t: (t(1, 4), (2, 4))],
    "relax.clip": [lambda t: (t(), 0, 6)],
    "relax.concat": [lambda t: ([t(), t()], 1)],
    "relax.cumsum": [lambda t: (t(), 1)],
    "relax.einsum": [lambda t: ((t(2, 3), t(3, 4)), "ij,jk->ik")],
    "relax.ewise_fma": [lambda t: (t(), t(), t())],
    "relax.expand_dims": [lambda t: (t(), 0)],
    "relax.flip": [lambda t: (t(), 1)],
    "relax.image.resize2d": [lambda t: (t(), (16, 16))],
    "relax.image.resize3d": [lambda t: (t(2, 4, 8, 8, 8), (16, 16, 16))],
    "relax.nn.attention": [lambda t: (t(1, 4, 2, 8), t(1, 4, 2, 8), t(1, 4, 2, 8))],
    "relax.nn.attention_bias": [lambda t: (t(1, 4, 2, 8), t(1, 4, 2, 8), t(1, 4, 2, 8), t(1, 2, 4, 4))],
    "relax.nn.batch_norm": [lambda t: (t(), t(4), t(4), t(4), t(4), 1, 1e-5, True, True, 0.1, False)],
    "relax.nn.group_norm": [lambda t: (t(), t(4), t(4), 2, 1, [2, 3])],
    "relax.nn.instance_norm": [lambda t: (t(), t(4), t(4), 1, [2, 3])],
    "relax.nn.layer_norm": [lambda t: (t(), t(8), t(8), [-1])],
    "relax.nn.pad": [lambda t: (t(), [0, 0, 0, 0, 1, 1, 1, 1])],
    "relax.nn.pixel_shuffle": [lambda t: (t(), 2)],
    "relax.nn.prelu": [lambda t: (t(), t(4))],
    "relax.nn.rms_norm": [lambda t: (t(), t(8))],
    "relax.outer": [lambda t: (t(4), t(8))],
    "relax.power": [lambda t: (t(), relax.const(2, t().ty.dtype))],
    "relax.quantize": [lambda t: (t(), relax.const(0.5, "float32"), relax.const(0, "int8"))],
    "relax.dequantize": [lambda t: (t(), relax.const(0.5, "float32"), relax.const(0, t().ty.dtype))],
    "relax.index_tensor": [lambda t: (t(), [_tensor("int64", 3)])],
    "relax.repeat": [lambda t: (t(), 2, 1)],
    "relax.reshape": [lambda t: (t(), (8, 64))],
    "relax.split": [lambda t: (t(), 2, 1)],
    "relax.squeeze": [lambda t: (t(1, 4), [0])],
    "relax.stack": [lambda t: ([t(), t()], 1)],
    "relax.strided_slice": [lambda t: (t(), [1], [0], [2])],
    "relax.gather_elements": [lambda t: (t(2, 3), relax.const([[0, 1]], "int64"), 1)],
    "relax.gather_nd": [lambda t: (t(2, 3), relax.const([[0, 1]], "int64"))],
    "relax.take": [lambda t: (t(), relax.const([0, 1], "int64"), 1)],
    "relax.tile": [lambda t: (t(), (1, 2, 1, 1))],
    "relax.where": [lambda t: (_tensor("bool"), t(), t())],
}
