"""Unary and binary operators, their broadcasts, and what oneDNN makes of NaN and infinity."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tests.harness import accept, const, data, refuse, table_tests
from tvm_byoc_dnnl.whole.table import relu_of_numbers

op, nn = relax.op, relax.op.nn
ERF = np.vectorize(math.erf, otypes=["float64"])
NAN, INF = float("nan"), float("inf")

#: Relax op → (reference, lowest and highest input)
UNARY = {
    op.abs: (np.abs, -2, 2),
    op.ceil: (np.ceil, -3, 3),
    op.exp: (np.exp, -9, 9),
    op.floor: (np.floor, -3, 3),
    op.log: (np.log, 1e-3, 9),
    op.negative: (np.negative, -2, 2),
    op.round: (np.round, -9, 9),
    op.rsqrt: (lambda x: x**-0.5, 1e-3, 9),
    op.sigmoid: (lambda x: 1 / (1 + np.exp(-x)), -9, 9),
    op.sqrt: (np.sqrt, 0, 9),
    op.square: (np.square, -3, 3),
    op.tanh: (np.tanh, -9, 9),
    nn.gelu: (lambda x: 0.5 * x * (1 + ERF(x / 2**0.5)), -5, 5),
    nn.gelu_tanh: (lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))), -5, 5),
    nn.relu: (lambda x: np.maximum(x, 0), -2, 2),
    relu_of_numbers: (lambda x: np.maximum(x, 0), -2, 2),
    nn.silu: (lambda x: x / (1 + np.exp(-x)), -9, 9),
    nn.selu: (lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), -5, 5),
    nn.softplus: (lambda x: np.logaddexp(x, 0), -30, 30),
}
SHAPES = [(2, 3, 5), (1,), (), (7, 1, 11, 13), (0, 4), (2, 17, 2, 3, 5)]


def prelu(x: np.ndarray, slope: np.ndarray, axis: int) -> np.ndarray:
    return np.where(x > 0, x, x * slope.reshape([-1 if i == axis else 1 for i in range(x.ndim)]))


ACCEPT = [
    *(
        accept(
            f"{f.__name__}-{'x'.join(map(str, shape)) or 'scalar'}", f, data(*shape, low=low, high=high), reference=ref
        )
        for i, (f, (ref, low, high)) in enumerate(UNARY.items())
        for shape in (SHAPES if f in (nn.relu, relu_of_numbers, op.exp) else [SHAPES[i % len(SHAPES)], SHAPES[3]])
    ),
    *(
        accept(f"{f.__name__}-bf16", f, data(3, 33, low=low, high=high, dtype="bfloat16"), reference=ref)
        for f, (ref, low, high) in UNARY.items()
        if f not in (op.ceil, op.floor, op.round, nn.selu)  # steps, and two roundings
    ),
    *(
        accept(
            f"leakyrelu-{alpha}",
            lambda x, a=alpha: nn.leakyrelu(x, a),
            data(3, 17),
            reference=lambda x, a=alpha: np.where(x > 0, x, a * x),
        )
        for alpha in (0.0, 0.01, 1.0, 1.7, -0.3)
    ),
    *(
        accept(
            f"softplus-beta-{beta}",
            lambda x, b=beta: nn.softplus(x, b),
            data(3, 17, low=-40, high=40),
            reference=lambda x, b=beta: np.logaddexp(b * x, 0) / b,
        )
        for beta in (0.1, 1.0, 5.0)
    ),
    *(
        accept(
            f"clip-{low}-{high}",
            lambda x, lo=low, hi=high: op.clip(x, lo, hi),
            data(3, 17, low=-9, high=9),
            reference=lambda x, lo=low, hi=high: np.clip(x, lo, hi),
        )
        for low, high in [(0, 6), (-1.5, 1.5), (2, 2), (-INF, 0.5), (0.5, INF)]
    ),
    accept("prelu-channels", nn.prelu, data(2, 7, 5, 3), const(7), reference=lambda x, w: prelu(x, w, 1)),
    accept("prelu-input", nn.prelu, data(2, 7, 5, 3), data(7), reference=lambda x, w: prelu(x, w, 1)),
    accept("prelu-one", nn.prelu, data(2, 7, 5, 3), const(1), reference=lambda x, w: prelu(x, w, 1)),
    accept(
        "prelu-last",
        lambda x, w: nn.prelu(x, w, axis=-1),
        data(2, 5, 3, 7),
        const(7),
        reference=lambda x, w: prelu(x, w, 3),
    ),
    *(
        accept(
            f"power-{exponent}",
            op.power,
            data(3, 17, low=0.1 if exponent % 1 else -2),
            const(values=np.float32(exponent)),
            reference=lambda x, e: x**e,
            prepare=False,  # which writes some of them otherwise
        )
        for exponent in (0, 0.5, 1, 1.7, 2, 3, 4, 7, -0.5, -1, -2)
    ),
]

ARITHMETIC = {
    op.add: np.add,
    op.subtract: np.subtract,
    op.multiply: np.multiply,
    op.divide: np.divide,
    op.maximum: np.maximum,
    op.minimum: np.minimum,
}
COMPARISONS = {
    op.greater: np.greater,
    op.greater_equal: np.greater_equal,
    op.less: np.less,
    op.less_equal: np.less_equal,
    op.equal: np.equal,
    op.not_equal: np.not_equal,
}
#: shapes of two operands: equal, broadcast in the first or second, in both, of other ranks, scalar, empty
BROADCASTS = [
    ((2, 3, 5), (2, 3, 5)),
    ((2, 3, 5, 7), (1, 3, 1, 1)),
    ((1, 3, 1, 1), (2, 3, 5, 7)),
    ((17, 5), (17, 1)),
    ((3, 1, 5), (1, 7, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 3, 4)),
    ((2, 1, 13, 1), (3, 1, 11)),
    ((2, 3), ()),
    ((), (2, 3)),
    ((), ()),
    ((0, 3), (1, 3)),
    ((2, 3, 4, 2, 3), (1, 3, 1, 1, 3)),
]
ACCEPT += [
    accept(f"{f.__name__}-{a}-{b}", f, data(*a, low=0.5), data(*b, low=0.5), reference=ref)
    for i, (f, ref) in enumerate({**ARITHMETIC, **COMPARISONS}.items())
    for j, (a, b) in enumerate(BROADCASTS)
    if (f is op.subtract or f is op.less or j % 6 in (i % 6, 3)) and (f in ARITHMETIC or a or b)
]
ACCEPT += [
    accept(f"{f.__name__}-number-{side}", f, *operands, reference=ref)
    for f, ref in {**ARITHMETIC, **COMPARISONS}.items()
    for side, operands in {
        "right": (data(3, 5, low=0.5), const(values=np.float32(1.3))),
        "left": (const(1, 1, values=[[1.3]]), data(3, 5, low=0.5)),
    }.items()
]
ACCEPT += [
    accept(
        "divide-tiny",
        op.divide,
        data(3, 5, low=-1e-39, high=1e-39),
        const(values=np.float32(1e-39)),
        reference=np.divide,
        within=2e-6,
    ),
    accept("add-same", lambda x: op.add(x, x), data(2, 3, 5), reference=lambda x: 2 * x),
    accept("add-bf16", op.add, data(3, 33, dtype="bfloat16"), data(1, 33, dtype="bfloat16"), reference=np.add),
    accept("fma", op.ewise_fma, data(2, 3), data(2, 3), data(2, 3), reference=lambda a, b, c: a * b + c),
]

_SPECIAL = np.array([NAN, 1, INF, -INF, INF, 0, NAN, -0.0, 3], "float32").repeat(3).reshape(9, 3)
_SPECIAL_TOO = np.array([1, NAN, INF, -INF, -INF, 0, NAN, 0, 2], "float32").repeat(3).reshape(9, 3)
ACCEPT += [
    accept(f"{f.__name__}-special", f, data(values=_SPECIAL), data(values=_SPECIAL_TOO), reference=ref)
    for f, ref in {
        **COMPARISONS,
        op.add: np.add,
        op.subtract: np.subtract,
        op.multiply: np.multiply,
        op.maximum: np.maximum,
        op.minimum: np.minimum,
    }.items()
]
_STEPS = np.array([NAN, INF, -INF, 0, -0.0, 0.5, -0.5, 1.5, -1.5, 2**24 + 2, -(2**23) - 1, 3e38, 1e-42], "float32")
ACCEPT += [
    accept(f"{f.__name__}-steps", f, data(values=_STEPS), reference=ref)
    for f, ref in ((op.floor, np.floor), (op.ceil, np.ceil))
]
ACCEPT += [
    accept("relu-special", nn.relu, data(values=_SPECIAL), reference=UNARY[nn.relu][0]),
    accept("relu-of-numbers-special", relu_of_numbers, data(values=_SPECIAL), reference=lambda x: np.fmax(x, 0)),
    accept("tanh-special", op.tanh, data(values=_SPECIAL), reference=np.tanh),
    accept("sigmoid-special", op.sigmoid, data(values=_SPECIAL), reference=UNARY[op.sigmoid][0]),
    accept("sqrt-special", op.sqrt, data(values=np.abs(_SPECIAL)), reference=np.sqrt),
    accept("log-special", op.log, data(values=np.abs(_SPECIAL)), reference=np.log),
]


def _condition(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).random(shape) > 0.5


_LEAK = np.where(_condition(4, 6), NAN, 2.0).astype("float32")  # NaN only where it is not selected
ACCEPT += [
    accept(f"where-{c}-{a}-{b}", op.where, data(*c, dtype="bool"), data(*a), data(*b), reference=np.where)
    for c, a, b in [
        ((2, 3, 5), (2, 3, 5), (2, 3, 5)),
        ((1, 1, 5, 5), (2, 3, 5, 5), ()),
        ((5, 1), (), (1, 7)),
        ((4,), (2, 3, 1), (3, 4)),
    ]
]
ACCEPT += [
    accept(
        "where-infinite",
        op.where,
        const(values=_condition(4, 6), dtype="bool"),
        data(values=np.full((4, 6), -INF)),
        data(values=np.full((4, 6), INF)),
        reference=np.where,
    ),
    accept(
        "where-masked-out",
        op.where,
        data(values=_condition(4, 6), dtype="bool"),
        const(values=np.float32(-INF)),
        data(4, 6),
        reference=np.where,
    ),
    accept(
        "where-leaks-no-nan",
        op.where,
        data(values=_condition(4, 6), dtype="bool"),
        data(4, 6),
        data(values=_LEAK),
        reference=np.where,
    ),
    accept(
        "where-of-logarithm",
        lambda x: op.where(op.greater(x, relax.const(0.0)), op.log(x), relax.const(-1.0)),
        data(3, 17),
        reference=lambda x: np.where(x > 0, np.log(np.abs(x)), -1),
    ),
    accept(
        "astype-bool",
        lambda x, y: op.multiply(op.astype(op.greater(x, y), "float32"), x),
        data(3, 5),
        data(3, 5),
        reference=lambda x, y: (x > y) * x,
    ),
]
ACCEPT += [
    accept(f"astype-{f}-{to}", lambda x, to=to: op.astype(x, to), data(3, 5, dtype=f, high=100), reference=lambda x: x)
    for f, to in [("float32", "bfloat16"), ("bfloat16", "float32"), ("int32", "float32"), ("uint8", "float32")]
]

ACCEPT += [
    accept(f"astype-{f}-{to}", lambda x, to=to: op.astype(x, to), data(3, 1, 7, dtype=f, high=100), reference=ref)
    for f, to, ref in [
        *(("bool", to, lambda x: x) for to in ("float32", "int8", "uint8", "int32")),
        *((f, "int32", lambda x: x) for f in ("int8", "uint8")),
        *((f, "bool", lambda x: x != 0) for f in ("int8", "uint8", "int32", "float32", "bfloat16")),
    ]
]
LOGICAL = {op.logical_and: np.logical_and, op.logical_or: np.logical_or, op.logical_xor: np.logical_xor}
ACCEPT += [
    *(
        accept(f"{f.__name__}-{a}-{b}", f, data(*a, dtype="bool"), data(*b, dtype="bool"), reference=ref)
        for f, ref in LOGICAL.items()
        for a, b in [((2, 3, 5), (2, 3, 5)), ((7, 1), (1, 13)), ((4,), (3, 4)), ((0, 3), (1, 3)), ((2, 3, 5), (3, 1))]
    ),
    *(
        accept(f"logical_not-{shape}", op.logical_not, data(*shape, dtype="bool"), reference=np.logical_not)
        for shape in [(2, 3, 5), (1,), (), (17, 33), (0, 3)]
    ),
    accept(
        "astype-bool-special",
        lambda x: op.astype(x, "bool"),
        data(values=_SPECIAL),
        reference=lambda x: x.astype(bool),
    ),
]

#: sizes that the tables above leave out
ACCEPT += [
    *(
        accept(f"{f.__name__}-nothing", f, data(0, 3, low=low, high=high), reference=ref)
        for f, (ref, low, high) in UNARY.items()
        if f not in (nn.gelu, op.erf)
    ),
    accept("gelu-nothing", nn.gelu, data(0, 3), reference=lambda x: x),
    *(
        accept(f"{f.__name__}-nothing", f, data(0, 3, low=0.5), data(1, 3, low=0.5), reference=ref)
        for f, ref in {**ARITHMETIC, **COMPARISONS}.items()
    ),
    *(
        accept(
            f"leakyrelu-{shape}",
            lambda x: nn.leakyrelu(x, 0.1),
            data(*shape),
            reference=lambda x: np.maximum(x, x / 10),
        )
        for shape in [(1,), (0, 3), (5, 1, 33)]
    ),
    *(
        accept(f"clip-{shape}", lambda x: op.clip(x, -1, 1), data(*shape), reference=lambda x: np.clip(x, -1, 1))
        for shape in [(1,), (0, 3), (5, 1, 33)]
    ),
    *(
        accept(f"fma-{shape}", op.ewise_fma, *(data(*shape) for _ in "abc"), reference=lambda a, b, c: a * b + c)
        for shape in [(1,), (0, 3), (5, 1, 33)]
    ),
    *(
        accept(
            f"softplus-threshold-{threshold}",
            lambda x, t=threshold: nn.softplus(x, 1.0, t),
            data(5, 1, low=-40, high=40),
            reference=lambda x: np.logaddexp(x, 0),
        )
        for threshold in (15.0, 1e9)
    ),
    accept("prelu-nothing", nn.prelu, data(0, 3, 5), const(3), reference=lambda x, w: prelu(x, w, 1)),
    accept("power-nothing", lambda x: op.power(x, relax.const(2.5)), data(0, 3), reference=lambda x: x**2.5),
    accept("astype-nothing", lambda x: op.astype(x, "float32"), data(0, 3, dtype="int8"), reference=lambda x: x),
    accept("where-nothing", op.where, data(0, 3, dtype="bool"), data(0, 3), data(3), reference=np.where),
]

REFUSE = [
    *(
        refuse(f"{f.__name__}-float64", "dtype float64", f, data(3, 5, dtype="float64"))
        for f in (op.exp, op.floor, op.rsqrt)
    ),
    *(
        refuse(f"{name}-float64", "dtype float64", f, *operands)
        for name, f, *operands in [
            ("leakyrelu", lambda x: nn.leakyrelu(x, 0.1), data(2, 3, dtype="float64")),
            ("selu", nn.selu, data(2, 3, dtype="float64")),
            ("prelu", nn.prelu, data(2, 3, dtype="float64"), const(3, dtype="float64")),
            ("fma", op.ewise_fma, *(data(2, 3, dtype="float64") for _ in "abc")),
        ]
    ),
    refuse("logical-int32", "dtype int32", op.logical_and, data(2, 3, dtype="int32"), data(2, 3, dtype="int32")),
    refuse("logical-not-int8", "dtype int8", op.logical_not, data(2, 3, dtype="int8")),
    refuse("astype-narrower", "from int32 to int8", lambda x: op.astype(x, "int8"), data(2, 3, dtype="int32")),
    refuse("astype-unsigned", "from int8 to uint8", lambda x: op.astype(x, "uint8"), data(2, 3, dtype="int8")),
    refuse("float64", "dtype float64", nn.relu, data(2, 3, dtype="float64")),
    refuse("int32", "dtype int32", op.add, data(2, 3, dtype="int32"), data(2, 3, dtype="int32")),
    refuse("int64", "dtype int64", op.maximum, data(2, 3, dtype="int64"), data(2, 3, dtype="int64")),
    refuse("bool", "dtype bool", op.equal, data(2, 3, dtype="bool"), data(2, 3, dtype="bool")),
    refuse("erf", "oneDNN has no erf", op.erf, data(2, 3)),
    refuse("clip-empty", "empty range [2.0, 1.0]", lambda x: op.clip(x, 2, 1), data(2, 3)),
    refuse("softplus-step", "threshold 3.0", lambda x: nn.softplus(x, 1.0, 3.0), data(2, 3)),
    refuse("power-tensor", "not one constant number", op.power, data(2, 3), data(2, 3)),
    refuse("power-base", "broadcasts the base", op.power, data(3), const(values=[[2.0]])),
    refuse("power-infinite", "exponent inf", op.power, data(2, 3), const(values=np.float32(INF))),
    refuse("astype-to-int", "saturates", lambda x: op.astype(x, "int32"), data(2, 3)),
    refuse("astype-from-int64", "from int64", lambda x: op.astype(x, "float32"), data(2, 3, dtype="int64")),
    refuse(
        "where-integers",
        "dtype int32",
        op.where,
        data(2, 3, dtype="bool"),
        data(2, 3, dtype="int32"),
        data(2, 3, dtype="int32"),
    ),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_a_number_is_folded_into_the_primitive():
    # One primitive per step; a constant tensor would be a second operand.
    x, number, power_of_two = data(2, 3, 5, 7), const(values=np.float32(3)), const(values=np.float32(0.25))
    for f in ARITHMETIC:
        # a minimum would be a clip from -inf, which is what that makes of a NaN; 3 times 1 / 3 is more than 1
        accept("", f, x, number).values[0].becomes("binary" if f in (op.minimum, op.divide) else "eltwise")
    accept("", op.divide, x, power_of_two).values[0].becomes("eltwise")
