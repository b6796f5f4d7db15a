"""Random numbers in a model: their distribution, their seeds, and that a call gives what the call before gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_byoc_dnnl as byoc

FLOAT = TensorProto.FLOAT


def _run(nodes: list[onnx.NodeProto], outputs: dict[str, int], *feeds: np.ndarray) -> list[np.ndarray]:
    inputs = [
        helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), [f"a{i}", *x.shape[1:]])
        for i, x in enumerate(feeds)
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, results), opset_imports=[helper.make_opsetid("", 22)], ir_version=10
    )
    run = byoc.Runner(byoc.compile(model))
    first, second = run(*feeds), run(*feeds)
    results = [np.array(r) for r in (first if isinstance(first, (list, tuple)) else [first])]
    for a, b in zip(results, second if isinstance(second, (list, tuple)) else [second], strict=True):
        np.testing.assert_array_equal(a, b)
    return results


def _node(op: str, inputs: list[str] = [], output: str = "y", **attrs: Any) -> onnx.NodeProto:  # noqa: B006
    return helper.make_node(op, inputs, [output], name=output, **attrs)


def _is_near(values: np.ndarray, mean: float, deviation: float) -> None:
    """The mean of that many independent numbers is within six of its own standard deviations."""
    assert abs(values.mean() - mean) < 6 * deviation / np.sqrt(values.size)
    assert abs(values.std() - deviation) < 6 * deviation / np.sqrt(values.size)


@pytest.mark.parametrize("dtype", [FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_uniform_numbers(dtype: int) -> None:
    (y,) = _run([_node("RandomUniform", shape=[53, 127], low=-2.0, high=4.0, dtype=dtype)], {"y": dtype})
    assert y.shape == (53, 127)
    assert y.dtype == helper.tensor_dtype_to_np_dtype(dtype)
    assert y.min() >= -2
    assert y.max() <= 4
    _is_near(y.astype("float64"), 1, 6 / np.sqrt(12))
    assert len(np.unique(np.round(y.astype("float64"), 2))) > 300


def test_normal_numbers_like_an_input_of_open_size() -> None:
    (y,) = _run([_node("RandomNormalLike", ["x0"], mean=3.0, scale=0.5)], {"y": FLOAT}, np.zeros((61, 113), "float32"))
    assert y.shape == (61, 113)
    _is_near(y, 3, 0.5)
    third = ((y - 3) / 0.5) ** 3
    assert abs(third.mean()) < 6 * np.sqrt(15 / y.size)  # the variance of a cube is 15
    rows, columns = (
        np.corrcoef(y[:-1].ravel(), y[1:].ravel())[0, 1],
        np.corrcoef(y[:, :-1].ravel(), y[:, 1:].ravel())[0, 1],
    )
    assert max(abs(rows), abs(columns)) < 6 / np.sqrt(y.size - 113)


def test_nodes_differ_and_seeds_agree() -> None:
    nodes = [
        _node("RandomNormal", output="a", shape=[100]),
        _node("RandomNormal", output="b", shape=[100]),
        _node("RandomNormal", output="c", shape=[100], seed=7.0),
        _node("RandomNormal", output="d", shape=[100], seed=7.0),
        _node("RandomNormal", output="e", shape=[100], seed=8.0),
    ]
    a, b, c, d, e = _run(nodes, dict.fromkeys("abcde", FLOAT))
    np.testing.assert_array_equal(c, d)
    for one, other in ((a, b), (a, c), (c, e)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.6


def test_bernoulli_follows_its_probabilities() -> None:
    p = np.broadcast_to(np.array([0, 0.25, 0.5, 1], "float32"), (4001, 4)).copy()
    (y,) = _run([_node("Bernoulli", ["x0"], dtype=TensorProto.INT32)], {"y": TensorProto.INT32}, p)
    assert set(np.unique(y)) == {0, 1}
    assert (y[:, 0] == 0).all()
    assert (y[:, 3] == 1).all()
    for column in (1, 2):
        _is_near(y[:, column].astype("float64"), p[0, column], np.sqrt(p[0, column] * (1 - p[0, column])))


def test_multinomial_follows_its_probabilities() -> None:
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-30]])
    (y,) = _run(
        [_node("Multinomial", ["x0"], sample_size=4001, dtype=TensorProto.INT64)],
        {"y": TensorProto.INT64},
        np.log(p).astype("float32"),
    )
    assert y.shape == (2, 4001)
    for row in range(2):
        shares = np.bincount(y[row], minlength=3) / 4001
        assert (abs(shares - p[row]) <= 6 * np.sqrt(p[row] * (1 - p[row]) / 4001)).all()
