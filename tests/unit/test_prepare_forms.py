"""Clip, relu, pad, sums of several tensors and operations that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.onnx import from_onnx

from tests.harness import assert_right
from tests.unit.importing import check, module, node, onnx_model, ops, prepared, rand, run, same_numbers
from tvm_byoc_dnnl.frontends import to_relax

X = {"x": (2, 42)}
IMAGE = {"x": (1, 3, 10, 11)}


def number(value: float) -> np.ndarray:
    return np.array(value, "float32")


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


# ---- clip -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 42), ("n", 42)], ids=["static", "symbolic"])
def test_clip(shape: tuple[Any, ...]) -> None:
    model = onnx_model([node("Clip", ["x", "lo", "hi"], ["y"])], {"x": shape}, {"lo": number(-0.5), "hi": number(0.7)})
    assert check(model, inputs={"x": rand(2, 42)}) == {"clip": 1}


def test_clip_behind_strides_of_an_open_image() -> None:
    """The dims are expressions there, so that their symbols are arguments of the function, too."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 3], pads=[1, 1, 1, 1]),
        node("Clip", ["c", "lo", "hi"], ["y"]),
    ]
    constants = {"w": rand(4, 3, 3, 3), "lo": number(-0.5), "hi": number(0.7)}
    model = onnx_model(nodes, {"x": ("?", 3, "?", "?")}, constants)
    assert check(model, inputs={"x": rand(2, 3, 8, 9)}) == {"nn.conv2d": 1, "clip": 1}


def test_clip_by_attributes() -> None:
    assert check(onnx_model([node("Clip", ["x"], ["y"], min=0.0, max=6.0)], X, opset=7)) == {"clip": 1}


def test_clip_with_constant_bounds_is_imported_as_operators() -> None:
    """TVM's importer writes TIR functions, which take long to generate, and to recognise."""
    given = onnx_model([node("Clip", ["x", "lo", "hi"], ["y"])], X, {"lo": number(0), "hi": number(6)})
    for model in (given, onnx_model([node("Clip", ["x"], ["y"], min=0.0, max=6.0)], X, opset=7)):
        assert ops(to_relax(model)) == {"maximum": 1, "minimum": 1}


@pytest.mark.parametrize(
    ("inputs", "value", "want"),
    [
        (["x", "b"], 0.0, {"nn.relu": 1}),
        (["x", "b"], 0.1, {"maximum": 1}),
        (["x", "", "b"], 0.0, {"minimum": 1}),
        (["x", "b"], -np.inf, {}),
        (["x", "b"], np.nan, {}),
        (["x", "", "b"], np.inf, {}),
    ],
    ids=["relu", "lower", "upper", "-inf", "nan", "inf"],
)
def test_one_bound(inputs: list[str], value: float, want: dict[str, int]) -> None:
    assert check(onnx_model([node("Clip", inputs, ["y"])], X, {"b": number(value)})) == want


def test_clip_of_integers() -> None:
    model = onnx_model(
        [node("Clip", ["x", "lo", "hi"], ["y"])],
        X,
        {"lo": np.int32(2), "hi": np.int32(7)},
        dtypes={"x": TensorProto.INT32, "y": TensorProto.INT32},
    )
    assert check(model) == {"clip": 1}


def test_bounds_that_cross() -> None:
    """ONNX gives the upper bound, Relax's clip would give the lower."""
    model = onnx_model([node("Clip", ["x", "lo", "hi"], ["y"])], X, {"lo": number(1), "hi": number(-1)})
    assert check(model) == {"clip": 1}
    mod = module(lambda b, x: b.emit(relax.op.clip(x, 1.0, -1.0)), (4, 5))
    assert same_numbers(mod, rand(4, 5)) == {"clip": 1}


def test_bounds_read_elsewhere_stay() -> None:
    nodes = [node("Max", ["x", "lo"], ["a"]), node("Min", ["a", "hi"], ["b"]), node("Add", ["a", "b"], ["y"])]
    got = check(onnx_model(nodes, X, {"lo": number(-1), "hi": number(1)}))
    assert got == {"maximum": 1, "minimum": 1, "add": 1}


def test_relu6_and_its_other_order() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Min", ["a", "six"], ["y"])]
    assert check(onnx_model(nodes, X, {"six": number(6)})) == {"clip": 1}
    nodes = [node("Min", ["x", "six"], ["a"]), node("Relu", ["a"], ["y"])]
    assert check(onnx_model(nodes, X, {"six": number(6)})) == {"clip": 1}
    assert check(onnx_model(nodes, X, {"six": number(-6)})) == {"clip": 1}  # always 0


@pytest.mark.parametrize(
    ("bounds", "want"),
    [
        ([(0.0, np.inf), (-np.inf, 0.5)], {"clip": 1}),
        ([(-1.0, 0.5), (-0.5, 1.0)], {"clip": 1}),
        ([(-1.0, -0.5), (0.5, 1.0)], {"clip": 1}),
        ([(0.0, np.inf)], {"nn.relu": 1}),
        ([(-0.5, np.inf), (0.0, np.inf)], {"nn.relu": 1}),
        ([(-np.inf, 0.3)], {"minimum": 1}),
        ([(-np.inf, np.inf)], {}),
    ],
    ids=str,
)
def test_chains_of_clips(bounds: list[tuple[float, float]], want: dict[str, int]) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        for low, high in bounds:
            x = b.emit(relax.op.clip(x, low, high))
        return x

    assert same_numbers(module(build, (4, 5)), rand(4, 5)) == want


def test_max_with_zero_is_relu_only_without_broadcast() -> None:
    assert check(onnx_model([node("Max", ["x", "z"], ["y"])], X, {"z": number(0)})) == {"nn.relu": 1}
    wide = onnx_model([node("Max", ["x", "z"], ["y"])], X, {"z": np.zeros((3, 2, 42), "float32")})
    assert check(wide) == {"maximum": 1}


def test_nan_is_no_reason_to_crash() -> None:
    """ONNX Runtime and TVM give different results for a NaN; those of the numbers beside it must be equal."""
    model = onnx_model([node("Clip", ["x", "lo", "hi"], ["y"])], X, {"lo": number(0), "hi": number(6)})
    x = rand(2, 42)
    want = np.clip(x, 0, 6)
    x[0, :3] = np.nan
    (got,) = run(prepared(to_relax(model)), x)
    assert_right(got.ravel()[3:], want.ravel()[3:], 0)


# ---- functions written in TIR -----------------------------------------------------------------------


def call_tir(function: Any, shape: tuple[int, ...], *rest: Any, name: str = "maximum") -> tvm.IRModule:
    return module(lambda b, x: b.emit(b.call_te(function, x, *rest, primfunc_name_hint=name)), shape)


def test_names_mean_nothing() -> None:
    assert ops(prepared(call_tir(topi.minimum, (2, 3), 0.0, name="maximum"))) == {"minimum": 1}
    assert ops(prepared(call_tir(topi.exp, (2, 3), name="pad"))) == {"call_tir": 1}


BOUNDS = {"lo": number(0), "hi": number(6)}
WIDTHS = {"p": ints(0, 0, 1, 2, 0, 0, 0, 3)}
THREE = {"x": (2, 3, 4), "z": (2, 1, 4), "b": (4,)}


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants", "opset", "want"),
    [
        ([node("Clip", ["x", "lo", "hi"], ["y"])], IMAGE, BOUNDS, 17, {"clip": 1}),
        ([node("Clip", ["x"], ["y"], min=0.0, max=6.0)], X, {}, 7, {"clip": 1}),
        ([node("Clip", ["x", "lo"], ["y"])], X, {"lo": number(0)}, 17, {"nn.relu": 1}),
        ([node("Pad", ["x", "p"], ["y"])], IMAGE, WIDTHS, 17, {"nn.pad": 1}),
        ([node("Pad", ["x", "p"], ["y"])], {"x": ("n", 3, 10, "w")}, WIDTHS, 17, {"nn.pad": 1}),
        (
            [node("Conv", ["x", "k"], ["y"], auto_pad="SAME_UPPER")],
            IMAGE,
            {"k": rand(4, 3, 2, 2)},
            17,
            {"nn.conv2d": 1},
        ),
        ([node("Sum", ["x", "z", "b"], ["y"])], THREE, {}, 17, {"add": 2}),
        ([node("Mean", ["x", "z", "b"], ["y"])], THREE, {}, 17, {"add": 2, "divide": 1}),
        ([node("Max", ["x", "z", "b"], ["y"])], THREE, {}, 17, {"maximum": 2}),
        ([node("Min", ["x", "z", "b"], ["y"])], THREE, {}, 17, {"minimum": 2}),
    ],
    ids=["clip", "clip-6", "one-bound", "pad", "open-pad", "auto-pad", "sum", "mean", "max", "min"],
)
def test_modules_of_tvms_own_importer(
    nodes: Any, inputs: dict[str, Any], constants: dict[str, Any], opset: int, want: dict[str, int]
) -> None:
    mod = from_onnx(onnx_model(nodes, inputs, constants, opset=opset))
    arrays = [rand(*(2 if d == "n" else 9 if d == "w" else d for d in shape)) for shape in inputs.values()]
    assert same_numbers(mod, *arrays) == want


def te_of(value: Any) -> Any:
    return lambda x: te.compute(x.shape, lambda i, j: value(x, i, j), name="T_maximum")


@pytest.mark.parametrize(
    "value",
    [
        lambda x, i, j: tirx.max(x[i, j] * 2.0, 0.0),
        lambda x, i, j: tirx.max(x[i, 4 - j], tirx.const(0.0, "float32")),
        lambda x, i, j: tirx.max(x[j % 5, i % 5], tirx.const(0.0, "float32")),
        lambda x, i, j: tirx.if_then_else(j < 2, x[i, j], 0.0),
        lambda x, i, j: tirx.if_then_else(j >= 1, x[i, j - 1], x[i, 0]),
    ],
    ids=["scaled", "mirrored", "transposed", "no pad", "no constant"],
)
def test_look_alikes_stay(value: Any) -> None:
    mod = call_tir(te_of(value), (5, 5))
    assert same_numbers(mod, rand(5, 5)) == {"call_tir": 1}


def test_functions_that_became_operators_are_gone() -> None:
    mod = call_tir(topi.minimum, (2, 3), 0.0)
    assert len(mod.get_global_vars()) == 2
    assert [gv.name_hint for gv in prepared(mod).get_global_vars()] == ["main"]


# ---- pad --------------------------------------------------------------------------------------------

PADS = ints(0, 0, 1, 2, 0, 0, 0, 3)


@pytest.mark.parametrize("value", [None, 1.5])
@pytest.mark.parametrize("shape", [(1, 3, 10, 11), ("n", 3, 10, 11)], ids=["static", "symbolic"])
def test_pad(shape: tuple[Any, ...], value: float | None) -> None:
    constants = {"p": PADS, **({} if value is None else {"v": number(value)})}
    pad = node("Pad", ["x", *constants], ["y"])
    assert check(onnx_model([pad], {"x": shape}, constants), inputs={"x": rand(1, 3, 10, 11)}) == {"nn.pad": 1}


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_pad_in_other_modes_is_one_operator(mode: str) -> None:
    assert check(onnx_model([node("Pad", ["x", "p"], ["y"], mode=mode)], IMAGE, {"p": PADS})) == {"nn.pad": 1}


def test_crops_stay() -> None:
    pads = ints(0, 0, -1, 2, 0, 0, 0, 3)
    assert "nn.pad" not in check(onnx_model([node("Pad", ["x", "p"], ["y"])], IMAGE, {"p": pads}))


def padded(op: str, around: np.ndarray = PADS, value: float = 0.0, **attrs: Any) -> dict[str, int]:
    names = ["z", "w"] if op == "Conv" else ["z"]
    nodes = [node("Pad", ["x", "p", "v"], ["z"]), node(op, names, ["y"], **attrs)]
    return check(onnx_model(nodes, IMAGE, {"p": around, "v": number(value), "w": rand(4, 3, 3, 3)}))


def test_zeros_become_the_padding_of_what_follows() -> None:
    assert padded("Conv") == {"nn.conv2d": 1}
    assert padded("Conv", around=ints(0, 0, 1, 1, 0, 0, 2, 2), strides=[2, 2]) == {"nn.conv2d": 1}
    assert padded("Conv", pads=[1, 0, 2, 1]) == {"nn.conv2d": 1}
    assert padded("AveragePool", kernel_shape=[2, 3]) == {"nn.avg_pool2d": 1}


def test_padding_that_must_stay() -> None:
    assert padded("Conv", value=1.0) == {"nn.pad": 1, "nn.conv2d": 1}
    assert padded("MaxPool", kernel_shape=[2, 2]) == {"nn.pad": 1, "nn.max_pool2d": 1}
    got = padded("AveragePool", kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    assert got == {"nn.pad": 1, "nn.avg_pool2d": 1}


def test_padding_of_channels_stays() -> None:
    nodes = [node("Pad", ["x", "p"], ["z"]), node("Conv", ["z", "w"], ["y"])]
    constants = {"p": ints(0, 1, 0, 0, 0, 0, 0, 0), "w": rand(4, 4, 3, 3)}
    assert check(onnx_model(nodes, IMAGE, constants)) == {"nn.pad": 1, "nn.conv2d": 1}


# ---- several operands -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "want"),
    [("Sum", {"add": 2}), ("Mean", {"add": 2, "divide": 1}), ("Max", {"maximum": 2}), ("Min", {"minimum": 2})],
)
def test_several_operands(op: str, want: dict[str, int]) -> None:
    model = onnx_model([node(op, ["x", "z", "b"], ["y"])], {"x": (2, 3, 4), "z": (2, 1, 4)}, {"b": rand(4)})
    assert check(model) == want


def test_operands_that_only_together_have_the_shape() -> None:
    assert check(onnx_model([node("Sum", ["x", "z"], ["y"])], {"x": (3, 1), "z": (1, 4)})) == {"add": 1}


def test_a_real_stack_stays() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        s = b.emit(relax.op.stack([x, x], axis=0))
        return b.emit(relax.op.sum(s, axis=[1]))

    assert same_numbers(module(build, (3, 4)), rand(3, 4)) == {"stack": 1, "sum": 1}


# ---- nothing at all ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda x: relax.op.reshape(x, (2, 3)),
        lambda x: relax.op.astype(x, "float32"),
        lambda x: relax.op.broadcast_to(x, (2, 3)),
        lambda x: relax.op.permute_dims(x, [0, 1]),
        lambda x: relax.op.strided_slice(x, [0, 1], [0, 0], [2, 3]),
        lambda x: relax.op.multiply(x, relax.const(1.0)),
        lambda x: relax.op.add(relax.const(np.zeros((1, 3), "float32")), x),
        lambda x: relax.op.subtract(x, relax.const(0.0)),
        lambda x: relax.op.divide(x, relax.const(1.0)),
        lambda x: relax.op.power(x, relax.const(1.0)),
        lambda x: relax.op.concat([x], 0),
    ],
    ids=["reshape", "astype", "broadcast", "permute", "slice", "mul", "add", "sub", "div", "pow", "concat"],
)
def test_identities_go(call: Any) -> None:
    assert same_numbers(module(lambda b, x: b.emit(call(x)), (2, 3)), rand(2, 3)) == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda x: relax.op.strided_slice(x, [0], [1], [-3], [-1]),
        lambda x: relax.op.permute_dims(x, [1, 0]),
        lambda x: relax.op.subtract(relax.const(0.0), x),
        lambda x: relax.op.divide(relax.const(1.0), x),
        lambda x: relax.op.multiply(x, relax.const(np.ones((1, 1, 1), "float32"))),
        lambda x: relax.op.reshape(x, (1, 2, 2)),
    ],
    ids=["reversed", "transposed", "negated", "inverted", "raised", "reshaped"],
)
def test_look_alikes_of_identities_stay(call: Any) -> None:
    assert len(same_numbers(module(lambda b, x: b.emit(call(x)), (2, 2)), rand(2, 2) + 3)) == 1


def test_views_merge() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.expand_dims(b.emit(relax.op.reshape(x, (6, 4))), [0]))
        y = b.emit(relax.op.squeeze(y, [0]))
        return b.emit(relax.op.reshape(y, (2, 12)))

    assert same_numbers(module(build, (2, 3, 4)), rand(2, 3, 4)) == {"reshape": 1}


@pytest.mark.parametrize(
    ("axes", "result", "want"),
    [
        ([0, 2, 1], (2, 3, 5, 4), {"permute_dims": 1}),
        ([1, 0, 2], (4, 2, 3, 5), {"reshape": 2, "permute_dims": 1}),
        ([0, 2, 1], (3, 2, 5, 4), {"reshape": 2, "permute_dims": 1}),
    ],
    ids=["last axes", "merged axis moves", "split otherwise"],
)
def test_permutation_between_reshapes(axes: list[int], result: tuple[int, ...], want: dict[str, int]) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.permute_dims(b.emit(relax.op.reshape(x, (6, 4, 5))), axes))
        return b.emit(relax.op.reshape(y, result))

    assert same_numbers(module(build, (2, 3, 4, 5)), rand(2, 3, 4, 5)) == want


def test_permutations_merge() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit(relax.op.permute_dims(b.emit(relax.op.permute_dims(x, [2, 0, 1])), [2, 0, 1]))

    mod = module(build, (2, 3, 4))
    assert same_numbers(mod, rand(2, 3, 4)) == {"permute_dims": 1}
    back = module(lambda b, x: b.emit(relax.op.permute_dims(b.emit(relax.op.permute_dims(x)))), (2, 3, 4))
    assert same_numbers(back, rand(2, 3, 4)) == {}


def test_dropout() -> None:
    assert check(onnx_model([node("Dropout", ["x"], ["d"]), node("Relu", ["d"], ["y"])], X)) == {"nn.relu": 1}


# ---- products whose batch axes were merged ------------------------------------------------------------


def test_a_product_whose_batches_are_merged_for_it() -> None:
    """PyTorch's bmm has one batch axis, so torch.export writes views around it, and copies of weights."""
    batch, rows = tvm.tirx.Var("b", "int64"), tvm.tirx.Var("n", "int64")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 2, rows, 4), "float32"))
    w = relax.Var("w", relax.TensorType((4, 5), "float32"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            turned = bb.emit(relax.op.permute_dims(x, [0, 1, 3, 2]))
            flat = [
                bb.emit(relax.op.reshape(x, (batch * 2, rows, 4))),
                bb.emit(relax.op.reshape(turned, (batch * 2, 4, rows))),
            ]
            scores = bb.emit(relax.op.reshape(bb.emit(relax.op.matmul(*flat)), (batch, 2, rows, rows)))
            mixed = bb.emit(relax.op.matmul(scores, x))
            wide = bb.emit(relax.op.broadcast_to(w, (batch, 2, 4, 5)))
            result = bb.emit_output(relax.op.matmul(mixed, wide))
        bb.emit_func_output(result)
    assert ops(prepared(bb.get())) == {"permute_dims": 1, "matmul": 3}


@pytest.mark.parametrize("largest", [1, np.inf])
def test_one_hot_by_a_table_is_its_rows(largest: float) -> None:
    """Numbers that are out of range mark nothing; and an infinity times 0 would be a NaN."""
    nodes = [
        node("Equal", ["x", "places"], ["marked"]),
        node("Cast", ["marked"], ["hot"], to=TensorProto.FLOAT),
        node("MatMul", ["hot", "table"], ["y"]),
    ]
    table = rand(7, 5)
    table[3, 2] *= largest
    places = np.arange(7, dtype="int32").reshape(1, 7)
    model = onnx_model(nodes, {"x": ("n", 1)}, {"places": places, "table": table}, dtypes={"x": TensorProto.INT32})
    got = check(model, inputs={"x": np.array([[0], [6], [7], [-1], [100]], "int32")})
    assert got.keys() >= ({"take"} if largest == 1 else {"matmul"})


# ---- PyTorch's bmm, whose operands have one batch axis ----------------------------------------------


@pytest.mark.parametrize(
    ("heads", "views"),
    [((1, 4), {}), ((1, 2, 2), {"reshape": 2}), ((2, 2), {"reshape": 3})],
    ids=["apart", "heads that were repeated", "neither is apart"],
)
def test_batches_are_apart(heads: tuple[int, ...], views: dict[str, int]) -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        scores = x if heads == (2, 2) else b.emit(relax.op.reshape(x, (1, 4, 3, 3)))
        shares = b.emit(relax.op.reshape(b.emit(relax.op.nn.softmax(scores)), (4, 3, 3)))
        values = b.emit(relax.op.reshape(x, (4, 3, 3)))
        return b.emit(relax.op.reshape(b.emit(relax.op.matmul(shares, values)), (1, 4, 3, 3)))

    got = same_numbers(module(build, (*heads, 3, 3)), rand(*heads, 3, 3))
    assert got == {"matmul": 1, "nn.softmax": 1, **views}
