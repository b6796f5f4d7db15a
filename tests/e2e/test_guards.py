"""Values of a call that would read foreign memory or end the process: each has a result or one error of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl.core.errors import InputError, InputIndexError, InputValueError, UnsupportedError
from tvm_byoc_dnnl.core.limits import MOST_ELEMENTS, MOST_PIXELS

pytestmark = pytest.mark.native
op = relax.op
SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")


def _runner(function: Callable[..., Any], *params: tuple[str, Any, str], compiler: Any = None) -> byoc.Runner:
    """A Relax function of parameters of a name, a shape and a dtype."""
    variables = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape, dtype in params]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(function(*variables)))
        bb.emit_func_output(out)
    return byoc.Runner(byoc.compile(bb.get(), compiler) if compiler else byoc.compile(bb.get()))


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounded towards 0."""
    wide, by = a.astype(object), b.astype(object)
    return (np.sign(wide) * np.sign(by) * (abs(wide) // abs(by))).astype(object)


#: operator → its definition on Python's integers, which have no overflow
DIVISIONS = {
    "divide": (op.divide, _quotient),
    "floor_divide": (op.floor_divide, lambda a, b: a.astype(object) // b.astype(object)),
    "floor_mod": (op.floor_mod, lambda a, b: a.astype(object) % b.astype(object)),
    "mod": (op.mod, lambda a, b: a.astype(object) - b.astype(object) * _quotient(a, b)),
}


def _wrapped(values: np.ndarray, dtype: str) -> np.ndarray:
    bits = np.dtype(dtype).itemsize * 8
    low = int(np.iinfo(dtype).min)
    return np.array([(int(v) - low) % (1 << bits) + low for v in values.reshape(-1)], dtype).reshape(values.shape)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", DIVISIONS)
def test_division_of_integers(name: str, dtype: str) -> None:
    function, definition = DIVISIONS[name]
    info = np.iinfo(dtype)
    a = np.array([info.min, info.min + 1, 0, 1, 7, info.max], dtype).reshape(6, 1)
    others = [1, 2, 3, info.max, *([-1, -2, info.min] if info.min else [])]
    b = np.array(others, dtype)
    run = _runner(function, ("a", (6, 1), dtype), ("b", b.shape, dtype))
    np.testing.assert_array_equal(run(a, b), _wrapped(definition(a, b), dtype))
    for position in (0, len(b) - 1):
        bad = b.copy()
        bad[position] = 0
        with pytest.raises(InputValueError, match=rf"{name}: a divisor is 0: the inputs .*b {dtype}\[{len(b)}\]"):
            run(a, bad)
    np.testing.assert_array_equal(run(a, b), _wrapped(definition(a, b), dtype))


@pytest.mark.parametrize("compiler", [None, "ccompiler"])
@pytest.mark.parametrize("divisor", [3, -1, 0])
@pytest.mark.parametrize("name", DIVISIONS)
def test_division_by_a_constant(name: str, divisor: int, compiler: str | None) -> None:
    function, definition = DIVISIONS[name]
    a = np.array([-(2**31), -7, 0, 5, 2**31 - 1], "int32")
    run = _runner(lambda x: function(x, relax.const(divisor, "int32")), ("a", (5,), "int32"), compiler=compiler)
    if divisor == 0:
        with pytest.raises(InputValueError, match="a divisor is 0"):
            run(a)
        return
    np.testing.assert_array_equal(run(a), _wrapped(definition(a, np.full(5, divisor)), "int32"))


def test_floats_are_divided_by_zero() -> None:
    run = _runner(op.divide, ("a", (2,), "float32"), ("b", (2,), "float32"))
    np.testing.assert_array_equal(run(np.array([1, -1], "f4"), np.zeros(2, "f4")), [np.inf, -np.inf])


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("function", [op.divide, op.mod, op.floor_mod])
def test_floats_that_stay_with_tvm_are_divided_by_a_scalar_zero(function: Any, zero: float) -> None:
    for a in (np.array([1, -2, 0, np.nan, np.inf]), np.array(4.0)):
        run = _runner(lambda x: function(x, relax.const(zero, "float64")), ("a", a.shape, "float64"))
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(run(a), a / zero if function is op.divide else np.full(a.shape, np.nan))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("constant", [False, True])
def test_powers_of_integers(dtype: str, constant: bool) -> None:
    """As NumPy's, with the overflow of integers, and for exponents below 0 what the inverse is rounded to."""
    highest = np.iinfo(dtype).max
    base = np.array([0, 0, 1, -1, -1, 2, 3, -3, 5, highest], dtype)
    exponent = np.array([0, -1, -5, -3, -4, -1, highest, 2, 3, 2], dtype)
    wanted = [1, 0, 1, -1, 1, 0, pow(3, int(highest), 1 << 64), 9, 125, 1]
    constants = {"e": exponent} if constant else {}
    dims = {name: (len(base),) for name in ("x", "e") if name not in constants}
    kinds = dict.fromkeys(("x", "e", "y"), helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    run = byoc.Runner(byoc.compile(onnx_model([node("Pow", ["x", "e"], ["y"])], dims, constants, dtypes=kinds)))
    got = run(base) if constant else run(base, exponent)
    np.testing.assert_array_equal(got, _wrapped(np.array(wanted, object), dtype))


def test_topk_of_more_than_there_is() -> None:
    run = _runner(lambda x: op.topk(x, 4, ret_type="values"), ("x", (2, tvm.tirx.Var("n", "int64")), "float32"))
    x = rand(2, 5)
    np.testing.assert_array_equal(run(x), -np.sort(-x)[:, :4])
    with pytest.raises(InputError, match=r"needs 4 where it has 3: x float32\[2, n\] is \[2, 3\]"):
        run(x[:, :3])
    with pytest.raises(UnsupportedError, match="topk of 4 elements along an axis of 3; take 3 or fewer"):
        _runner(lambda x: op.topk(x, 4, ret_type="values"), ("x", (2, 3), "float32"))


@pytest.mark.parametrize("name", ["roi_align", "roi_pool"])
def test_boxes(name: str) -> None:
    attributes = {"sample_ratio": 0} if name == "roi_align" else {}
    function = getattr(op.vision, name)
    run = _runner(
        lambda x, b: function(x, b, (2, 2), 0.5, **attributes), ("x", (2, 1, 8, 8), "float32"), ("b", (1, 5), "float32")
    )
    x = np.full((2, 1, 8, 8), 3, "f4")
    np.testing.assert_array_equal(run(x, np.array([[1, 2, 2, 8, 8]], "f4")), np.full((1, 1, 2, 2), 3, "f4"))
    for picture in (-1, 2, 1e9, np.nan):
        with pytest.raises(InputIndexError, match=f"{name}: an index is out of range of the pictures"):
            run(x, np.array([[picture, 2, 2, 8, 8]], "f4"))
    for corner in (np.nan, np.inf, -np.inf, 2.0 * MOST_PIXELS + 1, -1e30):
        for at in range(1, 5):
            box = np.array([[1, 2, 2, 8, 8]], "f4")
            box[0, at] = corner
            with pytest.raises(InputValueError, match=f"{name}: a corner of a box is not .* -16384 to 16384"):
                run(x, box)


def _slice_model() -> byoc.Runner:
    kinds = dict.fromkeys(("s", "e", "a", "p"), TensorProto.INT64)
    nodes = [node("Slice", ["x", "s", "e", "a", "p"], ["y"])]
    dims: dict[str, Any] = {"x": ("n", 5), "s": (2,), "e": (2,), "p": (2,)}
    return byoc.Runner(byoc.compile(onnx_model(nodes, dims, {"a": np.array([0, 1])}, dtypes=kinds)))


def test_slices_by_bounds_of_the_call() -> None:
    run, rng = _slice_model(), np.random.default_rng(3)
    ends = [-(2**63), -(2**31), -7, -6, -5, -2, -1, 0, 1, 2, 4, 5, 6, 2**31, 2**63 - 1]
    steps = [-(2**63), -9, -2, -1, 1, 2, 9, 2**63 - 1]
    for rows in (0, 1, 6):
        x = rand(rows, 5)
        for _ in range(100):
            start, stop, step = (rng.choice(values, 2).astype("int64") for values in (ends, ends, steps))
            wanted = x[slice(*map(int, (start[0], stop[0], step[0]))), slice(*map(int, (start[1], stop[1], step[1])))]
            np.testing.assert_array_equal(run(x, start, stop, step), wanted)
    with pytest.raises(InputValueError, match="a step is 0"):
        run(x, np.zeros(2, "int64"), np.ones(2, "int64"), np.array([1, 0]))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([-1, 4], "a size that the model computes is below 0"),
        ([2, -(2**63)], "a size that the model computes is below 0"),
        ([2**32, 2**32], f"more than {MOST_ELEMENTS} elements"),
        ([2**62, 4], f"more than {MOST_ELEMENTS} elements"),
        ([MOST_ELEMENTS + 1, 1], f"more than {MOST_ELEMENTS} elements"),
    ],
)
def test_sizes_that_the_model_computes(sizes: list[int], message: str) -> None:
    """The product of two sizes may be 0 in 64 bits."""
    kinds = {"s": TensorProto.INT64}
    model = onnx_model([node("Tile", ["x", "s"], ["y"])], {"x": (1, 1), "s": (2,)}, dtypes=kinds)
    run = byoc.Runner(byoc.compile(model))
    assert run(rand(1, 1), np.array([2, 3])).shape == (2, 3)
    assert run(rand(1, 1), np.array([0, 7])).shape == (0, 7)
    with pytest.raises(InputValueError, match=message):
        run(rand(1, 1), np.array(sizes))


def test_a_step_of_zero_of_a_range() -> None:
    kinds = dict.fromkeys(("d", "y"), TensorProto.INT64)
    constants = {"s": np.array(0), "e": np.array(5)}
    model = onnx_model([node("Range", ["s", "e", "d"], ["y"])], {"d": ()}, constants, dtypes=kinds)
    run = byoc.Runner(byoc.compile(model))
    np.testing.assert_array_equal(run(np.array(2)), [0, 2, 4])
    with pytest.raises(InputValueError, match="a divisor is 0"):
        run(np.array(0))


def test_branches_do_not_share_memory_that_one_of_them_has() -> None:
    def branch(name: str) -> Any:
        top = node("TopK", ["x", "k"], [f"{name}_values", f"{name}_places"], axis=1)
        return helper.make_graph(
            [top], name, [], [helper.make_tensor_value_info(f"{name}_values", TensorProto.FLOAT, None)]
        )

    nodes = [node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))]
    kinds = {"c": TensorProto.BOOL}
    run = byoc.Runner(byoc.compile(onnx_model(nodes, {"x": (2, 4, 5), "c": ()}, {"k": np.array([2])}, dtypes=kinds)))
    x = rand(2, 4, 5)
    for condition in (True, False, False, True):
        np.testing.assert_array_equal(run(x, np.array(condition)), -np.sort(-x, axis=1)[:, :2])
