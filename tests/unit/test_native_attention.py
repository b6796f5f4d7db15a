"""Attention, by the kernel and in steps, caches and rotary positions, against NumPy in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import check, execute, probe, run_emitted, single
from tvm_byoc_dnnl.core.errors import GraphError

pytestmark = pytest.mark.native

#: query, key, value, bias or None → whether few or many rows, by the kernel where this CPU has AVX2
SHAPES = {
    "one token": ([(1, 4, 1, 16), (1, 4, 37, 16), (1, 4, 37, 16)], True),
    "one token, grouped heads": ([(2, 6, 1, 8), (2, 2, 37, 8), (2, 2, 37, 5)], True),
    "one token with a bias": ([(1, 4, 1, 16), (1, 4, 600, 16), (1, 4, 600, 16), (1, 1, 1, 600)], True),
    "one head": ([(3, 1, 7), (3, 29, 7), (3, 29, 3), (3, 1, 29)], True),
    "many keys": ([(1, 2, 900, 16), (1, 2, 900, 16), (1, 2, 900, 24)], True),
    "few keys": ([(1, 12, 64, 64)] * 3, False),
    "few keys, grouped heads": ([(1, 6, 40, 8), (1, 2, 33, 8), (1, 2, 33, 5), (1, 6, 40, 33)], True),
    "a bias for each row": ([(1, 4, 1, 16), (1, 4, 50, 16), (1, 4, 50, 16), (1, 4, 1, 1)], True),
    "no keys": ([(1, 2, 3, 8), (1, 2, 0, 8), (1, 2, 0, 8)], False),
    "no queries": ([(1, 2, 0, 8), (1, 2, 5, 8), (1, 2, 5, 8)], False),
    "no width": ([(1, 2, 3, 0), (1, 2, 5, 0), (1, 2, 5, 8)], False),
}


def attention(shapes, *, scale=0.25, alg="accurate"):
    return single("attention", shapes, (*shapes[0][:-1], shapes[2][-1]), scale=scale, alg=alg)


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case):
    shapes, is_kernel = SHAPES[case]
    g, arguments = attention(shapes)
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "") not in ("SSE41", "AVX"):
        impls = [node["impl"] for node in probe(g)["nodes"]]
        assert impls[0].startswith("attention:") == is_kernel, impls
    check(g, arguments)


STARTS = {  # queries, rows of the cache, starts; window, softcap, sinks
    "one token": (1, 37, [36, 5, 0], 0, 0.0, False),
    "a prompt": (9, 9, [0, 0, 0], 0, 0.0, False),
    "a window": (1, 700, [699, 3, 100], 40, 0.0, False),
    "all at once": (30, 64, [34, 0, 7], 11, 2.0, True),
    "no room": (3, 8, [7, 6, 5], 0, 0.0, False),
}


@pytest.mark.parametrize(
    ("case", "emitted"),
    [
        *((case, case == "all at once") for case in STARTS),
        *(pytest.param(case, True, marks=pytest.mark.sweep) for case in STARTS),
    ],
)
def test_a_cache_with_a_length_for_each_sequence(case, emitted, tmp_path):
    queries, length, starts, window, softcap, has_sinks = STARTS[case]
    rng = np.random.default_rng(5)
    g = GraphBuilder()
    shapes = [(3, 6, queries, 16), *[(3, 2, length - 1, 16), (3, 2, queries, 16)] * 2, *[(6,)] * has_sinks]
    query, past_key, key, past_value, value, *sinks = ids = [g.input(shape) for shape in shapes]
    places = [g.input((3,), "int64") for _ in range(2)]
    caches = [
        g.node("append", [past, rows, *places], (3, 2, length, 16))
        for past, rows in ((past_key, key), (past_value, value))
    ]
    attrs = {"scale": 0.25, "window": window, "softcap": softcap}
    out = g.node("cached_attention", [query, *caches, places[0], *sinks], shapes[0], **attrs)
    g.outputs = [out, *caches]
    arguments = [rng.standard_normal(shape).astype("float32") for shape in shapes[: len(ids)]]
    arguments += [np.array(starts), np.array(starts) + queries]
    check(g, arguments)
    if not emitted:
        return
    for got, want in zip(run_emitted(g, arguments, tmp_path), execute(g, arguments), strict=True):
        assert_right(got, want, 1e-5, least=0.1, elementwise=True)


WRONG = {
    "starts of another batch": ({"places": (2,)}, "starts and ends"),
    "starts that are int32": ({"dtype": "int32"}, "int64"),
    "fewer rows than before": ({"length": 4}, "as many rows"),
    "new rows of another width": ({"rows": (3, 2, 1, 8)}, "new rows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_cache_that_cannot_be(case):
    given, message = WRONG[case]
    g = GraphBuilder()
    past, rows = g.input((3, 2, 5, 16)), g.input(given.get("rows", (3, 2, 1, 16)))
    places = [g.input(given.get("places", (3,)), given.get("dtype", "int64")) for _ in range(2)]
    g.outputs = [g.node("append", [past, rows, *places], (3, 2, given.get("length", 6), 16))]
    with pytest.raises(GraphError, match=message):
        probe(g)


ROTARY = {  # source, cosines; the emitted source, too
    "one row": ((1, 9, 1, 64), (1, 1, 32), False),
    "all columns turn": ((2, 3, 5, 22), (2, 5, 11), False),
    "some columns turn": ((3, 2, 4, 13), (1, 4, 3), True),
    "none turn": ((1, 2, 3, 5), (1, 3, 0), False),
    "enough for several threads": ((2, 5, 67, 48), (1, 67, 24), False),
    "no rows": ((1, 2, 0, 8), (1, 0, 4), False),
}


@pytest.mark.parametrize("alg", ["halves", "neighbours"])
@pytest.mark.parametrize("case", ROTARY)
def test_columns_turn_in_pairs(case, alg, tmp_path):
    shape, angles, emitted = ROTARY[case]
    batch, heads, rows, width = shape
    g = GraphBuilder()
    packed, cos, sin = g.input((batch, rows, heads + 1, width)), g.input(angles), g.input(angles)
    own = g.node("slice", [packed], (batch, rows, heads, width), begin=[0, 0, 1, 0], steps=[1] * 4)
    turned = g.node("rotary", [g.node("permute", [own], shape, axes=[0, 2, 1, 3]), cos, sin], shape, alg=alg)
    g.outputs = [g.node("permute", [turned], (batch, rows, heads, width), axes=[0, 2, 1, 3])]
    rng = np.random.default_rng(4)
    arguments = [rng.standard_normal(of).astype("float32") for of in ((batch, rows, heads + 1, width), angles, angles)]
    check(g, arguments, 1e-6)
    assert rows == 0 or [node["impl"] for node in probe(g)["nodes"]] == ["view", "view", "rotary", "view"]
    if emitted:
        np.testing.assert_array_equal(run_emitted(g, arguments, tmp_path)[0], execute(g, arguments)[0])


WRONG_ROTARY = {
    "angles of another batch": ([(3, 2, 4, 8), (2, 4, 4), (2, 4, 4)], "cosines and sines"),
    "more cosines than sines": ([(3, 2, 4, 8), (3, 4, 4), (1, 4, 4)], "as many cosines as sines"),
    "more pairs than columns": ([(3, 2, 4, 7), (3, 4, 4), (3, 4, 4)], "two columns for each pair"),
    "one head": ([(3, 4, 8), (3, 4, 4), (3, 4, 4)], "rank 4"),
}


@pytest.mark.parametrize("case", WRONG_ROTARY)
def test_positions_that_cannot_be(case):
    shapes, message = WRONG_ROTARY[case]
    with pytest.raises(GraphError, match=message):
        probe(single("rotary", shapes, shapes[0], alg="halves")[0])


def _masked(alg: str, keys: int):
    g, arguments = attention([(1, 2, 3, 8), (1, 2, keys, 8), (1, 2, keys, 8), (1, 1, 3, keys)], alg=alg)
    arguments[3][:, :, 0] = -np.inf  # a row without a key
    arguments[3][:, :, 1, ::2] = -np.inf
    arguments[0][0, 1, 2, 3] = np.nan  # and one that is NaN
    return g, arguments


@pytest.mark.parametrize("keys", [9, 600])
@pytest.mark.parametrize("alg", ["accurate", "no_nan"])
def test_rows_without_a_key(alg, keys):
    g, arguments = _masked(alg, keys)
    (got,) = execute(g, arguments)
    without = [(0, 0, 0), (0, 1, 0), (0, 1, 2)]
    for row in without:
        assert (got[row] == 0).all() if alg == "no_nan" else np.isnan(got[row]).all()
    assert np.isfinite(got).sum() == got.size - (0 if alg == "no_nan" else len(without) * 8)
    check(g, arguments)


@pytest.mark.parametrize(
    "case", ["one token, grouped heads", pytest.param("few keys, grouped heads", marks=pytest.mark.sweep)]
)
def test_emitted_source_gives_the_same(case, tmp_path):
    g, arguments = attention(SHAPES[case][0])
    assert_right(run_emitted(g, arguments, tmp_path)[0], execute(g, arguments)[0], 1e-5, least=0.1, elementwise=True)


def test_the_heads_of_a_row_are_joined_without_a_copy():
    g = GraphBuilder()
    ids = [g.input((1, 5, 4, 16)), *(g.input((1, 700, 4, 16)) for _ in range(2))]
    heads = [g.node("permute", [i], (1, 4, n, 16), axes=[0, 2, 1, 3]) for i, n in zip(ids, (5, 700, 700), strict=True)]
    mixed = g.node("attention", heads, (1, 4, 5, 16), scale=0.25, alg="accurate")
    rows = g.node("reshape", [g.node("permute", [mixed], (1, 5, 4, 16), axes=[0, 2, 1, 3])], (5, 64))
    g.outputs = [g.node("eltwise", [rows], (5, 64), alg="relu", alpha=0.0, beta=0.0)]
    assert probe(g)["reorders"] == 0 or "attention" not in probe(g)["nodes"][3]["impl"]


BAD = {
    "another width": [(1, 2, 3, 8), (1, 2, 5, 9), (1, 2, 5, 8)],
    "another number of keys": [(1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 6, 8)],
    "heads that are no multiple": [(1, 3, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8)],
    "another rank": [(1, 2, 3, 8), (1, 5, 8), (1, 2, 5, 8)],
    "rank 2": [(3, 8), (5, 8), (5, 8)],
    "a bias that does not broadcast": [(1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 4, 5)],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_graphs_are_refused(case):
    with pytest.raises(GraphError, match="attention"):
        execute(*attention(BAD[case]))


_WITHOUT_AVX2 = """
from tests.unit.test_native_attention import SHAPES, _masked, attention, check, probe
for shapes, _ in SHAPES.values():
    g, arguments = attention(shapes)
    assert "attention" not in probe(g)["nodes"][0]["impl"]
    check(g, arguments)
for alg in ("accurate", "no_nan"):
    check(*_masked(alg, 9))
"""


def test_cpus_without_avx2_compute_it_in_steps():
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "SSE41"}
    subprocess.run([sys.executable, "-c", _WITHOUT_AVX2], env=environment, check=True, timeout=120)
