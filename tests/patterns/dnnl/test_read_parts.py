"""Batch normalisations that read the parts of a concat where they are, and concats that must stay."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.harness import Case, const, data

op, nn = relax.op, relax.op.nn
NORM, WIDE, SLICE = ("batch_normalization", ["relu"]), (2, 5, 7, 7), (2, 3, 7, 7)


def statistics(channels, dtype="float32"):
    return [const(channels, low=0.5, dtype=dtype) for _ in range(4)]


def norm(x, *parameters):
    return nn.relu(nn.batch_norm(x, *parameters, axis=1, training=False)[0])


def joined(*parts, axis=1):
    return op.concat(list(parts), axis=axis)


def dense_block(x, y, *rest):
    """Two layers of a DenseNet: each convolution reads all that was computed before it."""
    first, second, (w1, w2) = rest[:4], rest[4:8], rest[8:]
    z = nn.conv2d(norm(joined(x, y), *first), w1, padding=1)
    return nn.conv2d(norm(joined(joined(x, y), z), *second), w2)


@pytest.mark.native
@pytest.mark.parametrize("batch", [1, 2])
def test_a_dense_block_joins_nothing(batch):
    operands = (
        data(batch, 16, 7, 7), data(batch, 3, 7, 7), *statistics(19), *statistics(23), const(4, 19, 3, 3),
        const(5, 23, 1, 1),
    )  # fmt: skip
    case = Case(dense_block, operands).offloads().matches()
    case.becomes(NORM, "convolution", NORM, "convolution")
    sources = [len(n.inputs) - 4 for g in case.graphs() for n in g.nodes if n.kind == "batch_normalization"]
    assert sources == [2, 3]


@pytest.mark.native
def test_the_normalisation_stands_for_the_concats():
    function = lambda x, y, *p: norm(joined(joined(x, y), x), *p)  # noqa: E731
    case = Case(function, (data(*WIDE), data(*SLICE), *statistics(13))).becomes(NORM).matches()
    (norm_of_all,) = (n for g in case.graphs() for n in g.nodes)
    assert sorted(norm_of_all.source) == sorted(["relax.concat"] * 2 + ["relax.nn.batch_norm", "relax.nn.relu"])


@pytest.mark.native
def test_two_normalisations_of_one_concat():
    def function(x, y, *p):
        both = joined(x, y)
        return op.add(norm(both, *p[:4]), norm(both, *p[4:]))

    operands = (data(*WIDE), data(*SLICE), *statistics(8), *statistics(8))
    case = Case(function, operands).offloads().matches()
    assert "concat" not in [kind for kind, _ in case.nodes()]


def _also_pooled(x, y, *p):
    both = joined(x, y)
    return op.add(norm(both, *p), nn.max_pool2d(both, (3, 3), padding=1))


def _also_delivered(x, y, *p):
    both = joined(x, y)
    return norm(both, *p), both


def _inner_is_pooled(x, y, *p):
    inner = joined(x, y)
    return op.add(norm(joined(inner, x), *p), joined(nn.max_pool2d(inner, (3, 3), padding=1), x))


@pytest.mark.native
@pytest.mark.parametrize(
    ("function", "operands", "concats"),
    [
        pytest.param(_also_pooled, (data(*WIDE), data(*SLICE), *statistics(8)), 1, id="another-reader"),
        pytest.param(_also_delivered, (data(*WIDE), data(*SLICE), *statistics(8)), 1, id="a-result"),
        pytest.param(
            lambda x, y, *p: norm(joined(x, y, axis=2), *p),
            (data(*WIDE), data(*WIDE), *statistics(5)),
            1,
            id="another-axis",
        ),
        pytest.param(
            lambda x, y, *p: norm(nn.relu(joined(x, y)), *p),
            (data(*WIDE), data(*SLICE), *statistics(8)),
            1,
            id="something-between",
        ),
        pytest.param(_inner_is_pooled, (data(*WIDE), data(*SLICE), *statistics(13)), 2, id="inner-another-reader"),
    ],
)  # fmt: skip
def test_concats_that_stay(function, operands, concats):
    case = Case(function, operands).offloads().matches()
    assert [kind for kind, _ in case.nodes()].count("concat") == concats


@pytest.mark.native
def test_bfloat16_stays_as_it_is():
    operands = [data(*WIDE, dtype="bfloat16"), data(*SLICE, dtype="bfloat16"), *statistics(8, "bfloat16")]
    case = Case(lambda x, y, *p: norm(joined(x, y), *p), tuple(operands))
    assert all(len(n.inputs) == 5 for g in case.graphs() for n in g.nodes if n.kind == "batch_normalization")
    if case.regions:
        case.matches()


@pytest.mark.native
def test_an_open_batch():
    operands = (data("n", 16, 7, 7), data("n", 3, 7, 7), *statistics(19), const(4, 19, 3, 3))

    def function(x, y, *rest):
        return nn.conv2d(norm(joined(x, y), *rest[:4]), rest[4], padding=1)

    for n in (0, 1, 5):
        Case(function, operands, symbols={"n": n}).offloads().matches()
