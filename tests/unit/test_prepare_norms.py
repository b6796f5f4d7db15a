"""Normalisations and softmax spelled out, in many ways and almost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

from tests.harness import assert_right
from tests.unit.importing import check, module, node, onnx_model, ops, prepared, rand, run, same_numbers
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.prepare import ExactForms
from tvm_byoc_dnnl.vendor import RELU_OF_NUMBERS

RELU = RELU_OF_NUMBERS.removeprefix("relax.")

SHAPE = (2, 5, 8)
Emit = Callable[[Any], Any]


def c(value: Any) -> Any:
    return relax.const(np.asarray(value, "float32"))


def squares(e: Emit, x: Any, how: str) -> Any:
    if how == "power":
        return e(R.power(x, c(2.0)))
    return e(R.square(x)) if how == "square" else e(R.multiply(x, x))


def over_root(e: Emit, x: Any, v: Any, how: str) -> Any:
    if how == "sqrt":
        return e(R.divide(x, e(R.sqrt(v))))
    if how == "power":
        return e(R.divide(x, e(R.power(v, c(0.5)))))
    if how == "inverse":
        return e(R.multiply(e(R.divide(c(1.0), e(R.sqrt(v)))), x))
    return e(R.multiply(x, e(R.rsqrt(v))))


def core(
    e: Emit,
    x: Any,
    *,
    axis: tuple[int, ...] = (-1,),
    square: str = "multiply",
    root: str = "sqrt",
    eps: float = 1e-5,
    variance_axis: tuple[int, ...] | None = None,
) -> Any:
    d = e(R.subtract(x, e(R.mean(x, list(axis), keepdims=True))))
    if square == "variance":
        v = e(R.variance(x, list(axis), keepdims=True))
    else:
        v = e(R.mean(squares(e, d, square), list(variance_axis or axis), keepdims=True))
    return over_root(e, d, e(R.add(v, c(eps))), root)


def scaled(e: Emit, n: Any, g: Any, b: Any) -> Any:
    return e(R.add(e(R.multiply(n, g)), b))


def ops_of(build: Callable[[Emit, Any], Any], shape: tuple[int, ...] = SHAPE) -> dict[str, int]:
    return same_numbers(module(lambda b, x: build(b.emit, x), shape), rand(*shape))


# ---- layer_norm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("square", ["multiply", "power", "square", "variance"])
@pytest.mark.parametrize("root", ["sqrt", "rsqrt", "power", "inverse"])
def test_layer_norm(square: str, root: str) -> None:
    def build(e: Emit, x: Any) -> Any:
        return scaled(e, core(e, x, square=square, root=root), c(rand(8)), c(rand(8, seed=2)))

    assert ops_of(build) == {"nn.layer_norm": 1}


def attributes_of(build: Callable[[Emit, Any], Any], shape: tuple[int, ...] = SHAPE) -> Any:
    mod = prepared(module(lambda b, x: build(b.emit, x), shape))
    return mod["main"].body.blocks[0].bindings[0].value


@pytest.mark.parametrize("eps", [1e-3, 1e-12])
def test_eps_and_axes_are_what_was_found(eps: float) -> None:
    call = attributes_of(lambda e, x: core(e, x, axis=(1, 2), eps=eps))
    assert float(call.attrs.epsilon) == pytest.approx(eps)
    assert [int(a) for a in call.attrs.axes] == [-2, -1]


def test_without_scale_or_shift() -> None:
    assert ops_of(lambda e, x: core(e, x)) == {"nn.layer_norm": 1}
    assert ops_of(lambda e, x: e(R.multiply(core(e, x), c(rand(8))))) == {"nn.layer_norm": 1}
    assert ops_of(lambda e, x: e(R.add(c(rand(8)), core(e, x)))) == {"nn.layer_norm": 1}
    assert ops_of(lambda e, x: e(R.multiply(core(e, x), c(3.0)))) == {"nn.layer_norm": 1}


def test_parameters_that_are_inputs() -> None:
    def build(b: relax.BlockBuilder, x: Any, g: Any, s: Any) -> Any:
        return scaled(b.emit, core(b.emit, x), g, s)

    assert same_numbers(module(build, SHAPE, (8,), (1, 8)), rand(*SHAPE), rand(8), rand(1, 8)) == {
        "nn.layer_norm": 1,
        "reshape": 1,
    }


def test_what_follows_the_affine_part_stays() -> None:
    def build(e: Emit, x: Any) -> Any:
        return e(R.add(e(R.multiply(scaled(e, core(e, x), c(rand(8)), c(rand(8))), c(rand(8)))), c(rand(5, 1))))

    assert ops_of(build) == {"nn.layer_norm": 1, "multiply": 1, "add": 1}


def test_symbolic_batch() -> None:
    n = tvm.tirx.Var("n", "int64")
    mod = module(lambda b, x: scaled(b.emit, core(b.emit, x), c(rand(8)), c(rand(8))), (n, 5, 8))
    assert same_numbers(mod, rand(2, 5, 8)) == {"nn.layer_norm": 1}


def test_rms_norm_over_all_axes() -> None:
    """TVM cannot compile `nn.rms_norm` over all of them."""
    norm = node("RMSNormalization", ["x", "g"], ["y"], axis=0)
    model = onnx_model([norm], {"x": (3, 8)}, {"g": rand(3, 8)}, opset=23)
    x = rand(3, 8)
    want = x / np.sqrt(np.mean(x * x) + 1e-5) * rand(3, 8)
    assert_right(run(prepared(to_relax(model)), x)[0], want, 1e-5, least=1.0, elementwise=True)

    def build(e: Emit, x: Any) -> Any:
        v = e(R.mean(e(R.multiply(x, x)), [0, 1, 2], keepdims=True))
        return over_root(e, x, e(R.add(v, c(1e-6))), "sqrt")

    assert "nn.rms_norm" not in ops_of(build)


ALMOST: dict[str, Callable[[Emit, Any], Any]] = {
    "middle axis": lambda e, x: core(e, x, axis=(1,)),
    "other axis below": lambda e, x: core(e, x, variance_axis=(1, 2)),
    "negative eps": lambda e, x: core(e, x, eps=-1e-9),
    "cubed": lambda e, x: over_root(
        e, x, e(R.add(e(R.mean(e(R.power(e(R.abs(x)), c(3.0))), [-1], keepdims=True)), c(1e-5))), "sqrt"
    ),
    "cube root": lambda e, x: e(
        R.divide(
            x,
            e(R.power(e(R.add(e(R.mean(e(R.multiply(x, x)), [-1], keepdims=True)), c(1e-5))), c(1 / 3))),
        )
    ),
}


@pytest.mark.parametrize("name", ALMOST)
def test_almost(name: str) -> None:
    assert not {"nn.layer_norm", "nn.rms_norm", "nn.instance_norm"} & set(ops_of(ALMOST[name]))


def test_statistics_read_elsewhere_stay() -> None:
    def build(e: Emit, x: Any) -> Any:
        m = e(R.mean(x, [-1], keepdims=True))
        d = e(R.subtract(x, m))
        v = e(R.mean(e(R.multiply(d, d)), [-1], keepdims=True))
        return e(R.add(over_root(e, d, e(R.add(v, c(1e-5))), "sqrt"), m))

    assert "nn.layer_norm" not in ops_of(build)


# ---- rms_norm, instance_norm, group_norm ------------------------------------------------------------


@pytest.mark.parametrize("square", ["multiply", "power"])
@pytest.mark.parametrize("root", ["sqrt", "rsqrt"])
def test_rms_norm(square: str, root: str) -> None:
    def build(e: Emit, x: Any) -> Any:
        v = e(R.mean(squares(e, x, square), [-1], keepdims=True))
        return e(R.multiply(c(rand(8)), over_root(e, x, e(R.add(v, c(1e-6))), root)))

    assert ops_of(build) == {"nn.rms_norm": 1}


def test_instance_norm() -> None:
    model = onnx_model(
        [node("InstanceNormalization", ["x", "g", "b"], ["y"], epsilon=1e-3)],
        {"x": (2, 8, 5, 6)},
        {"g": rand(8), "b": rand(8, seed=2)},
    )
    assert check(model) == {"nn.instance_norm": 1}


@pytest.mark.parametrize("opset", [18, 21])
def test_group_norm(opset: int) -> None:
    groups = 4 if opset == 18 else 8
    norm = node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=4)
    constants = {"g": rand(groups), "b": rand(groups, seed=2)}
    assert check(onnx_model([norm], {"x": (2, 8, 5, 6)}, constants, opset=opset)) == {"nn.group_norm": 1}


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_group_norm_by_instance_norm(groups: int) -> None:
    nodes = [
        node("Reshape", ["x", "split"], ["a"]),
        node("InstanceNormalization", ["a", "one", "zero"], ["n"]),
        node("Reshape", ["n", "back"], ["r"]),
        node("Mul", ["r", "g"], ["s"]),
        node("Add", ["s", "b"], ["y"]),
    ]
    constants = {
        "split": np.array([0, groups, -1]), "back": np.array([2, 8, 5, 6]),
        "one": np.ones(groups, "float32"), "zero": np.zeros(groups, "float32"),
        "g": rand(8, 1, 1), "b": rand(8, 1, 1, seed=2),
    }  # fmt: skip
    assert check(onnx_model(nodes, {"x": (2, 8, 5, 6)}, constants)) == {"nn.group_norm": 1}


# ---- softmax ----------------------------------------------------------------------------------------


def softmax(e: Emit, x: Any, *, axis: int = -1, total_axis: int | None = None, shift: bool = True) -> Any:
    x = e(R.subtract(x, e(R.max(x, [axis], keepdims=True)))) if shift else x
    exp = e(R.exp(x))
    return e(R.divide(exp, e(R.sum(exp, [axis if total_axis is None else total_axis], keepdims=True))))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("shift", [False, True])
def test_softmax(axis: int, shift: bool) -> None:
    assert ops_of(lambda e, x: softmax(e, x, axis=axis, shift=shift)) == {"nn.softmax": 1}


def test_softmax_over_other_axes_stays() -> None:
    assert "nn.softmax" not in ops_of(lambda e, x: softmax(e, x, axis=1, total_axis=2))


def test_softmax_whose_exponential_is_read_elsewhere_stays() -> None:
    def build(e: Emit, x: Any) -> Any:
        exp = e(R.exp(x))
        return e(R.add(exp, e(R.divide(exp, e(R.sum(exp, [-1], keepdims=True))))))

    assert "nn.softmax" not in ops_of(build)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("shape", "axis", "views"),
    [((1, 8, 1, 1), 1, 0), ((2, 8, 3), 2, 0), ((2, 3, 4, 5), -1, 0), ((2, 8), 1, 0), ((2, 8, 3), 1, 2)],
    ids=str,
)
def test_softmax_before_opset_13(op: str, shape: tuple[int, ...], axis: int, views: int) -> None:
    got = check(onnx_model([node(op, ["x"], ["y"], axis=axis)], {"x": shape}, opset=11))
    assert got.get("reshape", 0) == views
    assert sum(got.values()) == 1 + views


HIDDEN = np.where(np.tril(np.ones((5, 5), bool)), 0, -np.inf)  # every row sees at least itself
BLIND = np.where(np.arange(5)[:, None] == 2, -np.inf, np.zeros((5, 5)))  # one row sees nothing


def guarded(e: Emit, q: Any, k: Any, mask: np.ndarray | None, axis: int = -1) -> Any:
    """PyTorch's attention weights: rows that are hidden completely give 0."""
    scores = e(R.multiply(e(R.matmul(q, k)), c(0.25)))
    scores = scores if mask is None else e(R.add(scores, c(mask)))
    seen = e(R.astype(e(R.logical_not(e(R.equal(scores, c(-np.inf))))), "int8"))
    none = e(R.logical_not(e(R.astype(e(R.max(seen, [axis], keepdims=True)), "bool"))))
    return e(R.where(none, c(np.zeros((3, 5, 5))), e(R.nn.softmax(scores, axis=-1))))


@pytest.mark.parametrize(
    ("mask", "axis", "guard"),
    [(None, -1, set()), (HIDDEN, -1, set()), (BLIND, -1, {RELU}), (None, -2, {"where"})],
    ids=["no mask", "causal", "blind row", "other axis"],
)
def test_guarded_softmax(mask: np.ndarray | None, axis: int, guard: set[str]) -> None:
    mod = module(lambda b, q, k: guarded(b.emit, q, k, mask, axis), (3, 5, 8), (3, 8, 5))
    got = same_numbers(mod, rand(3, 5, 8), rand(3, 8, 5))
    assert {"where", RELU} & got.keys() == guard
    assert got["nn.softmax"] == 1


@pytest.mark.parametrize(("mask", "relus"), [(None, 0), (HIDDEN, 0), (BLIND, 1)], ids=["no", "causal", "blind"])
def test_softmax_guarded_by_isnan(mask: np.ndarray | None, relus: int) -> None:
    def build(b: relax.BlockBuilder, q: Any, k: Any) -> Any:
        e = b.emit
        scores = e(R.multiply(e(R.matmul(q, k)), c(0.25)))
        weights = e(R.nn.softmax(scores if mask is None else e(R.add(scores, c(mask))), axis=-1))
        return e(R.where(e(R.isnan(weights)), c(0.0), weights))

    got = same_numbers(module(build, (3, 5, 8), (3, 8, 5)), rand(3, 5, 8), rand(3, 8, 5))
    assert "where" not in got
    assert got.get(RELU, 0) == relus


@pytest.mark.parametrize(
    ("hidden", "zero", "guard"),
    [(-np.inf, 0.0, RELU), (-1e9, 0.0, "where"), (-np.inf, 1.0, "where")],
    ids=["run-time mask", "hidden by another number", "other than 0"],
)
def test_guard_of_a_mask_that_is_an_input(hidden: float, zero: float, guard: str) -> None:
    def build(b: relax.BlockBuilder, scores: Any) -> Any:
        e = b.emit
        seen = e(R.astype(e(R.logical_not(e(R.equal(scores, c(hidden))))), "int8"))
        none = e(R.logical_not(e(R.astype(e(R.max(seen, [-1], keepdims=True)), "bool"))))
        return e(R.where(none, c(np.full((3, 5, 5), zero)), e(R.nn.softmax(scores, axis=-1))))

    scores = rand(3, 5, 5)
    scores[0, 1] = -np.inf  # a row that is hidden altogether
    scores[1, 2, :3] = -np.inf  # and one in part
    got = same_numbers(module(build, (3, 5, 5)), scores)
    assert {"where", RELU} & got.keys() == {guard}


@pytest.mark.parametrize(("value", "guard"), [(0.0, RELU), (0.5, "where")])
@pytest.mark.parametrize("shape", [(1, 12, 64, 64), (1, 12, 128, 128)], ids=["nearly", "too many"])
def test_guard_whose_zeros_are_too_many_to_fold(shape: tuple[int, ...], value: float, guard: str) -> None:

    def build(b: relax.BlockBuilder, scores: Any) -> Any:
        e = b.emit
        seen = e(R.astype(e(R.logical_not(e(R.equal(scores, c(-np.inf))))), "int8"))
        none = e(R.logical_not(e(R.astype(e(R.max(seen, [-1], keepdims=True)), "bool"))))
        weights = e(R.nn.softmax(scores, axis=-1))
        return e(R.where(none, e(R.full_like(weights, c(value))), weights))

    assert {"where", RELU} & ops(prepared(module(build, shape))).keys() == {guard}


def test_guard_by_other_scores_stays() -> None:
    def build(b: relax.BlockBuilder, scores: Any, others: Any) -> Any:
        e = b.emit
        seen = e(R.astype(e(R.logical_not(e(R.equal(others, c(-np.inf))))), "int8"))
        none = e(R.logical_not(e(R.astype(e(R.max(seen, [-1], keepdims=True)), "bool"))))
        return e(R.where(none, c(0.0), e(R.nn.softmax(scores, axis=-1))))

    others = rand(3, 5, 5, seed=2)
    others[2, 0] = -np.inf
    assert "where" in same_numbers(module(build, (3, 5, 5), (3, 5, 5)), rand(3, 5, 5), others)


@pytest.mark.parametrize("shape", [(1, 3, 300, 260), (1, 3, "h", "w")], ids=["large", "open"])
def test_instance_norm_of_pictures_whose_pixels_are_no_parameters(shape: tuple[Any, ...]) -> None:
    norm = node("InstanceNormalization", ["x", "g", "b"], ["y"])
    constants = {"g": rand(3), "b": rand(3, seed=2)}
    assert ops(prepared(to_relax(onnx_model([norm], {"x": shape}, constants)))) == {"nn.instance_norm": 1}


def bare_group_norm(e: Emit, x: Any, gamma: Any, beta: Any) -> Any:
    return e(R.nn.group_norm(x, gamma, beta, 2, 1, [2, 3], center=False, scale=False))


@pytest.mark.parametrize("how", ["constant", "like"])
def test_a_norm_without_scale_whose_parameters_are_ones(how: str) -> None:
    def build(e: Emit, x: Any) -> Any:
        ones, zeros = c(np.ones(4)), c(np.zeros(4))
        parameters = (ones, zeros) if how == "constant" else (e(R.ones_like(zeros)), e(R.zeros_like(ones)))
        normed = bare_group_norm(e, x, *parameters)
        return scaled(e, normed, c(rand(4, 1, 1)), c(rand(4, 1, 1, seed=2)))

    call = attributes_of(build, (2, 4, 5, 6))
    assert call.op.name == "relax.nn.group_norm" and call.attrs.scale and call.attrs.center
    assert ops_of(build, (2, 4, 5, 6)) == {"nn.group_norm": 1}


def test_a_norm_without_scale_whose_parameters_are_others_stays() -> None:
    call = attributes_of(lambda e, x: bare_group_norm(e, x, c(rand(4)), c(np.zeros(4))), (2, 4, 5, 6))
    assert not call.attrs.scale and not call.attrs.center


def one_pass(e: Emit, x: Any, square: str, axes: tuple[int, ...], of_mean: tuple[int, ...]) -> Any:
    mean = e(R.mean(x, list(of_mean), keepdims=True))
    return e(R.subtract(e(R.mean(squares(e, x, square), list(axes), keepdims=True)), squares(e, mean, square)))


@pytest.mark.parametrize("square", ["multiply", "power", "square"])
@pytest.mark.parametrize(("of_mean", "is_variance"), [((0, 2), True), ((2,), False)])
def test_a_variance_of_one_pass(square: str, of_mean: tuple[int, ...], is_variance: bool) -> None:
    mod = module(lambda b, x: one_pass(b.emit, x, square, (0, 2), of_mean), SHAPE)
    found = ops(ExactForms(mod))
    assert (found == {"variance": 1}) == is_variance
    assert ("variance" in found) == is_variance


def test_a_variance_of_two_tensors_stays() -> None:
    def build(b: relax.BlockBuilder, x: Any, y: Any) -> Any:
        e = b.emit
        mean = e(R.mean(y, [2], keepdims=True))
        return e(R.subtract(e(R.mean(e(R.multiply(x, x)), [2], keepdims=True)), e(R.multiply(mean, mean))))

    mod = module(build, SHAPE, SHAPE)
    assert ExactForms(mod).same_as(mod)
