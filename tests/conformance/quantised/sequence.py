"""A model of quantised operators in the making: its nodes, and beside each value what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .bounds import RANGES, Real, Whole, real, stored, widened

__all__ = ["MS", "Reals", "Sequential", "Wholes"]

MS = "com.microsoft"


class Reals:
    """Real numbers: a name in the model, and what they may be."""

    def __init__(self, name: str, bounds: Real) -> None:
        self.name, self.bounds = name, bounds

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.bounds.low.shape


class Wholes:
    """Integers: a name in the model, the names of scale and zero point, and what they may be."""

    def __init__(self, name: str, scaling: tuple[str, str], bounds: Whole) -> None:
        self.name, self.scaling, self.bounds = name, scaling, bounds

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.bounds.low.shape

    @property
    def operands(self) -> list[str]:
        """As a QLinear operator takes them."""
        return [self.name, *self.scaling]


class Sequential:
    """One sequence of operators, drawn by a seed.

    ``powers``: all scales are powers of two, and all real numbers have few bits. Then sums, products and means of two,
    four … elements are exact in every order, and nothing about them is open: halves are halves.

    Attributes
    ----------
    feeds : dict of ndarray
        The inputs' values.
    results : list of Reals or Wholes
        The outputs.
    """

    def __init__(
        self, seed: Sequence[int], prefix: str = "", types: tuple[str, ...] = ("uint8", "int8"), powers: bool = False
    ) -> None:
        self.rng, self.powers = np.random.default_rng(seed), powers
        self.prefix, self._count = prefix, 0
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.results: list[Reals | Wholes] = []
        self.types = types
        self.kept: list[Wholes] = []
        # the standard has conversions of 16 bits from opset 21 on
        self.domain = MS if {"uint16", "int16"} & set(types) else ""

    def pick(self, *choices: Any) -> Any:
        """One of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def fresh(self, hint: str) -> str:
        """A name that nothing has."""
        self._count += 1
        return f"{self.prefix}{hint}{self._count}"

    def constant(self, value: Any) -> str:
        """An initialiser."""
        name = self.fresh("c")
        self.constants[name] = np.asarray(value)
        return name

    def add(self, op: str, inputs: Sequence[str], domain: str = "", **attrs: Any) -> str:
        """A node; the name of its result."""
        name = self.fresh(op)
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, domain=domain, **attrs))
        return name

    def short(self, value: Any, bits: int = 6) -> np.ndarray:
        """Float32 numbers, or those of so many bits behind the point."""
        return np.asarray(np.rint(np.asarray(value) * 2**bits) / 2**bits if self.powers else value, "float32")

    def unit(self, value: Any) -> np.ndarray:
        """A scale, or the power of two next to it."""
        return np.asarray(2.0 ** np.rint(np.log2(value)) if self.powers else value, "float32")

    def open(self, low: np.ndarray, high: np.ndarray, size: float | np.ndarray, count: int = 1) -> Real:
        """The result of a sum whose order is open; ``count``: what it is divided by."""
        is_exact = self.powers and count & (count - 1) == 0
        return Real(low, high, float(np.max(size, initial=1e-30))) if is_exact else widened(low, high, size)

    # ---------------------------------------------------------------- values
    def numbers(self, shape: tuple[int, ...]) -> Reals:
        """An input of real numbers."""
        name = self.fresh("x")
        x = self.short(self.rng.standard_normal(shape) * 2.0)
        self.feeds[name] = x
        exact = x.astype("float64")
        return Reals(name, Real(exact, exact, float(np.abs(x).max(initial=0))))

    def integers(self, shape: tuple[int, ...], constant: bool = False) -> Wholes:
        """An input, or a constant, of integers from end to end of their range."""
        dtype = self.pick(*self.types)
        low, high = RANGES[dtype]
        x = self.rng.integers(low, high + 1, shape).astype(dtype)
        scale, point = self.unit(self.rng.uniform(3, 6) / (high - low)), self.point(dtype)
        name = self.constant(x) if constant else self.fresh("x")
        if not constant:
            self.feeds[name] = x
        exact = x.astype("float64")
        return Wholes(name, self.scaled(scale, point), Whole(exact, exact, dtype, np.asarray(scale), np.asarray(point)))

    def point(self, dtype: str) -> np.ndarray:
        """A zero point: an end of the range, its middle, or any integer."""
        low, high = RANGES[dtype]
        anywhere = int(self.rng.integers(low, high + 1))
        return np.array(self.pick(low, low, (low + high + 1) // 2, 0, high, anywhere, anywhere), dtype)

    def scaled(self, scale: Any, point: Any) -> tuple[str, str]:
        """Constants for a scale and a zero point."""
        return self.constant(np.asarray(scale, "float32")), self.constant(point)

    # ---------------------------------------------------------------- conversions
    def real(self, x: Wholes) -> Reals:
        """Dequantised."""
        attrs = {} if x.bounds.axis is None else {"axis": x.bounds.axis}
        return Reals(self.add("DequantizeLinear", x.operands, self.domain, **attrs), real(x.bounds))

    def scale_for(self, x: Reals, like: Wholes | None = None) -> tuple[np.ndarray, np.ndarray, str]:
        """Scale, zero point and dtype for a result: calibrated, those of ``like``, or too narrow."""
        dtype = like.bounds.dtype if like is not None and self.rng.random() < 0.7 else self.pick(*self.types)
        low, high = RANGES[dtype]
        middle = x.bounds.middle
        least, most = (float(f(middle, initial=0)) for f in (np.min, np.max))
        scale = self.unit(max(most - least, 1e-3) / (high - low) * self.rng.uniform(0.9, 1.1))
        kind = self.pick("calibrated", "relu", "narrow", "narrow", "like", "scale of", "half of", "any point")
        if kind in ("like", "scale of", "half of") and like is not None and like.bounds.axis is None:
            point = like.bounds.point if kind == "like" and dtype == like.bounds.dtype else self.point(dtype)
            factor = self.pick(0.5, 2, 4) if kind == "half of" else 1  # halves that are halves in every arithmetic
            return like.bounds.scale * np.float32(factor), point, dtype
        if kind == "relu":  # the zero point does the work of a relu
            return self.unit(max(most, 1e-3) / (high - low)), np.array(low, dtype), dtype
        if kind == "narrow":
            return self.unit(scale * self.rng.uniform(0.2, 0.7)), self.point(dtype), dtype
        if kind == "any point":
            return scale, self.point(dtype), dtype
        return scale, np.array(np.clip(np.rint(low - least / scale), low, high), dtype), dtype

    def stored(self, x: Reals, like: Wholes | None = None) -> Wholes:
        """Quantised; rarely with a scale and a zero point for each channel."""
        scale, point, dtype = self.scale_for(x, like)
        axis, attrs = None, {}
        if len(x.shape) > 1 and self.rng.random() < 0.05:
            axis, count = 1, x.shape[1]
            scale = self.unit(scale * self.rng.uniform(0.5, 1, count))
            point, attrs = np.array([self.point(dtype) for _ in range(count)], dtype), {"axis": 1}
        scaling = self.scaled(scale, point)
        name = self.add("QuantizeLinear", [x.name, *scaling], self.domain, **attrs)
        return Wholes(name, scaling, stored(x.bounds, scale, point, dtype, axis))

    def give(self, *values: Reals | Wholes) -> None:
        """Results of the model."""
        self.results += values


def model(sequences: Sequence[Sequential], is_open: bool = False) -> onnx.ModelProto:
    """One model of all sequences, side by side; ``is_open``: their inputs of four axes have any number of rows."""
    kinds = {name: TensorProto.DataType.Value(name.upper()) for name in RANGES} | {"float32": TensorProto.FLOAT}
    info = helper.make_tensor_value_info
    inputs, outputs, constants, nodes = [], [], [], []
    for s in sequences:
        for name, x in s.feeds.items():
            rows = [f"{s.prefix}rows"] if is_open and x.ndim == 4 else list(x.shape[:1])
            inputs.append(info(name, kinds[str(x.dtype)], [*rows, *x.shape[1:]]))
        for result in s.results:
            kind = kinds[result.bounds.dtype if isinstance(result, Wholes) else "float32"]
            outputs.append(info(result.name, kind, None if is_open else result.shape))
        constants += [numpy_helper.from_array(value, name) for name, value in s.constants.items()]
        nodes += s.nodes
    graph = helper.make_graph(nodes, "sequences", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
