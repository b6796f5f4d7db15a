"""Scales, shifts and batch norms folded into the weights before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.unit.importing import check, module, node, onnx_model, ops, prepared, rand, same_numbers
from tvm_byoc_dnnl.core.compilation import OverwritableWeights
from tvm_byoc_dnnl.ir.relax_utils import constant_numpy, make_constant
from tvm_byoc_dnnl.prepare.rewrite import Scope

Build = Callable[[relax.BlockBuilder, relax.Var], Any]


def const(value: Any) -> relax.Expr:
    return relax.const(np.asarray(value, "float32"))


def norm(channels: int) -> dict[str, np.ndarray]:
    return {
        "g": rand(channels, seed=3), "be": rand(channels, seed=4),
        "m": rand(channels, seed=5), "v": np.abs(rand(channels, seed=6)) + 0.5,
    }  # fmt: skip


NORM = ["g", "be", "m", "v"]


# ---- batch norm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_batch_norm_after_conv(op: str, groups: int, bias: bool) -> None:
    w = rand(8, 4 // groups, 3, 3) if op == "Conv" else rand(4, 8 // groups, 3, 3)
    nodes = [
        node(op, ["x", "w", *(["b"] if bias else [])], ["c"], group=groups),
        node("BatchNormalization", ["c", *NORM], ["y"], epsilon=1e-3),
    ]
    got = check(onnx_model(nodes, {"x": (2, 4, 6, 7)}, {"w": w, "b": rand(8), **norm(8)}))
    assert got == {"nn.conv2d" if op == "Conv" else "nn.conv2d_transpose": 1, "add": 1}


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 5, 6, 7)], ids=["1d", "3d"])
def test_batch_norm_after_conv_of_other_ranks(shape: tuple[int, ...]) -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", *NORM], ["y"])]
    kernel = [2] * (len(shape) - 2)
    assert check(onnx_model(nodes, {"x": shape}, {"w": rand(6, 4, *kernel), **norm(6)}))["add"] == 1


@pytest.mark.parametrize("shape", [(1, 1 << 19), (1021, 523), (3, 5), (0, 4)])
def test_product_of_weights(shape: tuple[int, ...]) -> None:
    def product(array: np.ndarray, factors: np.ndarray) -> relax.Expr:
        return Scope(tvm.IRModule(), {}, OverwritableWeights()).product(make_constant(array), factors)

    weights, scale = rand(*shape), rand(shape[1], seed=1)
    np.testing.assert_array_equal(constant_numpy(product(weights, scale)), weights * scale)
    rows = rand(shape[0], 1, seed=2).astype("float16")
    halves = weights.astype("float16")
    np.testing.assert_array_equal(constant_numpy(product(halves, rows)), halves * rows)


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_after_matmul(bias: bool) -> None:
    first = node("Gemm", ["x", "w", "b"], ["c"]) if bias else node("MatMul", ["x", "w"], ["c"])
    nodes = [first, node("BatchNormalization", ["c", *NORM], ["y"])]
    got = check(onnx_model(nodes, {"x": (5, 4)}, {"w": rand(4, 6), "b": rand(6), **norm(6)}))
    assert got == {"matmul": 1, "add": 1}


def test_batch_norm_alone_takes_what_follows() -> None:
    nodes = [
        node("BatchNormalization", ["x", *NORM], ["n"]),
        node("Mul", ["n", "s"], ["t"]),
        node("Add", ["t", "b"], ["u"]),
        node("Relu", ["u"], ["y"]),
    ]
    constants = {**norm(6), "s": rand(6, 1, 1), "b": rand(1, 6, 1, 1)}
    assert check(onnx_model(nodes, {"x": (2, 6, 4, 5)}, constants)) == {"nn.batch_norm": 1, "nn.relu": 1}


def test_batch_norm_stays_when_the_conv_is_read_elsewhere() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", *NORM], ["n"]),
        node("Add", ["c", "n"], ["y"]),
    ]
    got = check(onnx_model(nodes, {"x": (2, 4, 6, 7)}, {"w": rand(8, 4, 3, 3), **norm(8)}))
    assert got == {"nn.conv2d": 1, "nn.batch_norm": 1, "add": 1}


def batch_norm(**attrs: Any) -> Build:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        c = b.emit(relax.op.nn.conv2d(x, const(rand(8, 4, 1, 1))))
        params = [const(v) for v in norm(8).values()]
        n = b.emit(relax.op.nn.batch_norm(c, *params, **{"axis": 1, "training": False, **attrs}))
        return b.emit(n[0])

    return build


@pytest.mark.parametrize("attrs", [{"center": False}, {"scale": False}, {"epsilon": 0.1}], ids=str)
def test_batch_norm_attributes_count(attrs: dict[str, Any]) -> None:
    assert same_numbers(module(batch_norm(**attrs), (2, 4, 5, 6)), rand(2, 4, 5, 6)) == {"nn.conv2d": 1, "add": 1}


@pytest.mark.parametrize("attrs", [{"training": True}, {"axis": 3}], ids=str)
def test_batch_norm_that_must_stay(attrs: dict[str, Any]) -> None:
    mod = module(batch_norm(**attrs), (2, 4, 5, 8))
    assert ops(prepared(mod))["nn.batch_norm"] == 1


def test_batch_norm_without_constant_parameters() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "s", *NORM[1:]], ["y"])]
    got = check(onnx_model(nodes, {"x": (2, 4, 6, 7), "s": (8,)}, {"w": rand(8, 4, 3, 3), **norm(8)}))
    assert got == {"nn.conv2d": 1, "nn.batch_norm": 1}


# ---- multiply, add and their like -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["multiply", "divide", "add", "subtract", "rsubtract", "chain"])
@pytest.mark.parametrize("linear", ["conv", "matmul"])
def test_per_channel_arithmetic(name: str, linear: str) -> None:
    shape = (2, 4, 5, 6) if linear == "conv" else (2, 3, 4)
    weight = const(rand(8, 4, 3, 3)) if linear == "conv" else const(rand(4, 8))
    c = const(np.abs(rand(8, 1, 1) if linear == "conv" else rand(8)) + 0.5)

    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.nn.conv2d(x, weight) if linear == "conv" else relax.op.matmul(x, weight))
        if name == "rsubtract":
            return b.emit(relax.op.subtract(c, y))
        if name == "chain":
            y = b.emit(relax.op.add(c, y))
            y = b.emit(relax.op.divide(y, const(3.0)))
            y = b.emit(relax.op.subtract(y, c))
            return b.emit(relax.op.multiply(c, y))
        return b.emit(getattr(relax.op, name)(y, c))

    got = same_numbers(module(build, shape), rand(*shape))
    got.pop("nn.conv2d" if linear == "conv" else "matmul")
    assert got == ({} if name in ("multiply", "divide") else {"add": 1})


@pytest.mark.parametrize("shape", [(1, 8, 1, 1), (8, 1, 1), (1, 1, 1), ()], ids=str)
def test_bias_ends_in_one_form(shape: tuple[int, ...]) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit(relax.op.add(const(rand(*shape)), b.emit(relax.op.nn.conv2d(x, const(rand(8, 4, 3, 3))))))

    mod = module(build, (2, 4, 5, 6))
    same_numbers(mod, rand(2, 4, 5, 6))
    add = prepared(mod)["main"].body.blocks[0].bindings[-1].value
    assert add.op.name == "relax.add"
    assert [int(d) for d in add.args[1].ty.shape] == [1, 8, 1, 1]


def gemm(**attrs: Any) -> dict[str, int]:
    w = rand(6, 8) if attrs.get("transB") else rand(8, 6)
    return check(onnx_model([node("Gemm", ["x", "w", "b"], ["y"], **attrs)], {"x": (4, 8)}, {"w": w, "b": rand(6)}))


@pytest.mark.parametrize("attrs", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}], ids=str)
def test_gemm(attrs: dict[str, Any]) -> None:
    assert gemm(**attrs) == {"matmul": 1, "add": 1}


NOT_FOLDED: dict[str, tuple[Build, dict[str, int]]] = {
    "per pixel": (
        lambda b, x: b.emit(relax.op.multiply(conv(b, x), const(rand(3, 4)))),
        {"nn.conv2d": 1, "multiply": 1},
    ),
    "wrong axis": (
        lambda b, x: b.emit(relax.op.multiply(conv(b, x), const(rand(1, 1, 3, 1)))),
        {"nn.conv2d": 1, "multiply": 1},
    ),
    "widened": (
        lambda b, x: b.emit(relax.op.add(conv(b, x), const(rand(2, 1, 8, 1, 1)))),
        {"nn.conv2d": 1, "add": 1},
    ),
    "constant over conv": (
        lambda b, x: b.emit(relax.op.divide(const(rand(8, 1, 1)), conv(b, x))),
        {"nn.conv2d": 1, "divide": 1},
    ),
    "divided by zero": (
        lambda b, x: b.emit(relax.op.divide(conv(b, x), const(np.zeros((8, 1, 1))))),
        {"nn.conv2d": 1, "divide": 1},
    ),
}


def conv(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return b.emit(relax.op.nn.conv2d(x, const(rand(8, 4, 3, 3))))


@pytest.mark.parametrize("name", NOT_FOLDED)
def test_what_is_not_folded(name: str) -> None:
    build, want = NOT_FOLDED[name]
    assert ops(prepared(module(build, (1, 4, 5, 6)))) == want


def test_weights_that_are_inputs_only_collect_the_bias() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.add(b.emit(relax.op.nn.conv2d(x, w)), const(rand(8, 1, 1))))
        y = b.emit(relax.op.add(y, const(rand(8, 1, 1, seed=2))))
        return b.emit(relax.op.multiply(y, const(2.0)))

    shapes = (1, 4, 5, 6), (8, 4, 3, 3)
    got = same_numbers(module(build, *shapes), *[rand(*s) for s in shapes])
    assert got == {"nn.conv2d": 1, "add": 1, "multiply": 1}


def attention(scale: Any, *, read_twice: bool = False) -> Build:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        q = b.emit(relax.op.add(b.emit(relax.op.matmul(x, const(rand(8, 12)))), const(rand(12))))
        heads = b.emit(relax.op.permute_dims(b.emit(relax.op.reshape(q, (2, 5, 3, 4))), [0, 2, 1, 3]))
        y = b.emit(relax.op.multiply(heads, const(scale)))
        return b.emit(relax.op.add(y, heads)) if read_twice else y

    return build


def test_a_number_is_folded_through_views() -> None:
    mod = module(attention(0.25), (2, 5, 8))
    assert same_numbers(mod, rand(2, 5, 8)) == {"matmul": 1, "add": 1, "reshape": 1, "permute_dims": 1}


@pytest.mark.parametrize("view", [relax.op.flatten, relax.op.nn.batch_flatten], ids=["flatten", "batch_flatten"])
def test_a_number_is_folded_through_what_flattens(view: Any) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        product = b.emit(relax.op.matmul(x, const(rand(8, 12))))
        return b.emit(relax.op.multiply(b.emit(view(product)), const(0.25)))

    assert "multiply" not in same_numbers(module(build, (2, 5, 8)), rand(2, 5, 8))


def test_what_is_not_folded_through_views() -> None:
    assert "multiply" in same_numbers(module(attention(rand(4)), (2, 5, 8)), rand(2, 5, 8))
    assert "multiply" in same_numbers(module(attention(0.25, read_twice=True), (2, 5, 8)), rand(2, 5, 8))


def _norm(b: relax.BlockBuilder, x: relax.Expr, channels: int, axis: int = 1) -> relax.Expr:
    params = [const(np.abs(rand(channels, seed=s)) + 0.5) for s in range(4)]
    return b.emit(relax.TupleGetItem(b.emit(relax.op.nn.batch_norm(x, *params, axis=axis, training=False)), 0))


BEFORE: dict[str, tuple[Build, tuple[int, ...], dict[str, int]]] = {
    "batch_norm conv": (
        lambda b, x: b.emit(relax.op.nn.conv2d(_norm(b, x, 4), const(rand(6, 4, 3, 3)))),
        (2, 4, 5, 6),
        {"nn.conv2d": 1, "add": 1},
    ),
    "batch_norm grouped": (
        lambda b, x: b.emit(relax.op.nn.conv2d(_norm(b, x, 4), const(rand(6, 2, 3, 3)), groups=2)),
        (2, 4, 5, 6),
        {"nn.conv2d": 1, "add": 1},
    ),
    "batch_norm depthwise nhwc": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d(
                _norm(b, x, 4, 3), const(rand(3, 3, 1, 4)), groups=4, data_layout="NHWC", kernel_layout="HWIO"
            )
        ),
        (2, 5, 6, 4),
        {"nn.conv2d": 1, "add": 1},
    ),
    "batch_norm conv1d": (
        lambda b, x: b.emit(relax.op.nn.conv1d(_norm(b, x, 4), const(rand(6, 4, 3)))),
        (2, 4, 9),
        {"nn.conv1d": 1, "add": 1},
    ),
    "batch_norm matmul": (
        lambda b, x: b.emit(relax.op.matmul(_norm(b, x, 8), const(rand(8, 5)))),
        (3, 8),
        {"matmul": 1, "add": 1},
    ),
    "mean and deviation": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d(
                b.emit(
                    relax.op.divide(
                        b.emit(relax.op.subtract(x, const(rand(1, 3, 1, 1)))), const(np.abs(rand(3, 1, 1)) + 0.5)
                    )
                ),
                const(rand(6, 3, 3, 3)),
            )
        ),
        (2, 3, 5, 6),
        {"subtract": 1, "nn.conv2d": 1},
    ),
    "scale before padding": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d(b.emit(relax.op.multiply(x, const(rand(3, 1, 1)))), const(rand(6, 3, 3, 3)), padding=1)
        ),
        (2, 3, 5, 6),
        {"nn.conv2d": 1},
    ),
    "scale before a transposed conv": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d_transpose(
                b.emit(relax.op.multiply(x, const(rand(4, 1, 1)))), const(rand(4, 3, 3, 3)), groups=2, strides=2
            )
        ),
        (2, 4, 5, 6),
        {"nn.conv2d_transpose": 1},
    ),
    "shift before padding": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d(b.emit(relax.op.add(x, const(rand(3, 1, 1)))), const(rand(6, 3, 3, 3)), padding=1)
        ),
        (2, 3, 5, 6),
        {"add": 1, "nn.conv2d": 1},
    ),
    "batch_norm before padding": (
        lambda b, x: b.emit(relax.op.nn.conv2d(_norm(b, x, 4), const(rand(6, 4, 3, 3)), padding=(0, 1))),
        (2, 4, 5, 6),
        {"nn.batch_norm": 1, "nn.conv2d": 1},
    ),
    "shift before a transposed conv": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d_transpose(b.emit(relax.op.add(x, const(rand(4, 1, 1)))), const(rand(4, 3, 3, 3)))
        ),
        (2, 4, 5, 6),
        {"add": 1, "nn.conv2d_transpose": 1},
    ),
    "wrong axis": (
        lambda b, x: b.emit(relax.op.nn.conv2d(_norm(b, x, 4, 2), const(rand(6, 4, 3, 3)))),
        (2, 4, 4, 6),
        {"nn.batch_norm": 1, "nn.conv2d": 1},
    ),
    "per pixel": (
        lambda b, x: b.emit(
            relax.op.nn.conv2d(b.emit(relax.op.multiply(x, const(rand(5, 6)))), const(rand(6, 3, 3, 3)))
        ),
        (2, 3, 5, 6),
        {"multiply": 1, "nn.conv2d": 1},
    ),
    "read elsewhere": (
        lambda b, x: _read_twice(b, _norm(b, x, 4)),
        (2, 4, 5, 6),
        {"nn.batch_norm": 1, "nn.conv2d": 1, "sum": 2, "add": 1},
    ),
}


def _read_twice(b: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    y = b.emit(relax.op.nn.conv2d(x, const(rand(6, 4, 3, 3))))
    return b.emit(relax.op.add(b.emit(relax.op.sum(x)), b.emit(relax.op.sum(y))))


def _far_norm(b: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    params = [const(np.full(64, n, "float32")) for n in (1.0, 0.0, 1e4, 1.0)]
    return b.emit(relax.TupleGetItem(b.emit(relax.op.nn.batch_norm(x, *params, axis=1, training=False)), 0))


@pytest.mark.parametrize(
    "centred",
    [lambda b, x: b.emit(relax.op.subtract(x, const(1e4))), _far_norm],
    ids=["subtract", "batch_norm"],
)
def test_a_large_mean_costs_no_precision(centred: Build) -> None:
    """What is left of x - 1e4 is exact; x @ w - 1e4 * sum(w) would lose four digits."""
    mod = module(lambda b, x: b.emit(relax.op.matmul(centred(b, x), const(rand(64, 40)))), (9, 64))
    assert len(same_numbers(mod, (1e4 + rand(9, 64)).astype("float32"))) == 2


@pytest.mark.parametrize("name", BEFORE)
def test_what_stands_before(name: str) -> None:
    build, shape, want = BEFORE[name]
    assert same_numbers(module(build, shape), rand(*shape)) == want
