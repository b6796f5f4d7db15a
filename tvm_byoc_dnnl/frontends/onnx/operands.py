"""Constant operands that an operator cannot have: sizes below 0 or beyond memory, steps of 0, axes that there are not.

What is constant here is refused when the model is compiled. What a call gives is checked then (`pipeline.guards`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
from onnx import defs

from ...core.limits import MOST_ELEMENTS, MOST_EXTENT
from .value import Node

#: operators whose attribute axis counts the axes of their first input; of some it may be behind the last
_AXIS = frozenset(
    {
        *("ArgMax", "ArgMin", "Compress", "Concat", "Gather", "GatherElements", "Hardmax", "LogSoftmax"),
        *("LpNormalization", "Scatter", "ScatterElements", "Softmax", "Split", "SplitToSequence", "TopK", "Unique"),
    }
)
_WINDOW = ("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides")
_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
_POOLS = ("AveragePool", "LpPool", "MaxPool", "MaxUnpool")
#: attribute → its least value, numbers per spatial axis
_LEAST = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 2)}


def check_operands(node: Node) -> None:
    """Raise an `InputError` that names the node, the operand and what is expected."""
    if node.domain == "":
        rule = _RULES.get(node.op)
        for problem in (*_wrong_types(node), *_wrong_axes(node), *(rule(node) if rule is not None else ())):
            raise node.wrong(problem)


_NUMBERS = frozenset({"bool", "float", "int"})


@cache
def _kinds(op: str, opset: int) -> list[frozenset[str]]:
    """The kinds of numbers that this or the newest version takes as each input; none of strings alone."""
    schemas = [defs.get_schema(op, v) for v in (opset, defs.onnx_opset_version()) if defs.has(op, v)]
    allowed = zip_longest(*([set(formal.types) for formal in s.inputs] for s in schemas), fillvalue=set[str]())
    numbers = ({_kind(t[7:-1]) for t in set().union(*types) if t.startswith("tensor(")} for types in allowed)
    return [_NUMBERS.intersection(kinds) for kinds in numbers]


def _kind(dtype: str) -> str:
    """Integers of all widths are one kind, and floats: more of them are taken than ONNX lists."""
    return re.sub(r"^b?float(16|32|64)?$|^double$", "float", re.sub(r"^u?int\d+$", "int", dtype))


def _wrong_types(node: Node) -> Iterator[str]:
    kinds = _kinds(node.op, node.opset)
    for i, x in enumerate(node.inputs if kinds else ()):
        allowed = kinds[min(i, len(kinds) - 1)]
        if x is not None and allowed and _kind(x.dtype) in _NUMBERS - allowed and x.words is None:
            yield f"has {x} as input {i}; expected {' or '.join(sorted(allowed))}"


def _constant(node: Node, position: int) -> np.ndarray | None:
    """The numbers of an input that is known, as a vector."""
    value = node.input(position)
    numbers = value.known if value is not None and value.is_constant else None
    return None if numbers is None or numbers.dtype.kind not in "iuf" else numbers.reshape(-1)


def _dims(node: Node) -> Sequence[Any] | None:
    value = node.input(0)
    return None if value is None else value.dims


def _wrong_axes(node: Node) -> Iterator[str]:
    dims = _dims(node) if node.op in _AXIS else None
    if dims is not None:
        yield from wrong_axes([node.attrs.get("axis", 0)], len(dims))


def wrong_axes(axes: Iterable[int], rank: int, of: str = "its input") -> Iterator[str]:
    for axis in axes:
        if not -rank <= axis < rank:
            expected = f"expected {-rank} to {rank - 1}, because {of} has {rank} axes"
            yield f"has the axis {axis}; {expected if rank else f'{of} is a scalar, which has none'}"


def _too_many(sizes: Iterable[Any]) -> Iterator[str]:
    """Whether a result of these sizes, of which some may be unknown, has too many elements."""
    known = [int(size) for size in sizes if isinstance(size, (int, np.integer))]
    if math.prod(size or 1 for size in known) > MOST_ELEMENTS and 0 not in known:
        yield f"makes a tensor of the sizes {known}; the limit is {MOST_ELEMENTS} elements"


def _sizes(node: Node, position: int, what: str, least: int = 0) -> Iterator[str]:
    """An input that lists the sizes of the result, or is a number of its elements."""
    value = _constant(node, position)
    if value is not None and (value < least).any():
        yield f"has {what} {value.tolist()}; expected {least} or more"
    elif value is not None:
        yield from _too_many(value.tolist())


def _tile(node: Node) -> Iterator[str]:
    value, dims = _constant(node, 1), _dims(node)
    if value is None:
        return
    if (value < 0).any():
        yield f"has repeats {value.tolist()}; expected 0 or more"
    own = dims if dims is not None and len(dims) == len(value) else [1] * len(value)
    yield from _too_many([int(v) * (d if isinstance(d, int) else 1) for v, d in zip(value, own, strict=True)])


def _reshape(node: Node) -> Iterator[str]:
    value = _constant(node, 1)
    if value is None:
        return
    if (value < -1).any() or (value == -1).sum() > 1:
        yield f"has the shape {value.tolist()}; expected sizes of 0 or more, and at most one -1"
    yield from _too_many(v for v in value.tolist() if v > 0)


def _pad(node: Node) -> Iterator[str]:
    """Widths, which may be below 0."""
    value, dims, axes = _constant(node, 1), _dims(node), _constant(node, 3)
    if value is None or dims is None or (axes is None and node.input(3) is not None):
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
            left = size + min(before, 0) + min(after, 0)
            if left < 0:
                yield f"has pads {value.tolist()}, which remove more than the {size} elements of axis {axis}"
            elif left == 0 < min(size, out[axis]) and node.attrs.get("mode", "constant") != "constant":
                yield f"has pads {value.tolist()}, which leave nothing of axis {axis} to pad with"
    yield from _too_many(out)


def _resize(node: Node) -> Iterator[str]:
    last = node.op == "Upsample" or len(node.inputs) < 3
    factors = _constant(node, 1 if last else 2)
    if factors is not None and factors.size:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            yield f"has scales {factors.tolist()}; expected numbers above 0"
            return
        dims = _dims(node) or [1] * len(factors)
        yield from _too_many(
            int((d if isinstance(d, int) else 1) * float(f)) for d, f in zip(dims, factors, strict=False)
        )
    if not last:
        keeps = node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch"
        yield from _sizes(node, 3, "sizes", int(keeps))


def _range(node: Node) -> Iterator[str]:
    found = [_constant(node, position) for position in range(3)]
    step = found[2]
    if step is not None and step.size == 1 and not (np.isfinite(step).all() and step.all()):
        yield f"has the step {step.item()}; expected a number that is not 0"
        return
    bounds = [f.item() for f in found if f is not None and f.size == 1]
    if not all(math.isfinite(b) for b in bounds):
        yield f"has the bounds {bounds}; expected finite numbers"
    elif len(bounds) == 3:
        yield from _too_many([max(0, math.ceil((bounds[1] - bounds[0]) / bounds[2]))])


def _one_hot(node: Node) -> Iterator[str]:
    depth = _constant(node, 1)
    if depth is None or depth.size != 1:
        return
    if not depth.item() >= 1:
        yield f"has the depth {depth.item()}; expected 1 or more"
    else:
        yield from _too_many([int(min(depth.item(), 2.0**62)), *(_dims(node) or [])])


def _top(node: Node) -> Iterator[str]:
    count, dims = _constant(node, 1), _dims(node)
    if count is None or count.size != 1:
        return
    size = dims[node.attrs.get("axis", -1)] if dims else None
    if count.item() < 0 or (isinstance(size, int) and count.item() > size):
        most = size if isinstance(size, int) else "the number of elements of its axis"
        yield f"takes {count.item()} elements; expected 0 to {most}"


def _slice(node: Node) -> Iterator[str]:
    steps = _constant(node, 4)
    if steps is not None and not steps.all():
        yield f"has steps {steps.tolist()}; expected numbers that are not 0"


def _gemm(node: Node) -> Iterator[str]:
    for position in range(2):
        factor = node.needed(position)
        if factor.rank not in (None, 2):
            yield f"has {factor} as its input {position}; expected a matrix"


def _window(node: Node) -> Iterator[str]:
    """Windows of convolutions and poolings that the standard forbids."""
    attrs = node.attrs
    for name in _WINDOW:
        if any(abs(v) > MOST_EXTENT for v in attrs.get(name) or ()):
            yield f"has {name} {list(attrs[name])}; the limit is {MOST_EXTENT}"
    kernel = attrs.get("kernel_shape")
    if kernel is None and node.op in _POOLS:
        yield "has no attribute kernel_shape"
        return
    rank = node.needed(0).rank
    if rank is not None and rank < 3:
        yield f"reads a tensor of {rank} axes; expected 3 or more: a batch, channels and spatial axes"
        return
    spatial = rank - 2 if rank is not None else None if kernel is None else len(kernel)
    for name, (least, per_axis) in _LEAST.items():
        values = attrs.get(name)
        if values is None:
            continue
        if min(values, default=least) < least:
            yield f"has {name} {list(values)}; expected numbers from {least} on"
        if spatial is not None and len(values) != per_axis * spatial:
            yield f"has {name} {list(values)}; expected {per_axis * spatial} numbers for {spatial} spatial axes"
    if kernel is None:
        return
    if node.op in _POOLS:
        if attrs.get("auto_pad", "NOTSET") != "NOTSET":
            return  # pads are not looked at
        pads, dilations = attrs.get("pads", []), attrs.get("dilations", [1] * len(kernel))
        for pad, size, step in zip(pads, [*kernel] * 2, [*dilations] * 2, strict=False):
            if pad >= (size - 1) * step + 1:
                wrong = f"has pads {list(pads)} for windows of {list(kernel)}"
                yield f"{wrong}; expected less, or a window would see padding alone"
        return
    weights = node.needed(3 if node.op == "QLinearConv" else 1).dims
    wanted = None if weights is None else weights[2:]
    if wanted is not None and any(isinstance(w, int) and w != k for w, k in zip(wanted, kernel, strict=False)):
        yield f"has kernel_shape {list(kernel)}; its weights have {list(wanted)}"


#: what is wrong with the nodes of an operator, in words that follow the node's name
_RULES: dict[str, Callable[[Node], Iterator[str]]] = {
    "CenterCropPad": lambda node: _sizes(node, 1, "the shape"),
    "ConstantOfShape": lambda node: _sizes(node, 0, "the sizes"),
    "DFT": lambda node: _sizes(node, 1, "dft_length", 1),
    "Expand": lambda node: _sizes(node, 1, "the shape"),
    "Gemm": _gemm,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "STFT": lambda node: _sizes(node, 1, "frame_step", 1),
    "Slice": _slice,
    "Tile": _tile,
    "TopK": _top,
    "Upsample": _resize,
    **{f"{name}Window": lambda node: _sizes(node, 0, "the size") for name in ("Blackman", "Hamming", "Hann")},
    **dict.fromkeys((*_CONVOLUTIONS, *_POOLS), _window),
}
