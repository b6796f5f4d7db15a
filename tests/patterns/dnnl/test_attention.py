"""Attention: the operator with its masks, and the forms that exporters write instead."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from tests.harness import Case, accept, const, data, number, refuse
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import lower_region

op, nn = relax.op, relax.op.nn


def reference(q, k, v, bias=0.0, scale=None):
    scores = np.einsum("bshd,bthd->bhst", q, k) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale) + bias
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhst,bthe->bshe", shares / shares.sum(-1, keepdims=True), v)


def operands(b=2, s=5, t=7, h=3, d=4, e=4, **options):
    return data(b, s, h, d, **options), data(b, t, h, d, **options), data(b, t, h, e, **options)


def hidden(s, t, diagonal=0):
    return np.triu(np.full((s, t), -np.inf), diagonal + 1)


def attend(**options):
    if "scale" in options:
        options["scale"] = tirx.FloatImm("float32", options["scale"])
    return lambda *args: nn.attention(*args, **options)


ACCEPT = [
    accept("plain", attend(), *operands(), reference=reference),
    accept("ones", attend(), *operands(1, 1, 1, 1, 1, 1), reference=reference),
    accept("primes", attend(), *operands(1, 13, 17, 5, 11, 3), reference=reference),
    accept("aligned", attend(), *operands(1, 16, 32, 4, 64, 64), reference=reference),
    accept("no-batch", attend(), *operands(0), reference=reference),
    accept("no-keys", attend(), *operands(t=0), reference=lambda q, k, v: np.zeros((2, 5, 3, 4))),
    *(
        accept(f"scale-{s}", attend(scale=s), *operands(), reference=lambda *a, s=s: reference(*a, scale=s))
        for s in (0.0, 1.0, -0.25)
    ),
    *(
        accept(f"bias-{shape}", attend(), *operands(), data(*shape), reference=reference)
        for shape in [(2, 3, 5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (1, 3, 5, 7)]
    ),
    accept(
        "bias-scale",
        attend(scale=0.3),
        *operands(),
        data(2, 3, 5, 7),
        reference=lambda *a: reference(*a, scale=0.3),
    ),
    accept("bias-no-batch", attend(), *operands(0), data(0, 3, 5, 7), reference=reference),
    accept("bias-constant", attend(), *operands(), const(1, 1, 5, 7), reference=reference),
    accept(
        "causal",
        attend(causal_mask="TopLeft"),
        *operands(t=5),
        reference=lambda *a: reference(*a, hidden(5, 5)),
    ),
    accept(
        "causal-top-left",
        attend(causal_mask="TopLeft"),
        *operands(s=5, t=7),
        reference=lambda *a: reference(*a, hidden(5, 7)),
    ),
    accept(
        "causal-bottom-right",
        attend(causal_mask="BottomRight", scale=0.3),
        *operands(s=5, t=7),
        reference=lambda *a: reference(*a, hidden(5, 7, 2), 0.3),
    ),
    accept(
        "causal-and-bias",
        attend(causal_mask="TopLeft"),
        *operands(t=5),
        data(2, 1, 5, 5),
        reference=lambda q, k, v, bias: reference(q, k, v, bias + hidden(5, 5)),
    ),
    accept("bf16", attend(), *operands(dtype="bfloat16"), reference=reference, within=2**-5),
    accept(
        "symbolic",
        attend(),
        *(data("b", "s", 3, 4), data("b", "t", 3, 4), data("b", "t", 3, 4)),
        reference=reference,
        symbols={"b": 2, "s": 5, "t": 3},
    ),
]

REFUSE = [
    refuse("float64", "dtype float64", attend(), *operands(dtype="float64")),
    refuse("window", "window of 2", attend(causal_mask="TopLeft", window_size=2), *operands(t=5)),
    refuse("few-keys", "causal mask BottomRight", attend(causal_mask="BottomRight"), *operands(s=7, t=5)),
    refuse(
        "causal-symbolic",
        "causal mask TopLeft",
        attend(causal_mask="TopLeft"),
        *(data(2, "s", 3, 4) for _ in range(3)),
        symbols={"s": 5},
    ),
]


@pytest.mark.parametrize("case", ACCEPT)
def test_accepted(case):
    case.offloads().matches()
    kinds = {kind for kind, _ in case.nodes()}
    in_float32 = all(operand.dtype == "float32" for operand in case.operands)
    if in_float32:
        assert "attention" in kinds and kinds <= {"attention", "binary"}
    else:
        assert kinds <= {"matmul", "softmax", "binary", "eltwise", "reorder"}  # a softmax may be cheaper in float32


@pytest.mark.parametrize(("case", "reason"), REFUSE)
def test_refused(case, reason):
    case.is_refused(reason)


def _reorders(case):
    """The copies that the library makes while it runs the only region."""
    ns = namespace("dnnl")
    (region,) = case.regions
    return ns.functions.describe(ns.functions.optimize(lower_region(ns, region, "dnnl_0"))).reorders


@pytest.mark.native
@pytest.mark.parametrize("extra", [(), (data(1, 1, 16, 32),)], ids=["plain", "bias"])
def test_nothing_is_copied(extra):
    case = Case(attend(), (*operands(1, 16, 32, 4, 64, 64), *extra), reference)
    case.becomes("attention")
    assert _reorders(case) == 0


# ---------------------------------------------------------------- the decomposed forms
def heads(x, axes=(0, 2, 1, 3), h=4):
    b, s, width = (int(d) for d in x.ty.shape.values)
    return op.permute_dims(op.reshape(x, (b, s, h, width // h)), axes)


def scores(q, k):
    return op.divide(op.matmul(heads(q), heads(k, (0, 2, 3, 1))), number(4.0))


def context(shares, v):
    b, s, width = (int(d) for d in v.ty.shape.values)
    return op.reshape(op.permute_dims(op.matmul(shares, heads(v)), [0, 2, 1, 3]), (b, s, width))


def bert(q, k, v, mask):
    """An additive mask, made of ones and zeros."""
    gap = op.multiply(op.subtract(number(1.0), op.expand_dims(mask, [1, 2])), number(-10000.0))
    return context(nn.softmax(op.add(scores(q, k), gap)), v)


def gpt(q, k, v, rows, columns):
    """A causal mask that positions are compared for."""
    seen = op.greater_equal(op.expand_dims(rows, 1), op.expand_dims(columns, 0))
    return context(nn.softmax(op.where(seen, scores(q, k), number(-3.4e38))), v)


def whisper(q, k, v, mask):
    """Scores of minus infinity, selected by a cast mask; both kinds of masking combined."""
    seen = op.logical_and(op.astype(mask, "bool"), op.logical_not(op.greater(mask, number(2.0))))
    return context(nn.softmax(op.where(op.expand_dims(seen, 1), scores(q, k), number(float("-inf")))), v)


def gemma(q, k, v, mask):
    """Scores that are capped behind a scale of their own, and masked then."""
    scaled = op.multiply(_raw(q, k), number(0.3))
    capped = op.multiply(op.tanh(op.divide(scaled, number(2.0))), number(2.0))
    return context(nn.softmax(op.add(capped, mask)), v)


def grouped(q, k, v):
    """Two heads of keys for four of queries, repeated as exporters do."""

    def repeated(x, axes, shape):
        split = op.expand_dims(op.permute_dims(op.reshape(x, (2, 8, 2, 16)), axes), 2)
        return op.reshape(op.broadcast_to(split, (2, 2, 2, *shape)), (2, 4, *shape))

    shares = nn.softmax(op.matmul(heads(q), repeated(k, [0, 2, 3, 1], (16, 8))))
    out = op.matmul(shares, repeated(v, [0, 2, 1, 3], (8, 16)))
    return op.reshape(op.permute_dims(out, [0, 2, 1, 3]), (2, 8, 64))


X = data(2, 8, 64)
ONES = (np.arange(16).reshape(2, 8) % 5 > 0).astype("float32")
DECOMPOSED = {
    "bert": (bert, (X, X, X, data(values=ONES))),
    "gpt": (gpt, (X, X, X, data(values=np.arange(8)), data(values=np.arange(8)))),
    "whisper": (whisper, (X, X, X, data(values=np.stack([ONES] * 8, 1)))),
    "gemma": (gemma, (X, X, X, data(values=np.triu(np.full((1, 1, 8, 8), -1e4), 1)))),
    "grouped": (grouped, (X, data(2, 8, 32), data(2, 8, 32))),
}


@pytest.mark.parametrize("form", DECOMPOSED)
def test_the_decomposed_forms_are_one_region(form):
    function, args = DECOMPOSED[form]
    case = Case(function, args, within=5e-5).offloads().matches()
    assert len(case.regions) == 1
    kinds = [kind for kind, _ in case.nodes()]
    is_attention = form in ("bert", "gemma", "grouped")  # the others select scores, which is no addition
    assert kinds.count("attention") == is_attention and kinds.count("softmax") == (not is_attention)
    assert form != "grouped" or "expand" not in kinds  # the heads of keys are read as they are


def _raw(q, k):
    return op.matmul(heads(q), heads(k, (0, 2, 3, 1)))


#: what looks like attention but is not; each differs from it in one thing
UNLIKE = {
    "the shares are read twice": lambda q, k, v: op.add(
        context(shares := nn.softmax(_raw(q, k)), v), op.sum(shares, None, keepdims=False)
    ),
    "the scores are returned": lambda q, k, v: relax.Tuple([scores := _raw(q, k), context(nn.softmax(scores), v)]),
    "softmax over the queries": lambda q, k, v: context(nn.softmax(_raw(q, k), axis=2), v),
    "log_softmax": lambda q, k, v: context(nn.log_softmax(_raw(q, k)), v),
    "a number is added": lambda q, k, v: context(nn.softmax(op.exp(op.add(_raw(q, k), number(0.5)))), v),
    "the shares are scaled": lambda q, k, v: context(op.multiply(nn.softmax(_raw(q, k)), number(2.0)), v),
    "the scores are masked after the softmax": lambda q, k, v: context(op.add(nn.softmax(_raw(q, k)), number(-0.1)), v),
}


@pytest.mark.parametrize("form", UNLIKE)
def test_what_is_no_attention_stays_apart(form):
    case = Case(UNLIKE[form], (X, X, X), within=5e-5).offloads().matches()
    assert "attention" not in [kind for kind, _ in case.nodes()]


def without_nan(q, k, v, mask):
    """Rows whose keys are all masked count as 0, as torch exports scaled_dot_product_attention."""
    shares = nn.softmax(op.add(_raw(q, k), mask))
    return context(op.where(op.isnan(shares), number(0.0), shares), v)


def test_masked_rows_count_as_zero():
    mask = np.where(np.arange(64).reshape(1, 1, 8, 8) % 8 < np.arange(8)[:, None], 0.0, -np.inf)  # row 0: no key
    case = Case(without_nan, (X, X, X, data(values=mask)), within=5e-5).offloads().matches()
    assert [kind for kind, _ in case.nodes()].count("attention") == 1
