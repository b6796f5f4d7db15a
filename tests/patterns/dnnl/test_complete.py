"""Every operator and pattern of the namespace has rows in these tables, with odd shapes and both ends of attributes."""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case
from tests.tvm_version import is_skipped
from tvm_byoc_dnnl.ir.relax_utils import composite_of, op_calls, static_shape
from tvm_byoc_dnnl.vendors.namespaces import namespace

NAMESPACE = "dnnl"
HERE = Path(__file__).parent

#: what the sizes that a call sees must include, over all accepted rows of its operator
ODD = {
    "an axis of 1": lambda shape: 1 in shape,
    "a prime": lambda shape: any(d in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 33) for d in shape),
    "no multiple of 16": lambda shape: any(d % 16 for d in shape),
    "nothing": lambda shape: 0 in shape,
}
_POOLS = [f"relax.nn.{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)]
_NORMS = [f"relax.nn.{kind}_norm" for kind in ("batch", "layer", "group", "instance")]
_RESIZES = ["relax.image.resize2d", "relax.image.resize3d"]
#: attributes of which one value is taken, or tested, and why; "*" stands for every operator
ONE_VALUE: dict[tuple[str, str], str] = {
    ("onnx.tvm_byoc_dnnl.ReluOfNumbers", "__dict__"): "it has one operand and one result",
    ("*", "out_dtype"): "a result of another dtype is refused, or has a row of its own",
    ("*", "out_layout"): "TVM itself has no kernels that change the layout",
    **{(op, "dilation"): "oneDNN has reference code for dilated windows" for op in _POOLS},
    **{(op, "count_include_pad"): "a maximum counts nothing" for op in _POOLS[:3]},
    **{(op, flag): "refused where it is false" for op in _NORMS for flag in ("scale", "center")},
    ("relax.nn.batch_norm", "training"): "refused where it is true",
    ("relax.nn.batch_norm", "momentum"): "for training",
    **{
        (op, name): "of methods that are refused"
        for op in _RESIZES
        for name in ("roi", "cubic_alpha", "cubic_exclude", "extrapolation_value")
    },
    **{(f"relax.nn.attention{s}", "window_size"): "refused where there is one" for s in ("", "_bias")},
    ("relax.strided_slice", "assume_inbound"): "it only says what TVM need not check",
}


def _cases(table: str) -> list[Case]:
    found = []
    for path in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.patterns.dnnl.{path.stem}")
        found += [row.values[0] for row in getattr(module, table, ()) if not is_skipped(row)]
    return [case for case in found if isinstance(case, Case) and case.compiler == NAMESPACE]


def _calls(case: Case) -> list[Any]:
    """The calls that the namespace was asked for: before preparation too, which may write them as others."""
    return [call for f in (case.module["main"], case.prepared) for _, call in op_calls(f)]


@cache
def accepted() -> dict[str, list[Any]]:
    """The calls of each operator in the tables of what is taken."""
    calls = defaultdict(list)
    for case in _cases("ACCEPT"):
        for call in _calls(case):
            calls[call.op.name].append(call)
    return calls


@cache
def refused() -> set[str]:
    """The operators in the tables of what is refused."""
    return {call.op.name for case in _cases("REFUSE") for call in _calls(case)}


def _shapes(call: Any) -> list[tuple[int, ...]]:
    fields = [f for a in call.args for f in getattr(a.ty, "fields", [a.ty])]
    shapes = [static_shape(f) for f in fields if isinstance(f, relax.TensorType)]
    return [shape for shape in shapes if shape is not None]


def _values(call: Any) -> dict[str, str]:
    names = [f.name for f in type(call.attrs).__tvm_ffi_type_info__.fields] if call.attrs else []
    return {name: str(getattr(call.attrs, name)) for name in names}


@pytest.mark.parametrize("op", byoc.supported_ops(NAMESPACE))
def test_an_operator_has_rows(op):
    calls = accepted().get(op, [])
    assert calls, f"add rows for {op} to ACCEPT of a file in {HERE.name}/: `accept('name', function, data(...))`"
    seen = [shape for call in calls for shape in _shapes(call)]
    for what, holds in ODD.items():
        assert any(map(holds, seen)), f"add a row of {op} to ACCEPT in which an operand has {what}; there are {seen}"
    values = defaultdict(set)
    for call in calls:
        for key, value in _values(call).items():
            values[key].add(value)
    for key, some in values.items():
        if (op, key) not in ONE_VALUE and ("*", key) not in ONE_VALUE:
            assert len(some) > 1, (
                f"add a row of {op} to ACCEPT with another `{key}` than {some}, or say in ONE_VALUE why"
            )


def _lowerings() -> dict[Any, list[str]]:
    ops = defaultdict(list)
    for op, lowering in namespace(NAMESPACE).lowerings.items():
        ops[lowering].append(op)
    return ops


@pytest.mark.parametrize("lowering", _lowerings(), ids=lambda f: f"{Path(inspect.getfile(f)).stem}.{f.__name__}")
def test_a_lowering_has_refusals(lowering):
    ops = _lowerings()[lowering]
    assert refused().intersection(ops), f"add a row of {' or '.join(ops)} to REFUSE: `refuse('name', 'reason', ...)`"


def test_no_operator_has_a_lowering_and_a_reason_against_it():
    ns = namespace(NAMESPACE)
    assert not ns.lowerings.keys() & ns.unsupported.keys(), "take them out of _UNSUPPORTED in patterns/dnnl/policy.py"


@cache
def matched() -> set[str]:
    """The patterns that took a row's calls."""
    functions = [f for case in _cases("ACCEPT") for f in _composites(case)]
    return {name.partition(".")[2] for name in map(composite_of, functions) if name}


def _composites(case: Case) -> list[Any]:
    annotate = byoc.AnnotateExternalCompiler(NAMESPACE, prepare=case.prepare)
    return list(annotate(case.module).functions.values())


@pytest.mark.parametrize("pattern", namespace(NAMESPACE).patterns)
def test_a_pattern_has_rows(pattern):
    assert pattern in matched(), f"add a row to ACCEPT whose calls the pattern {pattern} takes"
