"""Constant operands that an operator cannot have: sizes below 0 or beyond memory, steps of 0, axes that there are not.

What is constant here is refused when the model is compiled. What a call gives is checked then (`pipeline.guards`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...core.limits import MOST_ELEMENTS, MOST_EXTENT
from .value import Node

__all__ = ["check_operands"]

#: operators whose attribute axis counts the axes of their first input; of some it may be behind the last
_AXIS = frozenset(
    {
        *("ArgMax", "ArgMin", "Compress", "Concat", "Gather", "GatherElements", "Hardmax", "LogSoftmax"),
        *("LpNormalization", "Scatter", "ScatterElements", "Softmax", "Split", "TopK", "Unique"),
    }
)
_REDUCED = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_AXES = frozenset({"Squeeze", *(f"Reduce{kind}" for kind in _REDUCED)})
_WINDOW = ("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides")


_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
_POOLS = ("AveragePool", "LpPool", "MaxPool", "MaxUnpool")
#: where the weights are among the inputs
_WEIGHTS = {"QLinearConv": 3}
#: attribute → its least value, numbers per spatial axis
_LEAST = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 2)}


def check_operands(node: Node) -> None:
    """Raise an `InputError` that names the node, the operand and what is expected."""
    if node.domain == "":
        for problem in _Operands(node).problems():
            raise node.wrong(problem)


class _Operands:
    """What is known of the operands of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def problems(self) -> Iterator[str]:
        """What is wrong, in words that follow the node's name."""
        kind = self._node.op
        yield from self._wrong_axes(kind)
        if rule := _RULES.get(kind):
            yield from rule(self)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self._node.attrs.get(name, default)

    def constant(self, position: int) -> np.ndarray | None:
        """The numbers of an input that is known, as a vector."""
        value = self._node.input(position)
        numbers = value.known if value is not None and value.is_constant else None
        return None if numbers is None or numbers.dtype.kind not in "iuf" else numbers.reshape(-1)

    def dims(self) -> Sequence[Any] | None:
        """The sizes of the first input."""
        value = self._node.input(0)
        return None if value is None else value.dims

    def _wrong_axes(self, kind: str) -> Iterator[str]:
        if kind not in _AXIS and kind not in _AXES and kind != "CumSum":
            return
        dims = self.dims()
        if dims is None:
            return
        found = [self.attr("axis", 0)] if kind in _AXIS else list(self.attr("axes") or ())
        if (given := self.constant(1)) is not None and (kind in _AXES or kind == "CumSum"):
            found += given.tolist()
        rank = max(len(dims), 1)
        for axis in found:
            if not -rank <= axis < rank:
                yield f"has the axis {axis}; expected {-rank} to {rank - 1}, because its input has {len(dims)} axes"

    # ---- sizes --------------------------------------------------------------------------------------

    def too_many(self, sizes: Iterable[Any]) -> Iterator[str]:
        """Whether a result of these sizes, of which some may be unknown, has too many elements."""
        known = [int(size) for size in sizes if isinstance(size, (int, np.integer))]
        if math.prod(size or 1 for size in known) > MOST_ELEMENTS and 0 not in known:
            yield f"makes a tensor of the sizes {known}; the limit is {MOST_ELEMENTS} elements"

    def sizes(self, position: int, what: str, least: int = 0) -> Iterator[str]:
        """An input that lists the sizes of the result."""
        value = self.constant(position)
        if value is None:
            return
        if (value < least).any():
            yield f"has {what} {value.tolist()}; expected {least} or more"
        yield from self.too_many(value.tolist())

    def tile(self) -> Iterator[str]:
        """Repeats."""
        value, dims = self.constant(1), self.dims()
        if value is None:
            return
        if (value < 0).any():
            yield f"has repeats {value.tolist()}; expected 0 or more"
        own = dims if dims is not None and len(dims) == len(value) else [1] * len(value)
        yield from self.too_many([int(v) * (d if isinstance(d, int) else 1) for v, d in zip(value, own, strict=True)])

    def reshape(self) -> Iterator[str]:
        """A shape, of which one size may be -1."""
        value = self.constant(1)
        if value is None:
            return
        if (value < -1).any() or (value == -1).sum() > 1:
            yield f"has the shape {value.tolist()}; expected sizes of 0 or more, and at most one -1"
        yield from self.too_many(v for v in value.tolist() if v > 0)

    def pad(self) -> Iterator[str]:
        """Widths, which may be below 0."""
        is_input = len(self._node.inputs) > 1
        value = self.constant(1) if is_input else np.array(self.attr("pads", self.attr("paddings", [])))
        dims, axes = self.dims(), self.constant(3)
        if value is None or dims is None or (axes is None and self._node.input(3) is not None):
            return
        along = range(len(dims)) if axes is None else [int(a) % max(len(dims), 1) for a in axes]
        if len(value) != 2 * len(along):
            yield f"has {len(value)} pads; expected {2 * len(along)}"
            return
        out: list[Any] = list(dims)
        for axis, before, after in zip(along, value.tolist(), value.tolist()[len(along) :], strict=False):
            size = out[axis]
            if isinstance(size, int):
                out[axis] = size + before + after
                if min(size + before, size + after, out[axis]) < 0:
                    yield f"has pads {value.tolist()}, which remove more than the {size} elements of axis {axis}"
                elif out[axis] == 0 < size and self.attr("mode", "constant") != "constant":
                    yield f"has pads {value.tolist()}, which leave nothing of axis {axis} to pad with"
        yield from self.too_many(out)

    def resize(self) -> Iterator[str]:
        """Sizes, or factors."""
        last = self._node.op == "Upsample" or len(self._node.inputs) < 3
        factors = self.constant(1 if last else 2)
        if factors is None and self._node.op == "Upsample" and self.attr("scales") is not None:
            factors = np.array(self.attr("scales"))
        if factors is not None and factors.size:
            if not (np.isfinite(factors).all() and (factors > 0).all()):
                yield f"has scales {factors.tolist()}; expected numbers above 0"
                return
            dims = self.dims() or [1] * len(factors)
            yield from self.too_many(
                int((d if isinstance(d, int) else 1) * float(f)) for d, f in zip(dims, factors, strict=False)
            )
        if not last:
            yield from self.sizes(3, "sizes", 1 if self.attr("keep_aspect_ratio_policy", "stretch") != "stretch" else 0)

    def range(self) -> Iterator[str]:
        """Start, limit and step."""
        found = [self.constant(position) for position in range(3)]
        step = found[2]
        if step is not None and step.size == 1 and not (np.isfinite(step).all() and step.all()):
            yield f"has the step {step.item()}; expected a number that is not 0"
            return
        bounds = [f.item() for f in found if f is not None and f.size == 1]
        if not all(math.isfinite(b) for b in bounds):
            yield f"has the bounds {bounds}; expected finite numbers"
        elif len(bounds) == 3:
            yield from self.too_many([max(0, math.ceil((bounds[1] - bounds[0]) / bounds[2]))])

    def one_hot(self) -> Iterator[str]:
        """The depth."""
        depth = self.constant(1)
        if depth is None or depth.size != 1:
            return
        if not depth.item() >= 1:
            yield f"has the depth {depth.item()}; expected 1 or more"
        else:
            yield from self.too_many([int(min(depth.item(), 2.0**62)), *(self.dims() or [])])

    def split(self) -> Iterator[str]:
        """Sizes of the parts."""
        parts = self.constant(1) if len(self._node.inputs) > 1 else None
        value = parts if parts is not None else self.attr("split")
        dims = self.dims()
        if value is None:
            return
        sizes = [int(v) for v in value]
        if any(s < 0 for s in sizes):
            yield f"has split {sizes}; expected sizes of 0 or more"
        size = dims[self.attr("axis", 0)] if dims else None
        if isinstance(size, int) and sum(sizes) != size:
            yield f"has split {sizes}, together {sum(sizes)}; expected the {size} elements of its axis"

    def top(self) -> Iterator[str]:
        """The number of elements that are taken."""
        count = self.constant(1) if len(self._node.inputs) > 1 else np.array([self.attr("k", 0)])
        dims = self.dims()
        if count is None or count.size != 1:
            return
        size = dims[self.attr("axis", -1)] if dims else None
        if count.item() < 0 or (isinstance(size, int) and count.item() > size):
            most = size if isinstance(size, int) else "the number of elements of its axis"
            yield f"takes {count.item()} elements; expected 0 to {most}"

    def slice(self) -> Iterator[str]:
        """Steps."""
        steps = self.constant(4)
        if steps is not None and not steps.all():
            yield f"has steps {steps.tolist()}; expected numbers that are not 0"

    def positive(self, position: int, what: str) -> Iterator[str]:
        """An input that is a number above 0, of elements of something."""
        value = self.constant(position)
        if value is not None and (value < 1).any():
            yield f"has {what} {value.tolist()}; expected 1 or more"
        elif value is not None:
            yield from self.too_many(value.tolist())

    def matrices(self) -> Iterator[str]:
        """Two factors."""
        for position in range(2):
            factor = self._node.needed(position)
            if factor.rank not in (None, 2):
                yield f"has {factor} as its input {position}; expected a matrix"

    def condition(self) -> Iterator[str]:
        """What an If decides by."""
        dtype = self._node.needed(0).dtype
        if dtype not in ("", "bool"):
            yield f"has a condition of type {dtype}; expected bool"

    def window(self) -> Iterator[str]:
        """Attributes of convolutions and poolings."""
        for name in _WINDOW:
            value = self.attr(name) or ()
            if any(abs(v) > MOST_EXTENT for v in value):
                yield f"has {name} {list(value)}; the limit is {MOST_EXTENT}"
        yield from _forbidden(self._node)


_RULES: dict[str, Callable[[_Operands], Iterator[str]]] = {
    "CenterCropPad": lambda o: o.sizes(1, "the shape"),
    "ConstantOfShape": lambda o: o.sizes(0, "the sizes"),
    "DFT": lambda o: o.positive(1, "dft_length"),
    "Expand": lambda o: o.sizes(1, "the shape"),
    "Gemm": _Operands.matrices,
    "If": _Operands.condition,
    "OneHot": _Operands.one_hot,
    "Pad": _Operands.pad,
    "Range": _Operands.range,
    "Reshape": _Operands.reshape,
    "Resize": _Operands.resize,
    "STFT": lambda o: o.positive(1, "frame_step"),
    "Slice": _Operands.slice,
    "Split": _Operands.split,
    "Tile": _Operands.tile,
    "TopK": _Operands.top,
    "Upsample": _Operands.resize,
    **{f"{name}Window": lambda o: o.sizes(0, "the size") for name in ("Blackman", "Hamming", "Hann")},
    **dict.fromkeys((*_CONVOLUTIONS, *_POOLS), _Operands.window),
}


# ---- windows ----------------------------------------------------------------------------------------------


def _forbidden(node: Node) -> Iterator[str]:
    """Windows that the standard forbids."""
    attrs = node.attrs
    kernel = attrs.get("kernel_shape")
    if kernel is None and node.op in _POOLS:
        yield "has no attribute kernel_shape"
        return
    rank = node.needed(0).rank
    spatial = rank - 2 if rank is not None else None if kernel is None else len(kernel)
    for name, (least, per_axis) in _LEAST.items():
        values = attrs.get(name)
        if values is None:
            continue
        if min(values, default=least) < least:
            yield f"has {name} {list(values)}; expected numbers from {least} on"
        if spatial is not None and len(values) != per_axis * spatial:
            yield f"has {name} {list(values)}; expected {per_axis * spatial} numbers for {spatial} spatial axes"
    if kernel is not None and node.op in _POOLS:
        yield from _empty_windows(attrs, kernel)
    elif kernel is not None:
        weights = node.needed(_WEIGHTS.get(node.op, 1)).dims
        wanted = None if weights is None else weights[2:]
        if wanted is not None and any(isinstance(w, int) and w != k for w, k in zip(wanted, kernel, strict=False)):
            yield f"has kernel_shape {list(kernel)}; its weights have {list(wanted)}"


def _empty_windows(attrs: dict[str, Any], kernel: Sequence[int]) -> Iterator[str]:
    if attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return  # pads are not looked at
    pads, dilations = attrs.get("pads", []), attrs.get("dilations", [1] * len(kernel))
    for pad, size, step in zip(pads, [*kernel] * 2, [*dilations] * 2, strict=False):
        if pad >= (size - 1) * step + 1:
            wrong = f"has pads {list(pads)} for windows of {list(kernel)}"
            yield f"{wrong}; expected less, or a window would see padding alone"
