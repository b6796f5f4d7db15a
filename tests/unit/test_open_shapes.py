"""Models with open sizes: shapes that the graph computes, sizes that must agree, and every size of a call right."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from examples.open_models import decoder, encoder, image_network
from tests.harness import assert_right
from tests.tvm_version import open_cache
from tvm_byoc_dnnl import RegionPolicy, Runner, compile, explain, profile
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import ort_run

from .importing import node, onnx_model, ops, rand

TOLERANCE = 2e-4


def _text(*shape: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    mask = (rng.random(shape) > 0.2).astype("int64")
    if mask.size:
        mask[:, 0] = 1
    return {"input_ids": rng.integers(0, 50, shape), "attention_mask": mask}


def _picture(*sizes: int) -> dict[str, np.ndarray]:
    return {"image": rand(sizes[0], 3, *sizes[1:])}


def _cached(batch: int, length: int, past: int) -> dict[str, np.ndarray]:
    feeds = _text(batch, past + length)
    feeds["input_ids"] = feeds["input_ids"][:, past:]
    feeds["position_ids"] = np.arange(past, past + length)[None].repeat(batch, 0)
    names = [f"past_{layer}_{kind}" for layer in range(2) for kind in ("key", "value")]
    return {**feeds, **{name: rand(batch, 2, past, 8, seed=k) for k, name in enumerate(names)}}


_MODELS = {
    "encoder": lambda: encoder(1, 32, 4, 50, 64),
    "image": lambda: image_network(4, 2),
    "decoder": lambda: decoder(2, 32, 4, 2, 50, 64),
}


@functools.cache
def compiled(name: str) -> tuple[onnx.ModelProto, Runner]:
    model = _MODELS[name]()
    return model, Runner(compile(model))


@pytest.mark.parametrize(
    ("name", "feeds"),
    [
        *(("encoder", _text(*s)) for s in ((1, 1), (2, 13), (3, 64), (0, 5), (2, 0))),
        *(("image", _picture(*s)) for s in ((1, 8, 8), (2, 26, 34), (0, 8, 8), (1, 22, 4))),
        *(
            pytest.param("decoder", _cached(*s), marks=open_cache)
            for s in ((1, 5, 0), (2, 1, 5), (3, 1, 6), (1, 3, 13), (2, 0, 4), (0, 1, 4))
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(str(d) for d in next(iter(v.values())).shape),
)
def test_every_size(name: str, feeds: dict[str, np.ndarray]) -> None:
    model, runner = compiled(name)
    results = runner(**feeds)
    for got, want in zip(results if isinstance(results, list) else [results], ort_run(model, feeds), strict=True):
        assert got.shape == want.shape
        assert_right(got, want, TOLERANCE, least=1.0, elementwise=True)


def test_a_compound_dim_is_said_and_checked() -> None:
    _, runner = compiled("image")
    assert runner.inputs[0].shape == ("batch", 3, "2*h", "2*w")
    assert runner.outputs[0].shape == ("batch", 2, "2*h", "2*w")
    with pytest.raises(InputError, match=r"needs 8 where it has 9: image float32\[batch, 3, 2\*h, 2\*w\] is \[1, 3"):
        runner(rand(1, 3, 9, 8))


def test_a_slice_beyond_the_end_is_refused() -> None:
    """The table of positions has 64 rows; TVM's own slice would read behind them."""
    with pytest.raises(InputError, match="do not fit the model, which needs 65 where it has 64"):
        compiled("encoder")[1](**_text(1, 65))


def test_regions_are_those_of_the_fixed_model() -> None:
    model = encoder(1, 32, 4, 50, 64)
    fixed = explain(model, shapes={"input_ids": (2, 16), "attention_mask": (2, 16)})
    assert len(explain(model).regions) <= len(fixed.regions)


@open_cache
def test_heads_that_share_keys_do_not_split_regions() -> None:
    """Keys are repeated by an `Expand` to an open size; attention reads them where the cache has them."""
    model, runner = compiled("decoder")
    assert len(explain(model).regions) == 1
    assert not runner(**_cached(1, 5, 0))[1].flags.writeable


@pytest.mark.parametrize(
    ("nodes", "constants", "shape", "sizes"),
    [
        pytest.param(
            [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Mul", ["n", "three"], ["m"]),
             node("Concat", ["minus", "m"], ["t"], axis=0), node("Reshape", ["x", "t"], ["y"])],
            {"zero": np.array([0]), "three": np.array([3]), "minus": np.array([-1])}, ("n", 6), [(4, 6), (1, 6)],
            id="reshape-by-product",
        ),
        pytest.param(
            [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["z"]), node("Add", ["x", "z"], ["y"])],
            {}, ("n", "m"), [(2, 3), (0, 7)], id="constant-of-shape",
        ),
        pytest.param(
            [node("Shape", ["x"], ["s"], start=1), node("Div", ["s", "two"], ["half"]),
             node("Slice", ["x", "half", "s", "one"], ["y"])],
            {"two": np.array([2]), "one": np.array([1])}, ("n", "m"), [(2, 8), (3, 7), (1, 1)], id="second-half",
        ),
        pytest.param(
            [node("Slice", ["x", "zero", "four", "zero"], ["y"])],
            {"zero": np.array([0]), "four": np.array([4])}, ("n", 3), [(2, 3), (9, 3), (0, 3)], id="at-most-four",
        ),
        pytest.param(
            [node("Slice", ["x", "minus", "far", "zero"], ["y"])],
            {"zero": np.array([0]), "minus": np.array([-1]), "far": np.array([2**63 - 1])}, ("n", 3), [(1, 3), (5, 3)],
            id="the-last-one",
        ),
        pytest.param(
            [node("Slice", ["x", "minus", "far", "zero"], ["z"]), node("Slice", ["z", "zero", "but", "zero"], ["y"])],
            {"zero": np.array([0]), "minus": np.array([-4]), "far": np.array([2**63 - 1]), "but": np.array([-2])},
            ("n", 3), [(1, 3), (3, 3), (9, 3), (0, 3)], id="the-last-four-but-two",
        ),
        pytest.param(
            [node("Shape", ["x"], ["s"]), node("Equal", ["s", "minus"], ["e"]),
             node("Where", ["e", "ones", "s"], ["t"]),
             node("Expand", ["row", "t"], ["r"]), node("Mul", ["x", "r"], ["y"])],
            {"minus": np.array([-1, -1]), "ones": np.array([1, 1]), "row": np.arange(3, dtype="float32")[None]},
            ("n", 3), [(2, 3), (0, 3)], id="expand-where",
        ),
        pytest.param(
            [node("Shape", ["x"], ["s"], end=1), node("Squeeze", ["s"], ["n"]),
             node("Range", ["zero", "n", "one"], ["r"]), node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
             node("Mul", ["x", "f"], ["y"])],
            {"zero": np.array(0), "one": np.array(1)}, ("n",), [(5,), (1,), (0,)], id="range",
        ),
        pytest.param(
            [node("Resize", ["x", "", "scales"], ["y"], mode="linear")],
            {"scales": np.array([1, 1, 3, 2], "float32")}, ("n", 1, "h", "w"), [(1, 1, 4, 5), (2, 1, 3, 2)],
            id="resize-by-scale",
        ),
        pytest.param(
            [node("Shape", ["x"], ["w"], start=3), node("Neg", ["w"], ["cut"]),
             node("Concat", ["two", "cut", "two", "two", "one"], ["pads"], axis=0), node("Pad", ["x", "pads"], ["z"]),
             node("Conv", ["z", "weight"], ["c"], strides=[4, 4]), node("Shape", ["c"], ["s"]),
             node("ConstantOfShape", ["s"], ["zeros"]), node("Add", ["zeros", "c"], ["y"])],
            {"two": np.array([0, 0]), "one": np.array([0]), "weight": np.ones((1, 1, 3, 1), "float32")},
            (1, 1, "h", "w"), [(1, 1, 12, 5), (1, 1, 9, 2)], id="windows-of-a-difference",
        ),
        pytest.param(
            [node("Split", ["x"], list("abcd"), axis=1, num_outputs=4), node("Concat", list("abcd"), ["z"], axis=1),
             node("Add", ["z", "x"], ["y"])],
            {}, (2, "n"), [(2, 8), (2, 11), (2, 13)], id="parts-of-an-open-axis",
        ),
    ],
)  # fmt: skip
def test_computed_shapes(nodes: Any, constants: Any, shape: Any, sizes: list[tuple[int, ...]]) -> None:
    model = onnx_model(nodes, {"x": shape}, constants, opset=18)
    assert "tensor_to_shape" not in ops(to_relax(model))
    runner = Runner(compile(model))
    for size in sizes:
        x = rand(*size)
        assert_right(runner(x), ort_run(model, {"x": x})[0], 1e-5, least=1.0, elementwise=True)


@pytest.mark.parametrize("compiler", ["dnnl", "ccompiler"])
@pytest.mark.parametrize(
    ("target", "shape", "fit", "unfit"),
    [
        ([1, 12], ("n", 12), [(1, 12)], [(2, 12), (0, 12)]),
        ([-1, 2], ("n", 3), [(0, 3), (4, 3)], [(1, 3), (3, 3)]),
        ([3, -1], ("n", 4), [(3, 4), (6, 4)], [(1, 4), (4, 4)]),
        ([2, 6], ("n", "m", 3), [(2, 2, 3), (4, 1, 3)], [(1, 1, 3)]),
    ],
    ids=str,
)
def test_a_reshape_that_does_not_fit_a_size_is_refused(
    target: list[int], shape: Any, fit: Any, unfit: Any, compiler: str
) -> None:
    nodes = [node("Relu", ["x"], ["r"]), node("Reshape", ["r", "t"], ["y"])]
    model = onnx_model(nodes, {"x": shape}, {"t": np.array(target)})
    runner = Runner(compile(model, compiler))
    for size in fit:
        x = rand(*size)
        np.testing.assert_array_equal(runner(x), ort_run(model, {"x": x})[0])
    for size in unfit:
        with pytest.raises(InputError):
            runner(rand(*size))


def test_two_names_of_one_size() -> None:
    """An exporter that names the same size twice: they are equal in every call, and a call that differs is refused."""
    model = onnx_model([node("Add", ["a", "b"], ["y"])], {"a": ("n", "m"), "b": ("n", "k")})
    runner = Runner(compile(model))
    a, b = rand(2, 3), rand(2, 3, seed=2)
    np.testing.assert_array_equal(runner(a, b), a + b)
    with pytest.raises(InputError, match="the model has both be m: make them equal"):
        runner(a, rand(2, 4))


def test_sizes_of_three_inputs_that_must_be_equal() -> None:
    """The sum stays with TVM, which must know its sizes."""
    model = onnx_model([node("Gemm", ["a", "b", "c"], ["y"])], {"a": ("n", "k"), "b": ("l", "m"), "c": ("p",)})
    a, b, c = rand(2, 3), rand(3, 5, seed=2), rand(5, seed=3)
    np.testing.assert_allclose(Runner(compile(model))(a, b, c), a @ b + c, rtol=1e-5, atol=1e-6)


def test_equal_sizes_beside_one_that_is_a_sum_of_others() -> None:
    """A mask is as long as past and new keys together, which have the same batch under two names."""
    nodes = [node("Concat", ["p", "k"], ["c"], axis=1), node("Add", ["c", "m"], ["y"])]
    model = onnx_model(nodes, {"p": ("a", "past", 3), "k": ("b", "new", 3), "m": ("total", 1)})
    p, k, m = rand(2, 4, 3), rand(2, 1, 3), rand(5, 1)
    np.testing.assert_array_equal(Runner(compile(model))(p, k, m), np.concatenate([p, k], 1) + m)


def test_sizes_that_must_be_equal_do_not_split_regions() -> None:
    """A mask whose length has a name of its own, and one that is compared with this mask only."""
    model = onnx_model(
        [
            node("Concat", ["past", "new"], ["keys"], axis=1),
            node("Softmax", ["mask"], ["shares"]),
            node("Add", ["shares", "other"], ["bias"]),
            node("Tanh", ["bias"], ["bent"]),
            node("Add", ["bent", "keys"], ["y"]),
        ],
        {"mask": ("n", "m"), "other": ("n", "k"), "past": ("n", "p"), "new": ("n", "l")},
    )
    assert len(explain(model).regions) == 1
    runner = Runner(compile(model))
    assert [i.shape for i in runner.inputs] == [("n", "m"), ("n", "k"), ("n", "p"), ("n", "l")]
    for past, new in ((3, 2), (0, 1), (7, 0)):
        feeds = {
            **{name: rand(2, past + new, seed=seed) for seed, name in enumerate(("mask", "other"))},
            "past": rand(2, past),
            "new": rand(2, new, seed=9),
        }
        assert_right(runner(**feeds), ort_run(model, feeds)[0], 1e-5)
    feeds["mask"] = rand(2, 6)
    with pytest.raises(InputError, match=r"which needs \d where it has \d:(.|\n)*mask float32\[n, m\] is \[2, 6\]"):
        runner(**feeds)


@pytest.mark.parametrize("join", [("Add", "x", "up"), ("Add", "up", "x"), ("Concat", "x", "up"), ("Concat", "up", "x")])
def test_a_picture_that_is_halved_and_doubled_meets_itself(join: tuple[str, str, str]) -> None:
    """A U-Net's shortcut needs ``h = h // 2 * 2``; TVM would put the one in the place of the other without end."""
    op, *operands = join
    model = onnx_model(
        [
            node("MaxPool", ["x"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Resize", ["half", "", "scales"], ["up"], mode="nearest"),
            node(op, operands, ["y"], **({"axis": 1} if op == "Concat" else {})),
        ],
        {"x": (1, 3, "h", "w")},
        {"scales": np.array([1, 1, 2, 2], "float32")},
    )
    runner = Runner(compile(model))
    assert runner.outputs[0].shape == (1, 6 if op == "Concat" else 3, "h // 2 * 2", "w // 2 * 2")
    for size in ((4, 6), (2, 2)):
        x = rand(1, 3, *size)
        np.testing.assert_array_equal(runner(x), ort_run(model, {"x": x})[0])
    with pytest.raises(InputError, match="do not fit the model, which needs 4 where it has 5"):
        runner(rand(1, 3, 5, 4))


def test_an_inner_size_is_given_by_the_other_operand() -> None:
    nodes = [
        node("Slice", ["x", "zero", "far", "one", "two"], ["half"]),
        node("Transpose", ["half"], ["turned"], perm=[0, 1]),
        node("Concat", ["turned", "turned"], ["twice"], axis=1),
        node("MatMul", ["twice", "y"], ["z"]),
    ]
    numbers = {"zero": np.array([0]), "far": np.array([2**63 - 1]), "one": np.array([1]), "two": np.array([2])}
    model = onnx_model(nodes, {"x": ("n", "m"), "y": ("m", 5)}, numbers)
    runner = Runner(compile(model))
    feeds = {"x": rand(3, 4), "y": rand(4, 5, seed=2)}
    assert_right(runner(**feeds), ort_run(model, feeds)[0], 1e-5, least=1.0, elementwise=True)


def test_a_size_to_optimise_for_counts_in_reports_and_policies() -> None:
    model = onnx_model([node("MatMul", ["x", "w"], ["y"])], {"x": ("n", 8)}, {"w": rand(8, 4)})
    report = explain(model, shapes={"x": ["N:16", 8]})
    assert (report.totals.flops, report.symbols) == (2 * 16 * 8 * 4, [])
    policy = RegionPolicy(min_flops=1000)
    assert len(explain(model, shapes={"x": ["N:16", 8]}, policy=policy).regions) == 1
    assert not explain(model, policy=policy).regions
    x = rand(3, 8)
    got = Runner(compile(model, shapes={"x": ["N:16", 8]}))(x)
    assert_right(got, ort_run(model, {"x": x})[0], 1e-5, least=1.0, elementwise=True)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": ["N:0", 8]}, "'N:0'; expected a name and a positive number"),
        ({"x": ["N:2", "N:3"]}, "optimises 'N' for 2 and for 3"),
    ],
)
def test_wrong_sizes_to_optimise_for(shapes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_relax(onnx_model([node("Relu", ["x"], ["y"])], {"x": ("n", "m")}), shapes=shapes)


def test_warm_up() -> None:
    """One input gives the sizes of the other, which has the same names."""
    _, runner = compiled("encoder")
    runner.warm_up([{"input_ids": (2, 3)}, {"attention_mask": (1, 7)}])
    with pytest.raises(InputError, match="not fixed"):
        runner.warm_up({})


def test_weights_that_have_the_size_of_a_call() -> None:
    """Each size needs them packed in its own form."""
    batch = tvm.tirx.Var("b", "int64")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 5, 16), "float32"))
    weights = rand(1, 16, 16)
    with bb.function("main", [x]):
        with bb.dataflow():
            wide = bb.emit(relax.op.broadcast_to(relax.const(weights), (batch, 16, 16)))
            result = bb.emit_output(relax.op.matmul(x, wide))
        bb.emit_func_output(result)
    runner = Runner(compile(bb.get(), prepare=False))
    for size in (1, 3, 2, 0):
        feed = rand(size, 5, 16)
        assert_right(runner(feed), feed @ weights, TOLERANCE)


@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "Softmax"])
def test_an_open_axis_of_one_element_is_reduced(operator: str) -> None:
    """oneDNN refuses a reduction over it."""
    attrs = {"axis": 1} if operator == "Softmax" else {"axes": [1], "keepdims": 1}
    model = onnx_model([node(operator, ["x"], ["y"], **attrs)], {"x": ("n", "h", 6)}, opset=17)
    runner = Runner(compile(model))
    for size in ((2, 3, 6), (2, 1, 6), (1, 1, 6)):
        feed = rand(*size)
        (want,) = ort_run(model, {"x": feed})
        assert_right(runner(feed), want, TOLERANCE)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "MatMul"])
def test_an_open_axis_without_elements_is_reduced(operator: str, dtype: str) -> None:
    """The first value of TVM's reductions is set in the first step of a loop, and there is none."""
    is_product, kind = operator == "MatMul", helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    second = {} if is_product else {"axes": np.array([1])}
    shapes = {"x": (2, "n"), "w": ("n", 3)} if is_product else {"x": (2, "n")}
    attrs = {} if is_product else {"keepdims": 0}
    made = node(operator, ["x", "w" if is_product else "axes"], ["y"], **attrs)
    model = onnx_model([made], shapes, second, opset=18, dtypes=dict.fromkeys((*shapes, "y"), kind))
    runner = Runner(compile(model))
    for n in (3, 0):
        feeds = {"x": rand(2, n).astype(dtype), "w": rand(n, 3).astype(dtype)}
        feeds = {name: feeds[name] for name in shapes}
        (want,) = ort_run(model, feeds)
        assert_right(runner(*feeds.values()), want, TOLERANCE)


@pytest.mark.parametrize(
    ("operator", "inputs", "constants", "attrs"),
    [
        ("ScatterND", {"x": rand(4, 5)}, {"at": np.array([[1], [-1]]), "put": rand(2, 5)}, {}),
        ("ScatterND", {"x": rand(4, 5), "put": rand(2, 5)}, {"at": np.array([[1], [-1]])}, {}),
        ("ScatterElements", {"x": rand(4, 2), "put": rand(3, 1)}, {"at": np.array([[1], [-1], [0]])}, {}),
        ("QuantizeLinear", {"x": rand(4, 5)}, {"scale": abs(rand(5)) + 0.1, "zero": np.arange(5, dtype="uint8")}, {}),
        (
            "DequantizeLinear",
            {"x": rand(4, 5).astype("int8")},
            {"scale": abs(rand(4)), "zero": np.arange(4).astype("int8")},
            {"axis": 0},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_an_open_size_that_a_constant_decides(operator: str, inputs: Any, constants: Any, attrs: Any) -> None:
    """TVM's operators refuse sizes that are not proved to be equal; the call checks them."""
    names = ["x", "at", "put"] if operator.startswith("Scatter") else ["x", "scale", "zero"]
    shapes = {name: [f"{name}_{axis}" for axis in range(array.ndim)] for name, array in inputs.items()}
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in inputs.items()}
    kind = TensorProto.UINT8 if operator == "QuantizeLinear" else TensorProto.FLOAT
    made = onnx_model([node(operator, names, ["y"], **attrs)], shapes, constants, opset=18, dtypes={**kinds, "y": kind})
    runner = Runner(compile(made))
    assert_right(runner(*inputs.values()), ort_run(made, inputs)[0], TOLERANCE)
    *right, last = inputs.values()
    with pytest.raises(InputError):
        runner(*right, np.concatenate([last] * 2, 0 if operator == "DequantizeLinear" else -1))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "Conv"])
def test_equal_sizes_of_a_window_that_moves_by_one_need_no_known_size(operator: str, mode: str) -> None:
    inputs, constants = (["x", "w"], {"w": rand(3, 3, 2, 2)}) if operator == "Conv" else (["x"], {})
    nodes = [node(operator, inputs, ["y"], auto_pad=mode, kernel_shape=[2, 2])]
    model = onnx_model(nodes, {"x": ("n", 3, "h", "w")}, constants)
    runner = Runner(compile(model))
    for size in ((1, 3, 5, 4), (2, 3, 1, 7)):
        feed = rand(*size)
        (want,) = ort_run(model, {"x": feed})
        assert_right(runner(feed), want, TOLERANCE)


def test_equal_calls_of_different_sizes_keep_their_sizes() -> None:
    """Both additions are calls of one composite function, whose symbol is another size in each."""
    nodes = [
        *(node("Add", ["x", "one"], ["a"]), node("Add", ["z", "one"], ["b"])),
        node("Unsqueeze", ["a", "axis"], ["column"]),
        node("Mul", ["column", "b"], ["y"]),
    ]
    constants = {"one": np.ones(1, "float32"), "axis": np.array([1])}
    runner = Runner(compile(onnx_model(nodes, {"x": ("n",), "z": ("m",)}, constants), policy=RegionPolicy()))
    for n, m in ((4, 4), (3, 5), (5, 3), (1, 2)):
        x, z = rand(n), rand(m)
        assert_right(runner(x, z), np.outer(x + 1, z + 1), TOLERANCE)


def test_a_profile_counts_plans() -> None:
    model = onnx_model([node("MatMul", ["x", "w"], ["y"])], {"x": ("n", 8)}, {"w": rand(8, 4)})
    runner = Runner(compile(model, threads=1))
    runner.warm_up([{"x": (n, 8)} for n in (3, 5, 3)])
    result = profile(runner, [rand(5, 8)], repeat=2, warmup=0)
    (counters,) = result.plans.values()
    assert (counters["made"], counters["plans"], counters["dropped"], counters["hits"]) == (2, 2, 0, 5)
    assert counters["bytes"] > 0
    assert counters["seconds"] > 0
    assert "5 calls of a size seen before; 2 plans made" in result.to_text()
    assert not profile(Runner(compile(model, shapes={"x": (5, 8)})), repeat=1, warmup=0).plans


def test_the_first_call_of_a_batch_runs_the_plans_of_smaller_ones() -> None:
    weights = rand(8, 4)
    runner = Runner(
        compile(onnx_model([node("MatMul", ["x", "w"], ["y"])], {"x": ("n", 8)}, {"w": weights}), threads=1)
    )
    for size in (1, 4, 9, 9, 0):
        feed = rand(size, 8)
        assert_right(runner(feed), feed @ weights, TOLERANCE)
    result = profile(runner, [rand(9, 8)], repeat=1, warmup=0)
    (counters,) = result.plans.values()
    assert (counters["made"], counters["parts"]) == (3, 2)
    assert "2 calls of a new size in parts" in result.to_text()
