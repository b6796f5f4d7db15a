"""Every operator that the C backend takes, beside stock TVM; and what it refuses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, const, data
from tests.harness import accept as _accept
from tests.harness import refuse as _refuse
from tvm_byoc_dnnl.patterns.ccompiler import ops

op, nn = relax.op, relax.op.nn
NAN, INF = float("nan"), float("inf")
SETTINGS = {
    "compiler": "ccompiler",
    "prepare": False,
    "within": 1e-5,  # sums are added up in another order
    "options": {"ccompiler": {"optimize": 1}},  # half the time of 3, and the same numbers
}
accept = partial(_accept, **SETTINGS)
refuse = partial(_refuse, **SETTINGS)


def each(*functions):
    """All functions of the same operands: one region, one result each."""
    return lambda *args: tuple(f(*args) for f in functions)


def item(expr: relax.Expr, index: int) -> relax.Expr:
    """One field of a call's tuple."""
    return relax.TupleGetItem(relax.BlockBuilder().normalize(expr), index)


def shuffled(x: np.ndarray) -> np.ndarray:
    """Pixel shuffle by 2; TVM 0.27's own lowering of it does not work."""
    n, c, h, w = x.shape
    return x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)


ANYWHERE = (op.abs, op.atan, op.asinh, op.ceil, op.cos, op.cosh, op.erf, op.exp, op.floor, op.negative, op.round)
ANYWHERE += (op.sigmoid, op.sign, op.sin, op.sinh, op.square, op.tan, op.tanh, op.trunc)
ACTIVATIONS = (nn.gelu, nn.gelu_tanh, nn.leakyrelu, nn.relu, nn.selu, nn.silu, nn.softplus, lambda x: op.clip(x, -1, 1))
ORDER = (op.equal, op.not_equal, op.greater, op.greater_equal, op.less, op.less_equal)
ARITHMETIC = (op.add, op.subtract, op.multiply, op.divide, op.maximum, op.minimum)
LOGIC = (op.logical_and, op.logical_or, op.logical_xor)
BITS = (op.bitwise_and, op.bitwise_or, op.bitwise_xor)
SCALE = const(3, low=0.1, high=0.5)
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.5, 0.5, 1.5, 2.5, -0.5]

ELEMENTWISE = [
    *(accept(f"anywhere-{t}", each(*ANYWHERE), data(3, 17, dtype=t, low=-3, high=3)) for t in ("float32", "float64")),
    accept("activations", each(*ACTIVATIONS), data(3, 17, low=-3, high=3)),
    accept("positive", each(op.log, op.sqrt, op.rsqrt), data(3, 17, low=0.1, high=9)),
    accept("within-one", each(op.acos, op.asin, op.atanh), data(3, 17, low=-0.9, high=0.9)),
    accept("above-one", op.acosh, data(3, 17, low=1.1, high=9)),
    accept("prelu", nn.prelu, data(2, 5, 7), data(5)),
    accept("special", each(op.isnan, op.isinf, op.isfinite, op.abs, op.sign, op.exp), data(values=SPECIAL)),
    accept(  # stock TVM answers a NaN with the bound
        "bounds",
        each(nn.relu, lambda x: op.clip(x, -1, 1), lambda x: op.maximum(x, op.negative(x))),
        data(values=SPECIAL),
        reference=lambda x: (np.maximum(x, 0), np.clip(x, -1, 1), np.abs(x)),
    ),
    accept("halves", each(op.round, op.floor, op.ceil, op.trunc), data(values=SPECIAL[3:])),
    accept("int32", each(op.abs, op.negative, op.sign, op.bitwise_not), data(4, 9, dtype="int32", low=-9, high=9)),
    accept("not", op.logical_not, data(4, 9, dtype="bool")),
    *(
        accept(f"astype-{a}-{b}", partial(op.astype, dtype=b), data(4, 9, dtype=a, low=0, high=9))
        for a, b in [("float32", "int64"), ("int64", "float32"), ("bool", "float32"), ("float64", "uint8")]
    ),
    accept("arithmetic", each(*ARITHMETIC, op.power, op.atan2), data(3, 17, low=0.5), data(17, low=0.5)),
    accept("log-add-exp", op.log_add_exp, data(3, 17), data(3, 17)),
    accept(  # stock TVM finds a NaN not unequal to itself
        "order",
        each(*ORDER),
        data(values=[1.0, NAN, 3.0, -INF]),
        data(values=[1.0, NAN, 2.0, INF]),
        reference=each(np.equal, np.not_equal, np.greater, np.greater_equal, np.less, np.less_equal),
    ),
    accept("int64", each(*ARITHMETIC[:3], *ORDER), data(4, 1, dtype="int64", high=9), data(5, dtype="int64", high=9)),
    accept(
        "division",
        each(op.floor_divide, op.floor_mod, op.mod),
        data(values=np.array([7, -7, 7, -7], "int32"), dtype="int32"),
        data(values=np.array([3, 3, -3, -3], "int32"), dtype="int32"),
    ),
    accept("logic", each(*LOGIC), data(4, 9, dtype="bool"), data(9, dtype="bool")),
    accept("bits", each(*BITS), data(4, 9, dtype="int32", low=0, high=99), data(9, dtype="int32", low=0, high=99)),
    accept(
        "shifts",
        each(op.left_shift, op.right_shift),
        data(9, dtype="int32", low=0, high=99),
        data(9, dtype="int32", low=0, high=5),
    ),
    accept("where", op.where, data(4, 1, dtype="bool"), data(4, 9), data(9)),
    accept("quantize", partial(op.quantize, axis=1), data(4, 3, low=-9, high=9), SCALE, const(3, dtype="int8")),
    accept(
        "quantize-halves",
        partial(op.quantize, axis=0, out_dtype="int8"),
        data(values=[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.49]),
        const(values=1.0),
        const(values=0, dtype="int8"),
        reference=lambda x, _scale, _zero: np.round(x),
    ),
    accept("dequantize", partial(op.dequantize, axis=1), data(4, 3, dtype="int8"), SCALE, const(3, dtype="int8")),
    accept("scalar", each(op.exp, op.negative), data()),
    accept("no-elements", each(op.exp, nn.relu), data(0, 4)),
]

VECTORS = data(6), data(6)
LENGTHS = (1, 7, 8, 24, 32, 100)  # as they come, in 8 lanes, in 16 lanes
REDUCTIONS = [
    *(
        accept(f"{name}-{length}", each(*(partial(f, axis=-1) for f in functions)), data(3, length, low=0.5, high=1.5))
        for name, functions in {
            "sums": (op.sum, op.mean, op.prod, op.variance, op.std),
            "bounds": (op.max, op.min, op.argmax, op.argmin),
        }.items()
        for length in LENGTHS
    ),
    *(
        accept(f"over-{a}", each(partial(op.sum, axis=a), partial(op.max, axis=a, keepdims=True)), data(3, 32, 5))
        for a in (None, 0, 1, (0, 2), [-1, -2])
    ),
    accept("scan", each(partial(op.cumsum, axis=1), partial(op.cumprod, axis=0)), data(3, 7)),
    accept("softmax", each(partial(nn.softmax, axis=-1), partial(nn.log_softmax, axis=1)), data(2, 5, 33)),
    accept("softmax-of-large", nn.softmax, data(3, 40, low=80, high=100)),
    accept("layer-norm", partial(nn.layer_norm, axes=[-1]), data(4, 48), data(48), data(48)),
    accept("rms-norm", partial(nn.rms_norm, axes=[-1]), data(4, 48), data(48)),
    accept("group-norm", partial(nn.group_norm, num_groups=2, channel_axis=1, axes=[2]), data(2, 6, 5), *VECTORS),
    accept("instance-norm", partial(nn.instance_norm, channel_axis=1, axes=[2]), data(2, 6, 5), *VECTORS),
    accept(
        "batch-norm",
        lambda *args: item(nn.batch_norm(*args, axis=1), 0),
        data(2, 6, 5), data(6), data(6), data(6), data(6, low=0.5),
    ),
    accept("matmul", op.matmul, data(5, 17), data(17, 32)),
    accept("matmul-batched", op.matmul, data(2, 1, 5, 16), data(3, 16, 4)),
    accept("matmul-vectors", op.matmul, data(40), data(40)),
]  # fmt: skip

THREE, PAIRS = const(values=[3, 0, 1], dtype="int64"), const(values=[[3, 0], [1, 4]], dtype="int64")
#: TVM 0.26 has a Relax expression for a number
ON_OFF = tuple(relax.PrimValue(tvm.tirx.IntImm("int64", n)) for n in (1, 0)) if hasattr(relax, "PrimValue") else (1, 0)
SHAPES = [
    accept("reshape-add", lambda x, y: op.add(op.reshape(x, (4, 9)), y), data(6, 6), data(9)),
    accept("permute", partial(op.permute_dims, axes=[2, 0, 1]), data(2, 3, 5)),
    accept("broadcast", lambda x: op.broadcast_to(x, (4, 3, 5)), data(3, 1)),
    accept("concat", lambda x, y: op.concat([x, y, x], axis=1), data(2, 3), data(2, 4)),
    accept("stack", lambda x, y: op.stack([x, y], axis=1), data(2, 3), data(2, 3)),
    accept("split", lambda x: tuple(item(op.split(x, [2, 5], 1), i) for i in range(3)), data(2, 7)),
    accept("slice", lambda x: op.strided_slice(x, [0, 1], [1, 5], [5, 0], [2, -1]), data(6, 7)),
    accept("repeat", each(partial(op.repeat, repeats=2, axis=1), partial(op.tile, repeats=(2, 3))), data(3, 4)),
    accept("flip", partial(op.flip, axis=1), data(3, 4)),
    accept("triangles", each(op.tril, partial(op.triu, k=1)), data(4, 5)),
    accept("pad", partial(nn.pad, pad_width=[1, 0, 2, 3], pad_value=-1.0), data(3, 4)),
    *(
        accept(
            f"pad-{mode}",
            lambda x, mode=mode, least=least: nn.pad(x, [0, 0, least, 1], pad_mode=mode),
            data(3, 5),
            reference=lambda x, name=name, least=least: np.pad(x, [(0, 0), (least, 1)], name),
        )
        for mode, name, least in (("reflect", "reflect", 4), ("replicate", "edge", 9), ("circular", "wrap", 5))
    ),
    accept("pixel-shuffle", partial(nn.pixel_shuffle, upscale_factor=2), data(1, 8, 2, 3), reference=shuffled),
    accept("collapse", lambda x: op.collapse_sum_to(x, (1, 5)), data(3, 5)),
    accept("views-inside", lambda x: op.exp(op.expand_dims(op.squeeze(op.flatten(op.negative(x))), 0)), data(1, 4, 1)),
    accept("take", each(partial(op.take, axis=0), partial(op.take, axis=1)), data(4, 5), THREE),
    accept("take-any", partial(op.take, axis=0, mode="clip"), data(4, 5), data(values=[3, 9], dtype="int64")),
    accept("take-flat", partial(op.take, axis=None), data(20), const(values=[19], dtype="int64")),
    accept("gather-nd", op.gather_nd, data(4, 5), PAIRS),
    accept("gather-nd-batched", partial(op.gather_nd, batch_dims=1), data(2, 4, 5), PAIRS),
    accept("gather", partial(op.gather_elements, axis=1), data(2, 5), PAIRS),
    accept("like", each(op.zeros_like, op.ones_like, lambda x: op.full_like(x, relax.const(3.0))), data(3, 4)),
    accept("batch-flatten", lambda x: op.exp(nn.batch_flatten(x)), data(3, 4, 5)),
    accept("one-hot", lambda x: op.one_hot(x, *ON_OFF, 5), data(values=[3, 0, 1], dtype="int64")),
    accept("eye", lambda x: op.add(op.eye(4), x), data(4, 4)),
    accept("full", lambda x: op.add(op.full((3,), relax.const(2.0), "float32"), x), data(3)),
    accept("zeros", lambda x: op.add(op.zeros((3,), "float32"), op.add(op.ones((3,), "float32"), x)), data(3)),
    accept("arange", lambda x: op.add(op.arange(0, 6, 2, "float32"), x), data(3)),
    accept("eye-like", op.eye_like, data(4, 4)),
]  # fmt: skip

SYMBOLIC = [
    accept("chain", lambda x, y: op.exp(op.add(x, y)), data("n", 4), data(4), symbols={"n": 5}),
    accept("softmax", nn.softmax, data("n", "m"), symbols={"n": 3, "m": 7}),
    accept("sum", partial(op.sum, axis=0), data("n", 4), symbols={"n": 9}),
    accept("concat", lambda x: op.concat([x, op.negative(x)], axis=0), data("n", 4), symbols={"n": 3}),
    accept("norm", partial(nn.layer_norm, axes=[-1]), data("n", 32), data(32), data(32), symbols={"n": 3}),
    accept("none", op.exp, data("n", 4), symbols={"n": 0}),
]


@pytest.mark.parametrize("case", ELEMENTWISE)
def test_elementwise(case: Case) -> None:
    case.offloads().matches()


@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions(case: Case) -> None:
    case.offloads().matches()


@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case: Case) -> None:
    case.offloads().matches()


@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic(case: Case) -> None:
    case.offloads().matches()


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        refuse("half", "dtype float16, which C cannot compute with", op.exp, data(4, dtype="float16")),
        refuse("bfloat16", "dtype bfloat16", op.exp, data(4, dtype="bfloat16")),
        refuse("half-inside", "dtype float16", partial(op.astype, dtype="float16"), data(4)),
        refuse("large-product", "266240 multiply-adds; taken are up to 262144", op.matmul, data(64, 64), data(64, 65)),
        refuse("symbolic-product", "of symbolic size", op.matmul, data("n", 4), data(4, 4), symbols={"n": 3}),
        refuse("convolution", "does not take relax.nn.conv2d", nn.conv2d, data(1, 3, 8, 8), const(4, 3, 3, 3)),
    ],
)
def test_refused(case: Case, reason: str) -> None:
    case.is_refused(reason).matches()


def test_a_refusal_by_dtype_is_readable_and_prints_nothing(capfd) -> None:
    x = relax.Var("x", relax.TensorType((4,), "int32"))
    verdict = byoc.get_annotate_compiler("ccompiler", "relax.log_add_exp")
    with pytest.raises(byoc.Reject, match="TVM computes it in floats only, got int32; cast its operands"):
        verdict(None, [x, x])
    assert "Warning" not in capfd.readouterr().err


def test_every_operator_has_a_row() -> None:
    rows = [*ELEMENTWISE, *REDUCTIONS, *SHAPES, *SYMBOLIC]
    called = {c.op.name for row in rows for f in [row.values[0].module["main"]] for c in _calls(f)}
    taken = {f"relax.{name}" for names in ops.FAMILIES.values() for name in names.split()}
    assert taken - called == set()


def _calls(func: relax.Function) -> list[relax.Call]:
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(func, lambda e: found.append(e) if isinstance(e, relax.Call) else None)
    return [c for c in found if isinstance(c.op, tvm.ir.Op)]
