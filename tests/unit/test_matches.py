"""Matches of patterns are those of TVM's FuseOpsByPattern."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from tvm_byoc_dnnl.ir.functions import inline_functions
from tvm_byoc_dnnl.ir.relax_utils import composite_of, with_functions
from tvm_byoc_dnnl.partitioning.matches import Composites, Searched, root_ops

add, exp, relu = is_op("relax.add"), is_op("relax.exp"), is_op("relax.nn.relu")
_PATTERNS = {
    "one call": exp(wildcard()),
    "two calls": exp(exp(wildcard())),
    "the longer of two": relu(exp(wildcard())) | exp(wildcard()),
    "the first of two that overlap": relu(exp(wildcard())) | exp(add(wildcard(), wildcard())),
    "both operands": add(exp(wildcard()), exp(wildcard())),
    "one call twice": add(exp(wildcard()), exp(wildcard())) | exp(exp(wildcard())),
    "with attributes": is_op("relax.sum")(wildcard()).has_attr({"axis": [1]}),
    "no such call": is_op("relax.tanh")(wildcard()),
}


def _module(dims: tuple[Any, ...]) -> tvm.IRModule:
    x, y = (relax.Var(name, relax.TensorType(dims, "float32")) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            first = builder.emit(relax.op.exp(builder.emit(relax.op.add(x, relax.const(1.0)))))
            second = builder.emit(relax.op.exp(builder.emit(relax.op.nn.relu(first))))
            third = builder.emit(relax.op.exp(builder.emit(relax.op.exp(builder.emit(relax.op.exp(y))))))
            both = builder.emit(relax.op.add(second, third))
            total = builder.emit(relax.op.sum(both, axis=[1]))
            out = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.exp(total))))
        builder.emit_func_output(out)
    return builder.get()


def _by_tvm(mod: tvm.IRModule, pattern: Any) -> tvm.IRModule:
    return relax.transform.FuseOpsByPattern([("v.p", pattern)], bind_constants=True)(mod)


def _own(mod: tvm.IRModule, pattern: Any) -> tvm.IRModule:
    groups = Searched(mod["main"]).matches(pattern, {}, lambda _context: {"Composite": "v.p"})
    composites = Composites(mod)
    main = composites.replace_in(mod["main"], lambda var, _value: groups.get(var))
    return with_functions(mod, {mod.get_global_var("main"): main, **composites.functions})


def _calls(mod: tvm.IRModule) -> list[Any]:
    """The host's calls in order: an operator, or the operators in a composite."""
    found = []
    for binding in mod["main"].body.blocks[0].bindings:
        value = binding.value
        if isinstance(value, relax.Call):
            inside = isinstance(value.op, tvm.ir.GlobalVar)
            found.append([b.value.op.name for b in mod[value.op].body.blocks[0].bindings] if inside else value.op.name)
    return found


@pytest.mark.parametrize("dims", [(2, 3), ("n", 3)], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", _PATTERNS)
def test_matches_are_those_of_tvm(name: str, dims: tuple[Any, ...]) -> None:
    n = tvm.tirx.Var("n", "int64")
    mod = _module(tuple(n if d == "n" else d for d in dims))
    pattern = _PATTERNS[name]
    own, theirs = _own(mod, pattern), _by_tvm(mod, pattern)
    assert relax.analysis.well_formed(own) is not False  # 0.27 raises instead
    assert _calls(own) == _calls(theirs)
    assert any(map(composite_of, own.functions.values())) == (name != "no such call")


def _spread(emit: Any, x: Any) -> tuple[Any, Any, Any]:
    mean = emit(relax.op.mean(x, axis=[1], keepdims=True))
    off = emit(relax.op.subtract(x, mean))
    return mean, off, emit(relax.op.multiply(off, off))


def _read_between(emit: Any, x: Any) -> tuple[Any, ...]:
    mean = emit(relax.op.mean(x, axis=[1], keepdims=True))
    early = emit(relax.op.exp(mean))
    off = emit(relax.op.subtract(x, mean))
    other, later = emit(relax.op.negative(x)), emit(relax.op.tanh(early))
    return emit(relax.op.multiply(off, off)), other, later


def _one_behind_the_other(emit: Any, x: Any) -> tuple[Any, ...]:
    mean, _, root = _spread(emit, x)
    again, _, last = _spread(emit, emit(relax.op.add(root, mean)))
    return last, emit(relax.op.exp(again))


def _interleaved(emit: Any, x: Any) -> tuple[Any, ...]:
    means = [emit(relax.op.mean(e, axis=[1], keepdims=True)) for e in (x, emit(relax.op.exp(x)))]
    offs = [emit(relax.op.subtract(x, means[i])) for i in range(2)]
    return tuple(emit(relax.op.multiply(off, off)) for off in offs) + tuple(means)


def _read_by_the_other(emit: Any, x: Any) -> tuple[Any, ...]:
    mean = emit(relax.op.mean(x, axis=[1], keepdims=True))
    second = emit(relax.op.mean(emit(relax.op.add(x, mean)), axis=[1], keepdims=True))
    off, far = emit(relax.op.subtract(x, mean)), emit(relax.op.subtract(emit(relax.op.add(x, mean)), second))
    return emit(relax.op.multiply(off, off)), emit(relax.op.multiply(far, far)), second


_OF_SEVERAL_RESULTS = {
    "the last": lambda emit, x: _spread(emit, x)[2:],
    "an early one, too": lambda emit, x: _spread(emit, x)[::2],
    "all three": _spread,
    "one that is read by others": lambda emit, x: (emit(relax.op.exp((s := _spread(emit, x))[0])), s[2]),
    "one that is read between the calls": _read_between,
    "of two matches in a row": _one_behind_the_other,
    "of two matches at the same time": _interleaved,
    "one that another match reads": _read_by_the_other,
}


@pytest.mark.parametrize("rows", [4, "n"], ids=["static", "symbolic"])
@pytest.mark.parametrize("results", _OF_SEVERAL_RESULTS)
def test_matches_of_several_results_are_those_of_tvm(results: str, rows: Any) -> None:
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64") if rows == "n" else rows, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.Tuple(_OF_SEVERAL_RESULTS[results](builder.emit, x)))
        builder.emit_func_output(out)
    mod = builder.get()
    off = is_op("relax.subtract")(wildcard(), is_op("relax.mean")(wildcard()))
    pattern = is_op("relax.multiply")(off, off)
    own, theirs = _own(mod, pattern), _by_tvm(mod, pattern)
    assert relax.analysis.well_formed(own) is not False  # 0.27 raises instead
    assert sorted(map(str, _calls(own))) == sorted(map(str, _calls(theirs)))
    data = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((4, 8)).astype("float32"))
    for got, want in zip(*(_run(_inlined(m), data) for m in (own, mod)), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def _inlined(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with what the composites compute in the place of their calls."""
    bodies = {gv: f.without_attr("Composite") for gv, f in mod.functions.items() if composite_of(f)}
    return tvm.IRModule({mod.get_global_var("main"): inline_functions(mod["main"], bodies)})


def _run(mod: tvm.IRModule, *arguments: Any) -> Any:
    return relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](*arguments)


def test_a_composite_keeps_names_and_types() -> None:
    mod = _module((2, 3))
    own = _own(mod, relu(exp(wildcard())))
    before = {b.var.name: b.var.ty for b in mod["main"].body.blocks[0].bindings}
    for binding in own["main"].body.blocks[0].bindings:
        tvm.ir.assert_structural_equal(binding.var.ty, before[binding.var.name])
        tvm.ir.assert_structural_equal(binding.value.ty, before[binding.var.name])


def test_refused_matches_leave_the_function_alone() -> None:
    mod = _module((2, 3))
    seen: list[str] = []
    groups = Searched(mod["main"]).matches(
        exp(wildcard()), {}, lambda context: seen.append(context.value_to_bound_var[context.matched_expr].name)
    )
    assert len(seen) == 6 and not groups


def test_the_context_has_the_annotated_parts_and_the_readers() -> None:
    inner = exp(wildcard())
    contexts: list[Any] = []
    Searched(_module((2, 3))["main"]).matches(relu(inner), {"inner": inner, "other": wildcard()}, contexts.append)
    assert [set(c.annotated_expr) for c in contexts] == [{"inner"}, {"inner"}]
    for context in contexts:
        inside, root = context.matched_bindings
        assert context.matched_bindings[inside].same_as(context.annotated_expr["inner"])
        assert [reader.same_as(root) for reader in context.var_usages[inside]] == [True]


def test_the_operators_at_the_root() -> None:
    assert set(root_ops(_PATTERNS["the longer of two"]) or ()) == {"relax.nn.relu", "relax.exp"}
    assert set(root_ops(_PATTERNS["with attributes"]) or ()) == {"relax.sum"}
    assert root_ops(exp(wildcard()) | wildcard()) is None
    assert root_ops(wildcard()(wildcard())) is None
