"""The state of a function while hypothesis draws it, with the questions that the table of operators asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from tvm import relax

from tvm_byoc_dnnl.ir.relax_utils import shape_dims
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of

from .program import Operand, Program, Step, call

__all__ = ["Draw", "NoFit", "Value"]

#: Most elements of a tensor: the reference is slow, and errors show on small ones.
MOST_ELEMENTS = 4096

#: Sums and products of the "grid" are exact in float32 up to this many multiplications in a row.
EXACT_PRODUCTS = 2

_SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17)


class NoFit(Exception):
    """The operator has nothing to work on here."""


@dataclass(frozen=True)
class Value:
    """What is known of a result. ``products``: multiplications in a row behind it, while it is exact; None when not."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    products: int | None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def is_exact(self) -> bool:
        return self.products is not None and self.products <= EXACT_PRODUCTS


class Draw:
    """Draws choices and collects the function."""

    def __init__(self, draw: Callable[[Any], Any], batch: int | None) -> None:
        self._draw = draw
        self.batch = batch
        self.params: list[Operand] = []
        self.consts: list[Operand] = []
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self._builder = relax.BlockBuilder()

    # ---- choices -----------------------------------------------------------------------------------
    def choice(self, options: Sequence[Any]) -> Any:
        if not options:
            raise NoFit
        return self._draw(st.sampled_from(list(options)))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def often(self, one_in: int = 4) -> bool:
        """True, except one time in so many; False is what shrinking goes for."""
        return self.integer(0, one_in - 1) != 0

    def seldom(self, one_in: int = 6) -> bool:
        return self.integer(0, one_in - 1) == one_in - 1

    def size(self) -> int:
        return 0 if self.seldom(60) else self.choice(_SIZES)

    def shape(self, rank: int) -> tuple[int, ...]:
        """A shape with not too many elements."""
        dims: list[int] = []
        for _ in range(rank):
            count = 1
            for d in dims:
                count *= max(d, 1)
            size = self.size()
            dims.append(size if count * size <= MOST_ELEMENTS // 4 else 1)
        return tuple(dims)

    # ---- operands ----------------------------------------------------------------------------------
    def value(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value there is; the newest most often, so that chains form."""
        found = [v for v in self.values if fits(v)]
        if not found:
            raise NoFit
        return found[-1] if self.often(3) else self.choice(found[::-1])

    def floating(self, rank: int | None = None, least: int = 0, most: int = 5) -> Value:
        return self.value(lambda v: v.is_float and least <= v.rank <= most and rank in (None, v.rank))

    def operand(
        self, shape: tuple[int, ...], dtype: str = "float32", fill: str | float = "grid", constant: bool | None = None
    ) -> Value:
        """A new constant, or sometimes parameter."""
        if constant is None:
            constant = self.often(5)
        store, letter = (self.consts, "c") if constant else (self.params, "x")
        store.append(Operand(shape, dtype, fill))
        value = Value(f"{letter}{len(store) - 1}", shape, dtype, 0)
        self.values.insert(0, value)
        return value

    def broadcasting(self, other: Value) -> Value:
        """Another operand for ``other``: of its shape, of one that broadcasts, or a number."""
        alike = [v for v in self.values if v.dtype == other.dtype and _broadcast(v.shape, other.shape)]
        if alike and self.often(3):
            return self.choice(alike[::-1])
        kind = self.choice(["number", "last", "channel", "full", "mixed", "longer"])
        shape: tuple[int, ...] = other.shape
        if kind == "number" or not other.rank:
            fill = self.choice([1.0, 0.0, 2.0, -1.0, 0.5, 6.0]) if other.is_float else 1.0
            return self.operand(self.choice([(), (1,), (1,) * other.rank]), other.dtype, fill)
        if kind == "last":
            shape = other.shape[-1:]
        elif kind == "channel" and other.rank > 1:
            shape = (1, other.shape[1]) + (1,) * (other.rank - 2)
        elif kind == "mixed":
            shape = tuple(d if self.often(2) else 1 for d in other.shape)
        elif kind == "longer" and other.rank < 5:
            shape = (self.choice([1, 2]), *other.shape)
        return self.operand(shape, other.dtype)

    # ---- results -----------------------------------------------------------------------------------
    def emit(self, op: str, *args: Value, inexact: bool = False, product: bool = False, **attrs: Any) -> Value:
        """Append a call; its (first) result. Tuples are taken apart."""
        variables = [relax.Var(a.name, relax.TensorType(a.shape, a.dtype)) for a in args]
        try:
            result = self._builder.normalize(call(op, variables, attrs)).ty
        except Exception as error:  # what Relax does not know, nobody can be asked to compute
            raise NoFit from error
        step = Step(op, tuple(a.name for a in args), attrs)
        self.steps.append(step)
        name = f"v{len(self.steps) - 1}"
        known = [a.products for a in args]
        products = None if inexact or None in known else max([k for k in known if k is not None], default=0) + product
        if isinstance(result, relax.TupleType):
            return self._take_apart(name, list(result.fields), products)
        self._add(name, result, products)
        return self.values[-1]

    def _take_apart(self, name: str, types: list[Any], products: int | None) -> Value:
        wanted = [i for i in range(len(types)) if self.often(3)] or [0]
        for i in wanted:
            self.steps.append(Step("item", (name,), {"index": i}))
            self._add(f"v{len(self.steps) - 1}", types[i], products)
        return self.values[-1]

    def _add(self, name: str, ty: Any, products: int | None) -> None:
        shape = tuple(int(d) for d in shape_dims(ty))
        count = 1
        for d in shape:
            count *= d
        # Relax computes negative sizes for windows that are larger than their axis, and TVM crashes on those.
        if count > MOST_ELEMENTS * 4 or min(shape, default=0) < 0:
            self.steps.pop()
            raise NoFit
        self.values.append(Value(name, shape, str(dtype_of(ty)), products))

    def program(self, outputs: tuple[str, ...]) -> Program:
        return Program(tuple(self.params), tuple(self.consts), tuple(self.steps), outputs, self.batch)


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(one[::-1], other[::-1]))
