"""A small Relax function as plain data: the test draws it, prints it when it fails, and regression tests keep it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

from tvm_byoc_dnnl.ir.relax_utils import make_constant

__all__ = ["Operand", "Program", "Step", "call"]

#: operators whose tensors are one tuple
_VARIADIC = ("concat", "stack")


@dataclass(frozen=True)
class Operand:
    """A parameter or a constant: shape, dtype, and what its numbers are like."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    #: "grid": multiples of 1/4 up to 2, so that sums and a few products are exact; "positive": the same from 1/4;
    #: a number: all elements are that number
    fill: str | float = "grid"

    def draw(self, seed: int) -> np.ndarray:
        """Its value."""
        if not isinstance(self.fill, str):
            return np.full(self.shape, self.fill, _numpy(self.dtype))
        least = 1 if self.fill == "positive" or self.dtype == "uint8" else -8
        steps = np.random.default_rng(seed).integers(least, 9, self.shape)
        if self.dtype == "bool":
            return steps > 0
        return np.asarray(steps if self.dtype[0] in "iu" else steps / 4, _numpy(self.dtype))


@dataclass(frozen=True)
class Step:
    """A call: operator (a name below ``relax.op``, or ``item``), names of its arguments, attributes."""

    op: str
    args: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Step({self.op!r}, {self.args!r}, {self.attrs!r})"


@dataclass(frozen=True)
class Program:
    """A function: parameters ``x0 …``, constants ``c0 …``, calls whose results are ``v0 …``, and what it returns."""

    params: tuple[Operand, ...]
    consts: tuple[Operand, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    #: the first axis of the parameters that have ``batch`` rows is a symbol
    batch: int | None = None

    @functools.cached_property
    def module(self) -> tvm.IRModule:
        """The function as ``main``."""
        return self.build()

    def build(self, dtype: str = "float32") -> tvm.IRModule:
        """The function, with another dtype in place of float32."""
        n = tirx.Var("n", "int64")
        as_dtype = lambda d: dtype if d == "float32" else d  # noqa: E731
        env: dict[str, Any] = {}
        for i, p in enumerate(self.params):
            shape = [
                n if self.batch is not None and axis == 0 and d == self.batch else d for axis, d in enumerate(p.shape)
            ]
            env[f"x{i}"] = relax.Var(f"x{i}", relax.TensorType(shape, as_dtype(p.dtype)))
        params = list(env.values())
        for i, c in enumerate(self.consts):
            value = c.draw(100 + i)
            env[f"c{i}"] = make_constant(value.astype(_numpy(as_dtype(c.dtype))), as_dtype(c.dtype))
        builder = relax.BlockBuilder()
        with builder.function("main", params):
            with builder.dataflow():
                for i, step in enumerate(self.steps):
                    attrs = {k: as_dtype(v) if isinstance(v, str) else v for k, v in step.attrs.items()}
                    env[f"v{i}"] = builder.emit(call(step.op, [env[a] for a in step.args], attrs))
                results = [env[name] for name in self.outputs]
                result = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(result)
        return builder.get()

    def dtypes(self) -> set[str]:
        """All dtypes that somebody chose."""
        chosen = {str(step.attrs["dtype"]) for step in self.steps if "dtype" in step.attrs}
        return chosen | {operand.dtype for operand in self.params + self.consts}

    def inputs(self) -> list[np.ndarray]:
        """Values of the parameters."""
        return [p.draw(i) for i, p in enumerate(self.params)]

    def __repr__(self) -> str:
        return (
            f"Program(\n    params={self.params!r},\n    consts={self.consts!r},\n    steps=(\n"
            + "".join(f"        {step!r},\n" for step in self.steps)
            + f"    ),\n    outputs={self.outputs!r},\n    batch={self.batch!r},\n)"
        )


def call(op: str, args: list[Any], attrs: dict[str, Any]) -> Any:
    """The Relax expression of a step."""
    if op == "item":
        return relax.TupleGetItem(args[0], attrs["index"])
    function = functools.reduce(getattr, op.split("."), R)
    return function(args, **attrs) if op in _VARIADIC else function(*args, **attrs)


def _numpy(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
