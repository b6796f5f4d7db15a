"""Lock files: stable text, read back, and a diff that says what moved where and why."""

import pytest

from tvm_byoc_dnnl import RegionPolicy
from tvm_byoc_dnnl.core.errors import ArtifactError
from tvm_byoc_dnnl.report import CallReport, Report, Totals
from tvm_byoc_dnnl.report.lock import Lock, compare, make_lock

CONV, TOPK = "relax.nn.conv2d", "relax.topk"
OUT = "float32[1, 64, 56, 56]"


def report(*calls):
    """A report of calls given as (op, compiler) or (op, compiler, reason)."""
    made = [
        CallReport(
            id=i,
            op=op,
            name=f"lv{i}",
            function="main",
            compiler=compiler,
            region=compiler and f"{compiler}_{i}",
            pattern=None,
            flops=1,
            bytes=1,
            output=OUT,
            reasons=list(reasons),
        )
        for i, (op, compiler, *reasons) in enumerate(calls)
    ]
    taken = sum(c.compiler is not None for c in made)
    return Report(["dnnl", "other"], made, [], Totals(len(made), taken, len(made), taken, 0), versions={"tool": "1.0"})


def lock(*calls):
    return make_lock(report(*calls), {"data": (1, 3, 8, 8)})


def test_text_and_back():
    written = lock((CONV, "dnnl"), (TOPK, None), (CONV, "dnnl"))
    assert written.to_text() == (
        "# 2 of 3 calls offloaded; tool 1.0\n"
        "format tvm_byoc_dnnl.lock 1\n"
        "compiler dnnl\n"
        "compiler other\n"
        "shape data 1,3,8,8\n"
        "\n"
        f"dnnl  2  relax.nn.conv2d  {OUT}\n"
        f"tvm   1  relax.topk       {OUT}\n"
    )
    assert Lock.from_text(written.to_text()) == written


def test_a_policy_is_kept():
    policy = RegionPolicy(exclude=("relax.nn.*", "lv 3"), force=("a",), max_regions=0, on_top=True)
    written = make_lock(report((CONV, "dnnl")), policy=policy)
    assert "\nexclude relax.nn.*\nexclude lv 3\nforce a\nmax_regions 0\n" in written.to_text()
    assert Lock.from_text(written.to_text()) == written


def test_precision_is_kept_where_it_is_not_the_default():
    chosen = {"precision": "bfloat16", "weights": None, "int8": "exact"}
    written = make_lock(report((CONV, "dnnl")), precision=chosen)
    assert written.precision == {"precision": "bfloat16"}
    text = make_lock(report((CONV, "dnnl")), precision=chosen | {"weights": "int4", "int8": "saturating"}).to_text()
    assert "\nint8 saturating\nprecision bfloat16\nweights int4\n" in text
    assert Lock.from_text(text).to_text() == text


def test_order_names_and_regions_do_not_matter():
    assert lock((CONV, "dnnl"), (TOPK, None)).to_text() == lock((TOPK, None), (CONV, "dnnl")).to_text()


def test_a_result_that_is_a_tuple_is_read_back():
    text = "format tvm_byoc_dnnl.lock 1\n\ntvm  1  relax.topk  (float32[1, 5], int32[1, 5])\n"
    assert list(Lock.from_text(text).owners) == [("relax.topk", "(float32[1, 5], int32[1, 5])")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("hello\n", "no lock file: expected `format tvm_byoc_dnnl.lock 1`"),
        ("format tvm_byoc_dnnl.lock 2\n", "has version 2, this package reads version 1"),
        ("format tvm_byoc_dnnl.lock 1\ndnnl many relax.add x\n", "line 2 .*damaged: 'dnnl many"),
        ("format tvm_byoc_dnnl.lock 1\n\nshape x 1,a!\n", "line 3 .*damaged"),
        ("format tvm_byoc_dnnl.lock 1\nweights int3\n", "line 2 .*damaged: 'weights int3"),
    ],
)
def test_damaged_files(text, message):
    with pytest.raises(ArtifactError, match=message):
        Lock.from_text(text)


def test_no_drift():
    drift = compare(lock((CONV, "dnnl"), (TOPK, None)), report((TOPK, None), (CONV, "dnnl")))
    assert not drift and drift.to_text() == ""


def test_a_call_that_left_is_lost_and_says_why():
    drift = compare(lock((CONV, "dnnl"), (CONV, "dnnl")), report((CONV, "dnnl"), (CONV, None, "dnnl: dilation 3")))
    assert drift.lost_calls == 1 and not drift.changed
    assert drift.to_text() == (
        "1 call runs on TVM, or on another compiler than before:\n"
        f"- dnnl        2  relax.nn.conv2d  {OUT}\n"
        f"+ dnnl        1  relax.nn.conv2d  {OUT}\n"
        f"+ tvm         1  relax.nn.conv2d  {OUT}\n"
        "    why: dnnl: dilation 3"
    )


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        ([(CONV, "dnnl"), (TOPK, "dnnl")], 0),  # taken over
        ([(CONV, "dnnl")], 0),  # gone
        ([(CONV, "dnnl"), (TOPK, None), (CONV, "dnnl")], 0),  # new and offloaded
        ([(CONV, "dnnl"), (TOPK, None), (TOPK, None)], 1),  # new and not
        ([(CONV, "other"), (TOPK, None)], 1),  # to another compiler
        ([(CONV, None), (TOPK, "dnnl")], 1),  # one for the other
    ],
    ids=["taken over", "gone", "new, offloaded", "new, with TVM", "other compiler", "exchanged"],
)
def test_what_counts_as_lost(now, lost):
    drift = compare(lock((CONV, "dnnl"), (TOPK, None)), report(*now))
    assert drift and drift.lost_calls == lost and bool(drift.lost) == bool(lost)


def test_kernels_are_told_apart():
    one, two = report(("relax.call_tir", None)), report(("relax.call_tir", None))
    one.calls[0].kernel, two.calls[0].kernel = "pad", "resize"
    assert compare(make_lock(one), two).lost_calls == 1
