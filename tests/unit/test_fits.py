"""Limits of a device: `fits` is asked before the codegen, and a region that does not fit is cut where that is cheap."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.partitioning.merge import cheapest_place, longest

pytestmark = pytest.mark.native

VENDOR = "small_npu"
ALL = byoc.RegionPolicy()


def calls(region) -> int:
    return sum(isinstance(value, relax.Call) for _, value in byoc.bindings_of(region))


def chain(count: int, sizes=(4,)) -> tvm.IRModule:
    """``count`` additions; where ``sizes`` has several, sums between tensors of these sizes, again and again."""
    x = relax.Var("x", relax.TensorType((1, sizes[0]), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for i in range(count):
                before, after = sizes[i % len(sizes)], sizes[(i + 1) % len(sizes)]
                if before == after:
                    value = builder.emit(relax.op.add(value, relax.const(np.float32(i + 1))))
                else:
                    weights = byoc.make_constant(np.full((before, after), 0.5, "float32"))
                    value = builder.emit(relax.op.matmul(value, weights))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


@pytest.fixture
def vendor():
    seen = SimpleNamespace(asked=[], compiled=[], options=[])

    def register(fits, **options):
        def codegen(functions, given, _names):
            seen.compiled += map(calls, functions)
            seen.options.append(dict(given))
            return [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"1", "1") for f in functions]

        def ask(region, *given):
            seen.asked.append(calls(region))
            return fits(region, *given)

        byoc.register_annotate_compiler(VENDOR, ["relax.add", "relax.matmul"])
        byoc.register_codegen(VENDOR, codegen, options=options)
        asked = ask if fits.__code__.co_argcount == 2 else lambda region: ask(region)
        byoc.register_namespace(VENDOR, fits=asked)
        byoc.register_blob_runner(VENDOR, lambda words: True, lambda data: lambda *tensors: None)
        return seen

    yield register
    byoc.unregister_compiler(VENDOR)


def at_most(limit: int):
    def fits(region):
        return True if calls(region) <= limit else byoc.Reject(f"{calls(region)} calls; the device has {limit}")

    return fits


def sizes(report: byoc.Report) -> list[int]:
    """The number of calls of each region, in the order of the calls."""
    regions = [c.region for c in report.calls if c.region]
    return [regions.count(name) for name in dict.fromkeys(regions)]


def lengths(mod: tvm.IRModule) -> list[int]:
    regions = {gv: f for gv, f in mod.functions.items() if f.attrs and "Codegen" in f.attrs}
    return [calls(regions[v.op]) for _, v in byoc.bindings_of(mod["main"]) if getattr(v, "op", None) in regions]


@pytest.mark.parametrize(("count", "limit"), [(1, 1), (5, 1), (4, 2), (23, 7), (200, 10), (10, 200)])
def test_a_chain_is_cut_into_the_fewest_regions_that_fit(vendor, count, limit):
    seen = vendor(at_most(limit))
    report = byoc.explain(chain(count), VENDOR, policy=ALL)
    assert {c.compiler for c in report.calls} == {VENDOR}
    assert sizes(report) == [min(limit, count - i) for i in range(0, count, limit)]
    regions = math.ceil(count / limit)
    assert len(seen.asked) <= 2 * math.log2(count) + 4 * regions + 2


def test_the_codegen_gets_each_region_that_fits_once_and_no_other(vendor):
    seen = vendor(at_most(10))
    byoc.compile(chain(200), VENDOR, policy=ALL, strict=True)
    assert seen.compiled == [10] * 20


def test_a_limit_that_the_codegen_says_is_found_with_few_calls(vendor):
    seen = vendor(lambda region: True)
    generate = at_most(10)

    def codegen(functions, _options, _names):
        seen.compiled += map(calls, functions)
        for refusal in map(generate, functions):
            if refusal is not True:
                raise refusal
        return [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"1", "1") for f in functions]

    byoc.register_codegen(VENDOR, codegen, override=True)
    report = byoc.explain(chain(200), VENDOR, policy=ALL)
    assert sizes(report) == [10] * 20
    assert sum(seen.compiled) <= 1000


def test_no_warning_says_that_a_call_of_another_region_is_not_offloaded(vendor, caplog):
    vendor(at_most(2))
    byoc.compile(chain(4), VENDOR, policy=ALL, strict=True)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_a_region_is_cut_where_least_crosses(vendor):
    vendor(at_most(4))
    mod = byoc.partition(chain(9, sizes=(64, 2, 64)), VENDOR, policy=ALL)
    assert lengths(mod) == [4, 3, 2]  # before the products that read two numbers


def test_a_call_that_does_not_fit_by_itself_goes_back_with_the_reason(vendor):
    vendor(lambda region: "relax.matmul" not in str(region) or byoc.Reject("4096 bytes; the device has 128"))
    report = byoc.explain(chain(6, sizes=(4, 4, 8, 4)), VENDOR, policy=ALL)
    assert {c.op: (c.compiler, c.reasons) for c in report.calls} == {
        "relax.add": (VENDOR, []),
        "relax.matmul": (None, [f"{VENDOR}: fits: 4096 bytes; the device has 128"]),
    }
    with pytest.raises(byoc.UnsupportedError, match="fits: 4096 bytes; the device has 128"):
        byoc.compile(chain(6, sizes=(4, 4, 8, 4)), VENDOR, policy=ALL, strict=True)


def test_a_second_compiler_gets_what_does_not_fit(vendor):
    vendor(lambda region: byoc.Reject("no room"))
    report = byoc.explain(chain(3), [VENDOR, "dnnl"], policy=ALL)
    assert {c.compiler for c in report.calls} == {"dnnl"}


def test_it_may_read_the_options(vendor):
    vendor(lambda region, options: calls(region) <= options["most"], most=3)
    limited = {VENDOR: {"most": 2}}
    assert sizes(byoc.explain(chain(6), VENDOR, policy=ALL)) == [3, 3]
    assert sizes(byoc.explain(chain(6), VENDOR, policy=ALL, options=limited)) == [2, 2, 2]


def raises(region):
    raise KeyError("sram")


def exits(region):
    raise SystemExit(3)


WRONG = {
    "returns-nothing": (lambda region: None, f"fits of '{VENDOR}' returned None; expected True, False or byoc.Reject"),
    "returns-a-number": (lambda region: 7, f"fits of '{VENDOR}' returned 7; expected"),
    "says-no": (lambda region: False, f"fits of '{VENDOR}' says no"),
    "raises": (raises, f"fits of '{VENDOR}' failed: KeyError: 'sram'"),
    "exits": (exits, "raised SystemExit: 3"),
}


@pytest.mark.parametrize(("fits", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_a_reason_and_the_build_goes_on(vendor, fits, reason):
    vendor(fits)
    report = byoc.explain(chain(3), VENDOR, policy=ALL)
    assert all(c.compiler is None and reason in c.reasons[0] for c in report.calls)
    byoc.compile(chain(3), VENDOR, policy=ALL)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="fits is 3; expected a function"):
        byoc.register_namespace(VENDOR, fits=3)


def test_a_dry_run_asks_fits_and_runs_no_compiler(vendor):
    seen = vendor(at_most(2))
    report = byoc.explain(chain(5), VENDOR, policy=ALL, dry_run=True)
    assert sizes(report) == [2, 2, 1]
    assert not seen.compiled and seen.asked
    assert lengths(byoc.partition(chain(5), VENDOR, policy=ALL, dry_run=True)) == [2, 2, 1]
    assert not seen.compiled


@pytest.mark.parametrize("guess", [0, 1, 5, 9, 10, 11, 40, 99])
@pytest.mark.parametrize("limit", [0, 1, 2, 9, 10, 11, 39, 40])
def test_the_longest_part_is_found_whatever_the_guess(limit, guess):
    asked = []
    assert longest(lambda n: asked.append(n) or n <= limit, 40, guess) == limit
    assert len(asked) == len(set(asked)) <= 2 * math.log2(40) + 2
    assert all(1 <= n <= 40 for n in asked)


@pytest.mark.parametrize(
    ("crossing", "place"),
    [([8, 8, 8, 8], 4), ([8, 0, 800, 800], 2), ([800, 800, 700, 800], 4), ([0, 10**6, 10**6, 10**6], 1)],
)
def test_the_cheapest_place_is_that_of_the_least_bytes_for_each_call(crossing, place):
    assert cheapest_place(4, lambda at: crossing[at - 1]) == place


# ---------------------------------------------------------------- notes
NOTES = {
    "a line": (lambda region: f"{calls(region)} cycles\nof 9", "3 cycles of 9"),
    "with options": (lambda region, options: f"{options['most']} at most", "7 at most"),
    "nothing": (lambda region: None, ""),
    "a number": (lambda region: 7, f"notes of '{VENDOR}' returned 7; expected a line of text, or None"),
    "raises": (raises, f"notes of '{VENDOR}' raised KeyError: 'sram'"),
    "exits": (exits, f"notes of '{VENDOR}' raised SystemExit: 3"),
}


@pytest.mark.parametrize(("notes", "expected"), NOTES.values(), ids=NOTES)
def test_explain_shows_what_a_vendor_notes_of_a_region(vendor, caplog, notes, expected):
    vendor(lambda region: True, most=7)
    byoc.register_namespace(VENDOR, notes=notes)
    report = byoc.explain(chain(3), VENDOR, policy=ALL)
    (region,) = report.regions
    assert expected in region.notes or (region.notes == "" and expected in caplog.text)
    assert region.notes in report.to_text()
    assert byoc.explain(chain(3), VENDOR, policy=ALL, dry_run=True).regions[0].notes == ""
