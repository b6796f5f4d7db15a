"""One question to a backend: a small function and the arrays it is called with; and the choice of some out of many."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...ir.relax_utils import make_constant, module_of

#: ``function(builder, *operands)`` returns an expression, or a tuple of them
Function = Callable[..., Any]


def lifted(call: Callable[..., Any]) -> Function:
    """A function of operands as a `Function`."""
    return lambda builder, *operands: call(*operands)


@dataclass(frozen=True, eq=False)
class Case:
    """One function of one or a few operator calls."""

    #: the Relax operator, or the pattern, that it is about
    subject: str
    #: what is special about it
    what: str
    #: ``function(builder, *operands)``
    function: Function
    #: values of the operands
    arrays: tuple[np.ndarray, ...]
    #: operands that are constants of the function instead of parameters
    constants: tuple[int, ...] = ()
    #: the leading dimension of the first operand is a symbol, and so are those of its size in the others
    symbolic: bool = False
    #: computes what is right, like ``function``, where TVM cannot compile that
    by: Function | None = None
    #: the subject is a pattern, which has to match here
    must_match: bool = False
    #: calls follow on calls, so that rounding errors grow
    is_chain: bool = False
    #: makes ``asked``, the function in the layout that a backend wants, of ``main``
    form: Callable[[relax.Function], relax.Function] | None = None

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.subject}: {self.what}"

    @property
    def inputs(self) -> list[np.ndarray]:
        """Arguments of the function."""
        return [a for i, a in enumerate(self.arrays) if i not in self.constants]

    @functools.cached_property
    def main(self) -> relax.Function | None:
        """The function, ``None`` where Relax does not accept it."""
        return self._built(self.function)

    @functools.cached_property
    def asked(self) -> relax.Function:
        """The function about whose calls the backend is asked."""
        assert self.main is not None
        return self.main if self.form is None else self.form(self.main)

    @functools.cached_property
    def reference(self) -> relax.Function | None:
        """The module with which TVM computes the right results."""
        return self._built(self.by) if self.by is not None else self.main

    def of_dtype(self, dtype: str) -> Case:
        """The same with another dtype of the first operand that is no condition, and of those like it."""
        like = next((a.dtype for a in self.arrays if a.dtype != "bool"), self.arrays[0].dtype)
        return replace(self, arrays=tuple(a.astype(dtype) if a.dtype == like else a for a in self.arrays))

    def widened(self) -> Case | None:
        """The same values in float32, for a case in a shorter type."""
        if not any(a.dtype == "float16" for a in self.arrays):
            return None
        arrays = tuple(a.astype("float32") if a.dtype == "float16" else a for a in self.arrays)
        return replace(self, arrays=arrays)

    def _built(self, function: Function) -> relax.Function | None:
        accepted, operands = True, [self._operand(i) for i in range(len(self.arrays))]

        def body(builder: relax.BlockBuilder) -> Any:
            nonlocal accepted
            try:
                made = function(builder, *operands)
                return builder.normalize(relax.Tuple(list(made)) if isinstance(made, tuple) else made)
            except Exception:  # Relax has no such call: the variation does not apply
                accepted = False
                return relax.const(0)  # the function is ended all the same: TVM warns of builders that were left open

        main = module_of([o for i, o in enumerate(operands) if i not in self.constants], body)["main"]
        return main if accepted else None

    def _operand(self, index: int) -> relax.Expr:
        array = self.arrays[index]
        if index in self.constants:
            return make_constant(array)
        shape: list[Any] = list(array.shape)
        if self.symbolic and _leading(array) == _leading(self.arrays[0]):
            shape[0] = self._symbol
        return relax.Var(f"x{index}", relax.TensorType(shape, str(array.dtype)))

    @functools.cached_property
    def _symbol(self) -> Any:
        return tvm.tirx.Var("n", "int64")


def _leading(array: np.ndarray) -> int | None:
    return array.shape[0] if array.ndim else None


def resized(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Values of ``array`` in another shape."""
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def drawn(cases: Sequence[Case], share: float, draw: random.Random) -> list[Case]:
    """About ``share`` of the cases in their order, the first of each subject among them."""
    found = []
    for _, group in groupby(cases, key=lambda case: case.subject):
        first, *others = group
        kept = set(draw.sample(range(len(others)), round(len(others) * share)))
        found += [first, *(case for i, case in enumerate(others) if i in kept)]
    return found


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """``count`` of the cases, from all over; all, where there are fewer."""
    if len(cases) <= count:
        return list(cases)
    return [cases[i * len(cases) // count] for i in range(count)]
