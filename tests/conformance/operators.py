"""Nodes, each with the attributes that ONNX's own tests leave at their defaults, and what judges their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INF, NAN = np.inf, np.nan
#: one input: an array that a call gives, a constant of the model, or "" for one that is left out
Input = np.ndarray | tuple[np.ndarray] | str


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes
    ----------
    judge : str or callable
        "onnx": ONNX's reference; "ort": ONNX Runtime, where the reference has no or another opinion than ONNX's text;
        a function of the arrays that returns the results.
    outputs : int
        How many results the node has; names of results that it leaves out are in ``left_out``.
    """

    name: str
    op: str
    inputs: Sequence[Input]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 18
    outputs: int = 1
    judge: str | Callable[..., Any] = "onnx"
    domain: str = ""
    refused: str = ""

    def model(self) -> onnx.ModelProto:
        """The node as a model; inputs that a call gives are x0, x1 …"""
        names: list[str] = []
        tensors, values = [], []
        for i, given in enumerate(self.inputs):
            names.append("" if isinstance(given, str) else f"c{i}" if isinstance(given, tuple) else f"x{i}")
            if isinstance(given, tuple):
                tensors.append(numpy_helper.from_array(np.asarray(given[0]), f"c{i}"))
            elif not isinstance(given, str):
                kind = helper.np_dtype_to_tensor_dtype(given.dtype)
                values.append(helper.make_tensor_value_info(f"x{i}", kind, given.shape))
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, name=self.op, **self.attrs)
        graph = helper.make_graph(
            [node], "one", values, [helper.make_empty_tensor_value_info(o) for o in outputs], tensors
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> list[np.ndarray]:
        """What a call gives."""
        return [given for given in self.inputs if isinstance(given, np.ndarray)]


def f(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def c(value: Any, dtype: str | None = None) -> tuple[np.ndarray]:
    return (np.array(value, dtype),)


def i64(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def reductions() -> Iterator[Case]:
    """Axes that are left out, empty, negative, and reductions of nothing."""
    positive = np.abs(f(2, 3, 4)) + 0.5
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Mean", "Max", "Min", "Prod", "Sum"):
        op, x = f"Reduce{kind}", positive if kind == "LogSum" else -positive
        no_axes = c([], "int64")
        yield Case(f"{op} noop", op, [x, no_axes], {"noop_with_empty_axes": 1}, judge=nothing(kind))
        yield Case(f"{op} noop, axes left out", op, [x], {"noop_with_empty_axes": 1}, judge=nothing(kind))
        yield Case(f"{op} noop, axes", op, [x, c([1])], {"noop_with_empty_axes": 1})
        yield Case(f"{op} empty axes", op, [x, no_axes])
        yield Case(f"{op} axes left out", op, [x, ""], {"keepdims": 0})
        yield Case(f"{op} negative axes", op, [x, c([-1, 0])], {"keepdims": 0})
        yield Case(
            f"{op} 13", op, [x, c([-1])] if kind == "Sum" else [x], {} if kind == "Sum" else {"axes": [-1, 1]}, 13
        )
    for op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2"):
        yield Case(f"{op} of no ints", op, [np.zeros((2, 0), "int32"), c([1])], judge="ort")
    odd = np.array([[-INF, -INF, -INF], [INF, INF, INF], [-INF, 2, INF], [np.finfo("f4").min] * 3], "float32")
    for op in ("ReduceMax", "ReduceMin"):
        for dtype in ("float32", "float64", "float16"):
            with np.errstate(over="ignore"):
                x = odd.astype(dtype)
            yield Case(f"{op} of infinities {dtype}", op, [x, c([1])], opset=18)
            yield Case(f"{op} of infinities {dtype} 13", op, [x], {"axes": [-1], "keepdims": 0}, 13)
        yield Case(f"{op} of infinities 9", op, [odd], {"axes": [1]}, 9)
        yield Case(f"{op} of all", op, [np.full((3, 2), -INF if op == "ReduceMax" else INF, "float32")])
    for op in ("ReduceMean", "ReduceSum", "ReduceMax"):
        yield Case(f"{op} int32", op, [np.array([[1, 2, 4], [-1, -2, -4]], "int32"), c([1])], judge=integers(op))
    yield Case(
        "ReduceMean int32 13",
        "ReduceMean",
        [np.array([[1, 2, 4]], "int32")],
        {"axes": [1]},
        13,
        judge=integers("ReduceMean"),
    )
    yield Case(
        "ReduceMean int64 11",
        "ReduceMean",
        [np.array([[1, 2, -5]], "int64")],
        {"axes": [1]},
        11,
        judge=integers("ReduceMean"),
    )


def nothing(kind: str) -> Callable[..., Any]:
    """What is done to each element where nothing is reduced."""
    each = {"L1": np.abs, "L2": np.abs, "LogSum": np.log, "SumSquare": np.square}.get(kind, np.copy)
    return lambda x, *_: each(x)


def integers(op: str) -> Callable[..., Any]:
    how = {"ReduceMean": lambda x: np.trunc(x.mean(1, keepdims=True)), "ReduceSum": lambda x: x.sum(1, keepdims=True)}
    return lambda x, *_: how.get(op, lambda v: v.max(1, keepdims=True))(x).astype(x.dtype)


def ordering() -> Iterator[Case]:
    """Ties, NaN and infinities."""
    odd = np.array([[1, NAN, INF, 3, NAN], [INF, NAN, 2, -INF, INF], [-INF, 3, 3, -1, 3], [NAN] * 5], "float32")
    for dtype in ("float32", "float64", "float16"):
        x = odd.astype(dtype)
        for op in ("ArgMax", "ArgMin"):
            for last in (0, 1):
                yield Case(f"{op} {dtype} {last}", op, [x], {"axis": -1, "select_last_index": last, "keepdims": 0}, 13)
            yield Case(f"{op} {dtype} 11", op, [x], {"axis": 0}, 11)
            yield Case(f"{op} {dtype} 18", op, [x], {"axis": 1}, 18)
        for largest in (0, 1):
            how = {"axis": 1, "largest": largest}
            yield Case(f"TopK {dtype} {largest}", "TopK", [x, c([4])], how, outputs=2, judge=top(4, largest))
    for dtype, low, high in (
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("int64", -(2**63), 2**63 - 1),
        ("float32", -INF, INF),
    ):
        ends = np.array([[low] * 3, [high] * 3], dtype)  # nothing is beyond the number that TVM begins with
        for op in ("ArgMax", "ArgMin"):
            yield Case(f"{op} {dtype} of the ends", op, [ends], {"axis": 1}, 13)
    yield Case("Hardmax of the ends", "Hardmax", [np.array([[-INF, -INF], [INF, INF], [1, 2]], "float32")], {}, 13)
    yield Case("TopK unsorted", "TopK", [f(3, 7), c([3])], {"sorted": 0}, outputs=2, judge=top(3, 1))
    yield Case(
        "TopK ints", "TopK", [i64(5, 2**60, -3, 2**60 + 1, 5).reshape(1, -1), c([4])], outputs=2, judge=top(4, 1)
    )
    yield Case(
        "TopK int32, smallest",
        "TopK",
        [np.array([[2, 1, 2, 1]], "int32"), c([3])],
        {"largest": 0},
        outputs=2,
        judge=top(3, 0),
    )
    yield Case("TopK 10", "TopK", [odd, c([2])], {"axis": 1}, 10, outputs=2, judge=top(2, 1))
    yield Case("TopK 1", "TopK", [odd], {"axis": 1, "k": 2}, 9, outputs=2, judge=top(2, 1))
    yield Case("TopK axis 0", "TopK", [f(5, 3), c([2])], {"axis": 0}, outputs=2)


def top(k: int, largest: int) -> Callable[..., Any]:
    """NumPy's order, in which a NaN is the largest; of equal elements the first."""

    def judge(x: np.ndarray, *_: Any) -> tuple[np.ndarray, np.ndarray]:
        rank = (
            np.searchsorted(np.unique(x[~np.isnan(x)]), x)
            if x.dtype.kind == "f"
            else np.unique(x, return_inverse=True)[1].reshape(x.shape)
        )
        rank = np.where(np.isnan(x), x.size, rank) if x.dtype.kind == "f" else rank
        places = np.argsort(-rank if largest else rank, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(x, places, 1), places

    return judge


def marked(axis: int) -> Callable[..., Any]:
    """2 everywhere, 5 where a new axis counts to the index."""

    def judge(indices: np.ndarray, depth: np.ndarray, values: np.ndarray) -> np.ndarray:
        count = int(depth[0])
        place = np.where(indices < 0, indices + count, indices)
        marks = np.moveaxis(np.asarray(place[..., None] == np.arange(count)), -1, axis)
        return np.where(marks, values[1], values[0])

    return judge


def indexing() -> Iterator[Case]:
    """Indices that are fewer than the data's elements along other axes, negative ones, batches."""
    rng = np.random.default_rng(3)
    shapes = [
        ((4, 8), (4, 3), 0),
        ((4, 8), (2, 8), 1),
        ((4, 8), (3, 5), 1),
        ((2, 4, 8), (2, 3, 8), 2),
        ((2, 4, 8), (1, 3, 5), 1),
        ((2, 4, 8), (2, 4, 3), -1),
        ((2, 4, 4, 8), (2, 4, 3, 3), 1),
        ((2, 4, 4, 8), (1, 2, 3, 4), 2),
        ((5,), (3,), 0),
    ]
    for data, fewer, axis in shapes:
        places = np.argsort(rng.random(fewer), axis=axis)
        places = np.where(rng.random(fewer) < 0.3, places - data[axis], places)
        name = f"{data} {fewer} {axis}"
        for reduction in ("none", "add", "mul", "min", "max"):
            how = {"axis": axis, **({} if reduction == "none" else {"reduction": reduction})}
            yield Case(
                f"ScatterElements {name} {reduction}", "ScatterElements", [f(*data), places, f(*fewer, seed=2)], how
            )
        yield Case(
            f"ScatterElements 11 {name}",
            "ScatterElements",
            [f(*data), (places,), f(*fewer, seed=2)],
            {"axis": axis},
            11,
        )
        yield Case(f"GatherElements {name}", "GatherElements", [f(*data), places], {"axis": axis}, judge="ort")
    twice = np.array([[1, 1, -1], [0, 0, 0]])
    for reduction in ("add", "mul", "min", "max"):
        how = {"axis": 1, "reduction": reduction}
        yield Case(f"ScatterElements twice {reduction}", "ScatterElements", [f(2, 4), twice, f(2, 3)], how)
        pairs = np.array([[0, 1], [0, 1], [-1, -2]])
        yield Case(f"ScatterND twice {reduction}", "ScatterND", [f(2, 4, 3), pairs, f(3, 3)], {"reduction": reduction})
        rows = np.array([[1], [1], [-2]])
        yield Case(f"ScatterND rows {reduction}", "ScatterND", [f(2, 4, 3), rows, f(3, 4, 3)], {"reduction": reduction})
    yield Case(
        "ScatterND ints",
        "ScatterND",
        [np.arange(6).reshape(2, 3), np.array([[[0, 2]], [[1, -3]]]), np.array([[7], [8]])],
        opset=13,
    )
    for batch, shape in ((0, (3, 2)), (1, (2, 5, 1)), (1, (2, 2)), (2, (2, 3, 1))):
        places = rng.integers(-2, 2, shape)
        yield Case(f"GatherND {batch} {shape}", "GatherND", [f(2, 3, 4), places], {"batch_dims": batch}, 13)
    yield Case("Gather negative", "Gather", [f(4, 5), np.array([[-1, 0], [2, -4]], "int32")], {"axis": 0}, 13)
    for axis in (-1, 0, 1):
        for indices in (np.array([[-1, 1], [7, -9]]), np.array([[0, 2], [1, 4]], "float32")):
            values = np.array([2, 5], "float32")
            how = {"axis": axis}
            name = f"OneHot {axis} {indices.dtype}"
            yield Case(name, "OneHot", [indices, c([4]), values], how, 11, judge=marked(axis))
    yield Case("OneHot ints", "OneHot", [np.array([0, 2], "int32"), c(3), c([0, 1], "int32")], opset=13)
    yield Case("EyeLike", "EyeLike", [f(3, 4)], {"k": 1}, judge=lambda x: np.eye(3, 4, 1, "float32"))
    yield Case("EyeLike dtype", "EyeLike", [np.zeros((3, 2), "int32")], {"k": -1, "dtype": TensorProto.FLOAT})
    yield Case("Compress", "Compress", [f(3, 4), np.array([True, False, True])], {"axis": 0}, 11)
    yield Case("Trilu", "Trilu", [f(2, 3, 4), c(-1)], {"upper": 0}, 14)
    for exclusive, reverse in ((1, 0), (0, 1), (1, 1)):
        yield Case(
            f"CumSum {exclusive}{reverse}", "CumSum", [f(3, 4), c(1)], {"exclusive": exclusive, "reverse": reverse}, 14
        )
    yield Case("Shrink", "Shrink", [f(4, 5)], {"lambd": 0.2, "bias": 0.3}, 9)
    whole = np.arange(-4, 5).astype("int32")
    yield Case("Shrink ints", "Shrink", [whole], {"lambd": 1.5, "bias": 0.3}, 9)
    yield Case("Sign uint8", "Sign", [np.array([0, 1, 200], "uint8")], opset=13)
    for op, opset in (("Celu", 12), ("Elu", 6), ("Selu", 6)):
        yield Case(f"{op} of one number", op, [np.array(-2.5, "float32")], {"alpha": 0.5}, opset)
    yield Case("Elu of a NaN in float64", "Elu", [np.array([NAN, -1.5, 2, INF, -INF])], {"alpha": 0.5}, 6)
    yield Case("GatherElements of constants", "GatherElements", [c(f(2, 6)), c([[1, 0]])], {}, 13, judge="ort")
    yield Case("Sign", "Sign", [np.array([NAN, -0.0, 2, -INF], "float32")], opset=13)
    yield Case(
        "Unique axis", "Unique", [np.array([[1, 2, 1], [3, 0, 3]], "float32")], {"axis": 1, "sorted": 1}, 11, outputs=4
    )
