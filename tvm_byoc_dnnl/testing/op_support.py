"""The operators that a namespace may take, how, and in which dtypes: from the registry, and by trial calls.

The dtypes are found by lowering the calls that the conformance kit has of each operator, in each dtype. The library is
not asked, so the answer is the same on every machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..ir.relax_utils import op_calls
from ..partitioning.annotate.trial import ask
from ..vendors.namespace import Namespace
from .conformance.calls import written_cases
from .conformance.case import Case

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
    """One row."""

    #: Relax operator, or a pattern's name
    name: str
    #: ``predicate``, ``lowering``, ``predicate + lowering`` or ``pattern``
    how: str
    #: short names of the dtypes that are taken; empty where that is not known
    dtypes: tuple[str, ...]
    #: first sentence of the vendor's docstring
    notes: str
    #: where it is written
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


def _dtypes(ns: Namespace, op: str) -> tuple[str, ...]:
    """Those in which it takes a call of the kit, as it is or with constants behind the first operand."""
    alone, cases = replace(ns, probe=None), [c for c in written_cases(op) if all(a.size for a in c.arrays)]
    cases += [replace(case, constants=tuple(range(1, len(case.arrays)))) for case in cases if len(case.arrays) > 1]
    return tuple(n for dtype, n in DTYPES.items() if any(_takes(alone, case.of_dtype(dtype)) for case in cases))


def _takes(ns: Namespace, case: Case) -> bool:
    calls = () if case.main is None else (call for _, call in op_calls(case.main) if call.op.name == case.subject)
    tensors = (relax.TensorType, relax.TupleType)  # a call without any has the same dtype in all cases
    return any(isinstance(a.ty, tensors) and ask(ns, call) is None for call in calls for a in call.args[:1])
