"""Placement by cost: the search, the file of times, and what compile makes of it.

The vendors have cost models, so nothing depends on the speed of the machine but in the tests of the measurement.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_module
from tests.harness import assert_right
from tests.unit.failing_vendor import owners, run, vendors
from tests.unit.test_fallback_codegen import EXPECTED, Chain, X
from tvm_byoc_dnnl.ir.relax_utils import codegen_of, op_calls, ops_of
from tvm_byoc_dnnl.tuning import _identity, database
from tvm_byoc_dnnl.tuning.database import Database, Timing, Workload, measure, race
from tvm_byoc_dnnl.tuning.plans import Costs, Planner, callable_of
from tvm_byoc_dnnl.tuning.search import blocks_of, by_dynamic_programming
from tvm_byoc_dnnl.vendors.namespaces import namespace

T = R.Tensor((4, 4), "float32")


def names(mod: tvm.IRModule) -> list[str]:
    """The operators of the one region in a model, in order of their names."""
    (region,) = (f for f in mod.functions.values() if codegen_of(f))
    return sorted(ops_of(region))


@contextmanager
def priced(**costs: dict[str, float]) -> Iterator[None]:
    """Vendors by name, each with what a call of its region costs, and what each operator in it costs."""
    with vendors(*((name, [f"relax.{op}" for op in cost if op != "call"]) for name, cost in costs.items())):
        for name, cost in costs.items():
            byoc.register_cost(name, _model(cost))
        yield


def _model(cost: dict[str, float]) -> Callable[[tvm.IRModule], float]:
    def seconds(mod: tvm.IRModule) -> float:  # so few that TVM, which is measured, is never the cheapest
        return 1e-9 * (cost["call"] + sum(cost[op.removeprefix("relax.")] for op in names(mod)))

    return seconds


# ---------------------------------------------------------------- the search
MODELS = {
    "a cheap operator is not worth a border": (
        {"va": {"call": 10, "exp": 1}, "vb": {"call": 10, "add": 1, "exp": 3, "multiply": 1}},
        {"a": "vb", "b": "vb", "c": "vb"},
    ),
    "a dear one is": (
        {"va": {"call": 10, "exp": 1}, "vb": {"call": 10, "add": 1, "exp": 300, "multiply": 1}},
        {"a": "vb", "b": "va", "c": "vb"},
    ),
    "the second compiler is better for all": (
        {"va": {"call": 1, "add": 9, "exp": 9, "multiply": 9}, "vb": {"call": 1, "add": 1, "exp": 1, "multiply": 1}},
        {"a": "vb", "b": "vb", "c": "vb"},
    ),
    "nothing is better than the priority": (
        {"va": {"call": 1, "add": 1, "exp": 1, "multiply": 1}, "vb": {"call": 1, "add": 1, "exp": 1, "multiply": 1}},
        {"a": "va", "b": "va", "c": "va"},
    ),
}


@pytest.mark.parametrize(("costs", "expected"), MODELS.values(), ids=MODELS)
def test_the_cheapest_placement_is_found(costs, expected):
    with priced(**costs):
        placement = byoc.tune(Chain, list(costs), budget=60)
        assert placement == expected
        mod = byoc.partition(Chain, list(costs), place=placement)
        assert [owner.partition("_")[0] for owner in owners(mod).values()] == list(expected.values())
        assert_right(run(mod, X), EXPECTED)


OPS = ("exp", "tanh", "abs", "sqrt", "sin", "cos")


def chain(*branch: str) -> tvm.IRModule:
    """One call of each of `OPS` after the other; a branch of further calls is beside the last but one."""
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for op in OPS[:-1]:
                before, value = value, builder.emit(getattr(tvm.relax.op, op)(value), name_hint=f"v_{op}")
            for op in branch:
                before = builder.emit(getattr(tvm.relax.op, op)(before), name_hint=f"v_{op}")
                value = builder.emit(tvm.relax.op.add(value, before), name_hint="v_add")
            result = builder.emit_output(getattr(tvm.relax.op, OPS[-1])(value))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dynamic_programming_finds_the_best_of_all_placements_of_a_chain(seed):
    """Against all 64: the cost of a region is a call and its operators, so it is a sum over blocks and seams."""
    rng = np.random.default_rng(seed)
    costs = {name: {"call": 4, **{op: int(rng.integers(1, 9)) for op in OPS}} for name in ("va", "vb")}

    def total(owners: Sequence[str]) -> int:
        borders = sum(a != b for a, b in itertools.pairwise(owners))
        return 4 * (1 + borders) + sum(costs[owner][op] for owner, op in zip(owners, OPS, strict=True))

    with priced(**costs):
        found = by_dynamic_programming(Planner(chain(), list(costs)), Costs(Database(), measures=True), math.inf)
    assert list(found.values()) != [*found.values()][:1] * len(OPS), "all with one compiler: the costs show nothing"
    assert total(list(found.values())) == min(map(total, itertools.product(costs, repeat=len(OPS))))


def test_branches_are_one_block_of_the_chain():
    with priced(va={"call": 1, **dict.fromkeys([*OPS, "negative"], 1)}):
        planner = Planner(chain("negative"), ["va"])
        blocks = [[b.var.name for b in block] for block in blocks_of(planner)]
    assert [b for b in blocks if len(b) > 1] == [["v_sin", "v_negative", "v_add"]]
    assert [v for block in blocks for v in block] == [
        "v_exp",
        "v_tanh",
        "v_abs",
        "v_sqrt",
        "v_sin",
        "v_negative",
        "v_add",
        "gv",
    ]


@I.ir_module
class Twice:
    """The same two calls twice, behind a call that only the second vendor has."""

    @R.function
    def main(x: T) -> T:
        with R.dataflow():
            a = R.exp(x)
            b = R.add(a, a)
            m = R.multiply(b, b)
            c = R.exp(m)
            d = R.add(c, c)
            R.output(d)
        return d


def test_equal_regions_are_asked_for_once_and_move_together():
    asked = []

    def cost(mod: tvm.IRModule) -> float:
        asked.append(tuple(names(mod)))
        return 1e-7 if "relax.exp" in names(mod) else 1e-9

    with vendors(("va", ["relax.exp", "relax.add"]), ("vb", ["relax.multiply", "relax.exp", "relax.add"])):
        byoc.register_cost("va", cost)
        byoc.register_cost("vb", lambda mod: 2e-9)
        assert set(byoc.tune(Twice, ["va", "vb"], budget=60).values()) == {"vb"}
        assert asked[0] == ("relax.add", "relax.exp")
        assert asked.count(("relax.add", "relax.exp")) == 1


def test_a_region_is_tried_once_however_many_placements_have_it():
    """Some vendors' codegens compile the region for an attempt."""
    tried = []

    def codegen(functions, options, constant_names):
        tried.extend(tuple(ops_of(f)) for f in functions)
        return [c_module(str(f.attrs["global_symbol"]), "int never;") for f in functions]

    byoc.register_annotate_compiler("vc", ["relax.exp"])
    byoc.register_codegen("vc", codegen)
    try:
        planner = Planner(chain(), ["vc"])
        for _ in range(3):
            planner.plan(planner.in_order(["vc"]))
        planner.of_part(chain()).plan(planner.in_order(["vc"]))
    finally:
        byoc.unregister_compiler("vc")
    assert tried == [("relax.exp",)]


def open_model() -> onnx.ModelProto:
    make = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Exp", ["x"], ["a"]), onnx.helper.make_node("Sin", ["a"], ["y"])]
    x, y = (make(name, onnx.TensorProto.FLOAT, ["N", 4]) for name in "xy")
    return onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y]))


def test_an_open_size_is_measured_with_the_size_that_the_model_is_optimised_for(tmp_path, in_one_process):
    in_one_process()
    path, shapes = tmp_path / "times.jsonl", {"x": ["N:8", 4]}
    with pytest.raises(byoc.InputError, match=r"open dims \(N\).*N:8 in place of 8"):
        byoc.tune(open_model(), "ccompiler")
    placement = byoc.tune(open_model(), "ccompiler", shapes=shapes, budget=60, database=path)
    assert placement.measured >= 2
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert {e["work"].rpartition("of ")[2] for e in entries if "time" in e} == {"float32[~8, 4]"}
    ex = byoc.compile(open_model(), "ccompiler", shapes=shapes, database=path)
    x = np.ones((3, 4), "float32")
    assert_right(byoc.Runner(ex)(x), np.sin(np.exp(x)))


def test_calls_of_tvm_that_cannot_be_fast_enough_are_not_measured(monkeypatch):
    measured = []

    def measure(_costs: Costs, workload: SimpleNamespace) -> Timing:
        measured.append(workload.key)
        return Timing(workload.flops * 1e-9, 0.0, True)

    monkeypatch.setattr(Costs, "_measure", measure)
    costs = Costs(Database(), measures=True)
    small, large, library = (
        SimpleNamespace(compiler=compiler, key=key, flops=flops)
        for compiler, key, flops in (("tvm", "small", 10**6), ("tvm", "large", 10**10), ("ccompiler", "own", 10**10))
    )
    assert costs.of(small, 1e-9) == 1e-3  # nothing is known of TVM yet
    assert costs.of(large, 1.0) is None
    assert costs.of(library, 1.0) == 10.0
    assert measured == ["small", "own"]
    assert costs.of(large) == 10.0 and costs.of(large, 1.0) == 10.0  # known now


def test_the_time_is_a_limit():
    with priced(**MODELS["a dear one is"][0]):
        found = byoc.tune(Chain, ["va", "vb"], budget=1e-6)
        assert found.tried == 1
        assert found == {"a": "vb", "b": "va", "c": "vb"}  # the priorities


def test_explain_shows_times_and_names_a_compiler_that_costs_more_than_it_brings(tmp_path):
    path = tmp_path / "times.jsonl"
    costs, expected = MODELS["a cheap operator is not worth a border"]
    with priced(**costs):
        byoc.tune(Chain, list(costs), budget=600, database=path)
        report = byoc.explain(Chain, list(costs), database=path)
        assert {call.name: call.compiler for call in report.calls} == expected
        exp = next(call for call in report.calls if call.op == "relax.exp")
        shown = {c.compiler: (round(1e9 * c.seconds), c.calls) for c in exp.candidates if c.seconds is not None}
        assert shown == {"va": (11, 1), "vb": (15, 3)}
        (advice,) = (line for line in report.advice if "more than it brings" in line)
        assert advice.startswith("va costs more than it brings") and "3.3e-05 ms, and without it 1.5e-05 ms" in advice
        assert "(1.5e-05 ms for 3 calls) or va (1.1e-05 ms for 1 call)" in report.to_text(every_call=True, width=200)
        assert json.loads(report.to_json())["calls"][0]["candidates"][0].keys() >= {"seconds", "calls"}
        without = byoc.explain(Chain, list(costs))
        assert not any("brings" in line for line in without.advice)
        assert {c.seconds for call in without.calls for c in call.candidates} == {None}


# ---------------------------------------------------------------- measured, with a file
@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called: from now on whole models are timed here, which is less exact and sooner done."""

    def here(models: Sequence[tuple[tvm.IRModule, Any]], target: str, *_: Any) -> list[Timing]:
        return race([callable_of(mod, target, choices) for mod, choices in models], 1)

    return lambda: monkeypatch.setattr("tvm_byoc_dnnl.tuning.race_apart", here)


def test_what_is_measured_is_kept_and_used(tmp_path, in_one_process):
    in_one_process()
    path = tmp_path / "times.jsonl"
    with vendors(("va", ["relax.exp"]), "vb"):
        lines = []
        first = byoc.tune(Chain, ["va", "vb"], budget=600, database=path, progress=lines.append)
        assert first.measured >= 4 and any("measuring vb: add, exp, multiply" in line for line in lines)
        byoc.tune(Chain, ["va", "vb"], budget=600, database=path)
        ex = byoc.compile(Chain, ["va", "vb"], database=path)
        assert_right(byoc.Runner(ex)(X), EXPECTED)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    times = [(e["compiler"], e["workload"]) for e in entries if "time" in e]
    assert {"va", "vb"} <= {compiler for compiler, _ in times}
    assert len(times) == len(set(times))  # nothing is measured twice
    assert all(e["setting"]["threads"] > 0 and e["setting"]["cpu"] for e in entries)


def test_another_model_with_equal_regions_uses_the_times(tmp_path):
    path = tmp_path / "times.jsonl"
    with vendors("va", "vb"):
        database = Database(path)
        renamed = tvm.IRModule({"main": _renamed(Chain["main"])})
        for compiler, seconds in (("va", 2.0), ("vb", 1.0)):
            mod = byoc.partition(Chain, compiler)
            (region,) = (f for f in mod.functions.values() if codegen_of(f))
            plain = region.without_attr("Codegen").without_attr("global_symbol")
            database.note_time(Workload(compiler, plain, mod), Timing(seconds, 0.0, True))
        mod = byoc.compile(renamed, ["va", "vb"], database=path)
        assert {call.compiler for call in byoc.explain(mod).calls} == {"vb"}


def test_a_time_with_other_options_is_another(tmp_path):
    """So is a placement; options that are their defaults change nothing, for files that were written before."""
    path, times = tmp_path / "times.jsonl", []
    with vendors("va", "vb"):
        byoc.register_codegen("va", namespace("va").codegen, options={"fast": False, "bits": 8}, override=True)
        for options in ({}, {"fast": False}, {"fast": True}, {"bits": 4}, {"fast": True, "bits": 4}):
            mod = byoc.partition(Chain, "va", options={"va": options})
            times.append(Workload("va", mod["va_0"], mod).key)
        assert times[0] == times[1] and len(set(times)) == 4
        for options, owner in (({"fast": True}, "va"), ({}, "vb")):
            mod = byoc.set_target_options(Chain, "va", **options)
            Database(path).note_placement(_identity(mod), ["va", "vb"], dict.fromkeys("abc", owner), False)
        for options, owner in (({"fast": True}, "va"), ({"fast": False}, "vb")):
            ex = byoc.compile(Chain, ["va", "vb"], options={"va": options}, database=path)
            assert {call.compiler for call in byoc.explain(ex).calls} == {owner}


def _renamed(func: tvm.relax.Function) -> tvm.relax.Function:
    """The same with other names."""
    names = {"a": "p", "b": "q", "c": "r"}
    builder = tvm.relax.BlockBuilder()
    (x,) = func.params
    y = tvm.relax.Var("y", x.ty)
    with builder.function("main", [y]):
        with builder.dataflow():
            values = {x: y}
            for var, call in op_calls(func):
                args = [values[a] for a in call.args]
                make = builder.emit_output if var.name == "c" else builder.emit
                values[var] = make(tvm.relax.Call(call.op, args), name_hint=names[var.name])
        builder.emit_func_output(values[var])
    return builder.finalize()["main"]


def test_a_file_that_was_cut_off_loses_one_line(tmp_path):
    path = tmp_path / "times.jsonl"
    with vendors("va"):
        mod = byoc.partition(Chain, "va")
        works = [Workload(name, mod["va_0"], mod) for name in ("va", "tvm")]
        for work in works:
            Database(path).note_time(work, Timing(1.0, 0.0, True))
        whole = path.read_text()
        path.write_text(whole[:-20])
        again = Database(path)
        assert [again.time_of(work) is not None for work in works] == [True, False]
        again.note_time(works[1], Timing(2.0, 0.0, True))
        assert [Database(path).time_of(work).seconds for work in works] == [1.0, 2.0]


BAD = {
    "no JSON": ("hello\n", "line 1: .*expected a database that byoc.tune has written"),
    "another format": ('{"format": 99}\n', "line 1: format 99; expected 1"),
    "no entry": ('{"format": 1}\n', "line 1: KeyError"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    (tmp_path / "x").write_text(text)
    with vendors("va"), pytest.raises(byoc.InputError, match=message):
        byoc.tune(Chain, "va", database=tmp_path / "x")


def test_wrong_arguments_are_refused(tmp_path):
    with vendors("va"):
        with pytest.raises(byoc.InputError, match="no database"):
            byoc.compile(Chain, "va", database=tmp_path / "missing")
        with pytest.raises(byoc.InputError, match="put it last"):
            byoc.tune(Chain, ["tvm", "va"])
        with pytest.raises(ValueError, match="unknown compiler 'nobody'"):
            byoc.tune(Chain, ["nobody"])
    with pytest.raises(ValueError, match="stands for TVM itself"):
        byoc.register_namespace("tvm")


def test_an_interrupt_keeps_what_was_measured(tmp_path):
    path = tmp_path / "times.jsonl"
    with vendors(("va", ["relax.exp"]), "vb"):

        def stop(line: str) -> None:
            if path.exists():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            byoc.tune(Chain, ["va", "vb"], database=path, progress=stop)
        assert Database(path).path == path and path.read_text().count("\n") >= 1


# ---------------------------------------------------------------- the measurement
def test_disturbed_blocks_do_not_count(monkeypatch):
    """Of three blocks, the second is disturbed each time that it is measured."""
    seconds = iter([(1.0, True), (1.0, True), (2.0, True), (9.0, False), (9.0, False), (9.0, False), (4.0, True)])
    monkeypatch.setattr(database, "_block", lambda call, count: next(seconds))
    monkeypatch.setattr(database, "_BLOCKS", 3)
    assert measure(lambda: None, budget_s=60) == Timing(3.0, 2 / 3, quiet=True, blocks=2)


def test_a_measurement_orders_what_differs(monkeypatch):
    """On a clock that only the calls advance."""
    now = [0.0]

    def takes(seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds

        return call

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    short, long = race([takes(0.002), takes(0.003)], rounds=3)
    assert (short.seconds, long.seconds) == pytest.approx((0.002, 0.003))
    assert measure(takes(0.002), budget_s=0.0).seconds == pytest.approx(0.002)


def test_a_damaged_database_is_an_error_or_a_time(tmp_path: Any) -> None:
    """A flipped bit or a cut-off file is never another kind of error, and a number never one that is no time."""
    path = tmp_path / "times.jsonl"
    database = Database(path)
    mod = tvm.IRModule.from_expr(Chain["main"])
    for compiler in ("ccompiler", "tvm"):
        database.note_time(Workload(compiler, Chain["main"], mod), Timing(0.25, 0.01, True))
    database.note_placement("model", ["ccompiler"], {"lv": "ccompiler"}, True)
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    for place in rng.integers(0, len(whole), 400):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        for data in (bytes(damaged), whole[:place], whole[:place] + bytes(40)):
            path.write_bytes(data)
            with contextlib.suppress(byoc.InputError):
                assert all(0 <= t.seconds < math.inf for t in Database(path)._times.values())


@pytest.mark.parametrize("time", ['"0.1"', "null", "NaN", "Infinity", "-1", "true", "[1]"])
def test_a_time_that_is_none_is_refused(tmp_path: Any, time: str) -> None:
    path = tmp_path / "times.jsonl"
    setting = {"cpu": "c", "threads": 1, "library": ""}
    line = {"format": 1, "compiler": "a", "workload": "w", "setting": setting}
    text = json.dumps({**line, "time": {"seconds": "HERE", "spread": 0, "quiet": True}}).replace('"HERE"', time)
    path.write_text(text + "\n")
    with pytest.raises(byoc.InputError, match=r"line 1: .*expected a database"):
        Database(path)
