"""Arithmetic and memory traffic of a call, estimated from its types, and the policies that decide by them.

Products (convolution, matmul, attention) are exact, two operations per multiply-accumulate; everything else is
counted per element. A symbolic dim counts as the size that the model is optimised for, or as 1 where none was given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType
from typing import Any

import tvm
from tvm import relax

from ..core.errors import InputError, names_of
from ..core.tvm_fast import is_a, items
from ..core.verdict import Reject
from ..ir.relax_utils import USUAL_SIZES_ATTR, shape_dims, static_shape
from ..ir.tvm_compat import dtype_of
from . import evaluate
from .builder import GraphBuilder

#: no usual sizes
_NONE: Mapping[str, int] = MappingProxyType({})


def usual_sizes(mod: tvm.IRModule) -> dict[str, int]:
    found: dict[str, int] = {}
    for func in mod.functions.values():
        sizes = func.attrs.get(USUAL_SIZES_ATTR) if func.attrs is not None else None
        found.update({str(k): int(v) for k, v in (sizes or {}).items()})
    return found


def size_of(dim: Any, sizes: Mapping[str, int] = _NONE) -> int:
    if isinstance(dim, int):
        return dim
    try:
        return max(evaluate(GraphBuilder("cost").dim(dim), defaultdict(lambda: 1, sizes)), 0)
    except (Reject, ZeroDivisionError):
        return 1


def shape_of(ty: Any, sizes: Mapping[str, int] = _NONE) -> tuple[int, ...] | None:
    """Shape of a tensor type with the usual size of every symbol, ``None`` where only the rank is known."""
    if not is_a(ty, relax.TensorType):
        return None
    static = static_shape(ty)
    dims = shape_dims(ty) if static is None else None
    return static if dims is None else tuple(size_of(d, sizes) for d in dims)


def _elements(ty: Any, sizes: Mapping[str, int]) -> int:
    shape = shape_of(ty, sizes)
    if shape is not None:
        return math.prod(shape)
    return sum(_elements(f, sizes) for f in ty.fields) if is_a(ty, relax.TupleType) else 0


def type_bytes(ty: Any, sizes: Mapping[str, int] = _NONE) -> int:
    """Bytes of a tensor, or of all tensors of a tuple; 0 for other values and for unknown shapes."""
    shape = shape_of(ty, sizes)
    if shape is not None:
        dtype = dtype_of(ty)
        bits = tvm.DataType(dtype).bits if dtype not in ("", "bool") else 8
        return (math.prod(shape) * bits + 7) // 8
    return sum(type_bytes(f, sizes) for f in ty.fields) if is_a(ty, relax.TupleType) else 0


def call_bytes(call: Any, sizes: Mapping[str, int] = _NONE) -> int:
    return sum(type_bytes(a.ty, sizes) for a in items(call.args)) + type_bytes(call.ty, sizes)


_Rule = Callable[[Any, Mapping[str, int]], int]


def _convolution(call: Any, sizes: Mapping[str, int]) -> int:
    weights = shape_of(call.args[1].ty, sizes)
    out_channels = weights[str(call.attrs.kernel_layout).index("O")] if weights else 0
    return 2 * _elements(call.ty, sizes) * math.prod(weights) // out_channels if weights and out_channels else 0


def _transposed_convolution(call: Any, sizes: Mapping[str, int]) -> int:
    weights = shape_of(call.args[1].ty, sizes)
    in_channels = weights[str(call.attrs.kernel_layout).index("I")] if weights else 0
    return 2 * _elements(call.args[0].ty, sizes) * math.prod(weights) // in_channels if weights and in_channels else 0


def _matmul(call: Any, sizes: Mapping[str, int]) -> int:
    a = shape_of(call.args[0].ty, sizes)
    return 2 * _elements(call.ty, sizes) * a[-1] if a else 0


def _einsum(call: Any, sizes: Mapping[str, int]) -> int:
    """One multiply-accumulate per operand but the first, for each value of all labels."""
    operands = [shape_of(t, sizes) for t in call.args[0].ty.fields]
    labels = str(call.attrs.subscripts).replace(" ", "").partition("->")[0].split(",")
    extents: dict[str, int] = {}
    for names, shape in zip(labels, operands, strict=False):
        if shape is None or "." in names or len(names) != len(shape):
            return _elements(call.ty, sizes)
        extents.update(zip(names, shape, strict=True))
    return 2 * max(len(operands) - 1, 1) * math.prod(extents.values())


def _attention(call: Any, sizes: Mapping[str, int]) -> int:
    """Query · keyᵀ, softmax, · value, for ``batch, sequence, heads, width`` operands."""
    q, k, v = (shape_of(a.ty, sizes) for a in call.args[:3])
    if not (q and k and v) or not len(q) == len(k) == len(v) == 4:
        return 0
    scores = q[0] * q[2] * q[1] * k[1]
    return scores * (2 * q[3] + _SOFTMAX + 2 * v[3])


def _recurrent(call: Any, sizes: Mapping[str, int]) -> int:
    """Each weight multiplies a number in each step of each sequence."""
    source = shape_of(call.args[0].ty, sizes)
    return 2 * source[0] * source[1] * sum(_elements(a.ty, sizes) for a in call.args[1:3]) if source else 0


def _of_inputs(call: Any, sizes: Mapping[str, int]) -> int:
    return _elements(call.args[0].ty, sizes)


def _of_outputs(each: int) -> _Rule:
    return lambda call, sizes: each * _elements(call.ty, sizes)


_SOFTMAX = 5  # maximum, difference, exponential, sum, quotient


def _rows(rule: _Rule, *ops: str) -> dict[str, _Rule]:
    """Rows of the table for ops named without ``relax.``, several to a string; ``*`` stands for 1, 2 and 3."""
    names = [name for names in ops for name in names.split()]
    return {f"relax.{name.replace('*', d)}": rule for name in names for d in "123"}


#: They only say how to read existing data, or where no computation is needed.
_VIEWS = (
    "reshape flatten squeeze expand_dims nn.batch_flatten memory.view memory.ensure_zero_offset shape_of "
    "tensor_to_shape shape_to_tensor hint_on_device to_vdevice wrap_param builtin.stop_lift_params "
    "grad.start_checkpoint grad.end_checkpoint grad.no_grad nn.dropout null_value"
)
#: They move data and compute nothing.
_COPIES = (
    "permute_dims broadcast_to concat split stack strided_slice dynamic_strided_slice slice_scatter take gather_nd "
    "gather_elements scatter_nd scatter_elements index_put index_tensor repeat tile flip reverse_sequence tril triu "
    "layout_transform nn.pad nn.pixel_shuffle full full_like ones ones_like zeros zeros_like eye eye_like arange "
    "one_hot where meshgrid size"
)

#: One or two operations per element that is read: memory limits them, and fusion makes them free.
_CHEAP = (
    "abs add astype ceil clip divide equal floor greater greater_equal less less_equal logical_and logical_not "
    "logical_or maximum minimum multiply negative nn.batch_norm nn.leakyrelu nn.prelu nn.relu not_equal round rsqrt "
    "sign sqrt square subtract ewise_fma max mean min prod sum"
)

#: relax operator → rule; any other is counted once per element of its output
_FLOPS: dict[str, _Rule] = {
    **_rows(_of_outputs(0), _VIEWS, _COPIES),
    **_rows(_convolution, "nn.conv*d"),
    **_rows(_transposed_convolution, "nn.conv*d_transpose"),
    **_rows(_matmul, "matmul"),
    **_rows(_einsum, "einsum"),
    **_rows(_attention, "nn.attention nn.attention_bias"),
    "byoc.loop": _of_outputs(0),  # the function of its rounds is counted
    **dict.fromkeys(("onnx.LSTM", "onnx.GRU", "onnx.RNN"), _recurrent),
    **_rows(
        lambda call, sizes: _elements(call.ty, sizes) * math.prod(int(k) for k in call.attrs.pool_size),
        "nn.max_pool*d nn.avg_pool*d",
    ),
    **_rows(_of_inputs, "nn.adaptive_avg_pool*d sum mean max min prod argmax argmin cumsum cumprod median"),
    **_rows(lambda call, sizes: (dtype_of(call.args[0].ty) != dtype_of(call.ty)) * _elements(call.ty, sizes), "astype"),
    **_rows(_of_outputs(_SOFTMAX), "nn.softmax nn.log_softmax"),
    **_rows(_of_outputs(2), "nn.batch_norm quantize dequantize"),
    **_rows(_of_outputs(8), "nn.layer_norm nn.group_norm nn.instance_norm nn.rms_norm"),
    **_rows(lambda call, sizes: 4 * _of_inputs(call, sizes), "variance std"),
}


_NEXT_TO_NOTHING = frozenset(f"{_VIEWS} {_COPIES} {_CHEAP}".split()) - {"permute_dims", "layout_transform"}


def call_flops(call: Any, sizes: Mapping[str, int] = _NONE) -> int:
    """Operations of one call of an operator; 0 for views and copies. A ``call_tir`` counts one per element."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    return _FLOPS.get(name, _of_outputs(1))(call, sizes)


def is_cheap(call: Any) -> bool:
    """Whether a call only moves data (in their order: a transposition takes time), or does little with each element."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    return name.removeprefix("relax.") in _NEXT_TO_NOTHING


@dataclass(frozen=True)
class Work:
    """The calls of a region and its neighbours; what is derived from them is computed when a policy asks for it.

    Attributes
    ----------
    calls : sequence of relax.Call
        The calls.
    crossing : sequence of Expr
        The arguments and results.
    neighbours : frozenset of str
        The compilers of the calls that make an argument or read a result, ``"tvm"`` among them.
    is_beside_host : bool
        A call that stays with TVM makes an argument, or reads a result.
    sizes : mapping of str to int
        The sizes of symbols for which the model is optimised; others count as 1.
    """

    calls: Sequence[Any] = ()
    crossing: Sequence[Any] = ()
    neighbours: frozenset[str] = frozenset()
    is_beside_host: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def flops(self) -> int:
        """Operations."""
        return sum(call_flops(call, self.sizes) for call in self.calls)

    @cached_property
    def bytes(self) -> int:
        """Size of the arguments and results."""
        return sum(type_bytes(value.ty, self.sizes) for value in self.crossing)

    @cached_property
    def ops(self) -> Sequence[str]:
        """Operators, each once."""
        return list(dict.fromkeys(call.op.name for call in self.calls))

    @cached_property
    def is_cheap(self) -> bool:
        """Whether it has only copies and cheap elementwise calls."""
        return all(map(is_cheap, self.calls))


@dataclass(frozen=True)
class RegionPolicy:
    """Decides which calls are worth a region. The plain ``RegionPolicy()`` takes all that a compiler accepts.

    A region has a cost: a call, reading its arguments and writing its results, perhaps changes of their layout, and TVM
    can no longer fuse its calls with their neighbours. A single addition between two calls of TVM is not worth that.

    Parameters
    ----------
    min_flops : int
        Regions with fewer operations stay with TVM.
    min_intensity : float
        Regions with fewer operations per byte of their arguments and results stay with TVM.
    cheap_beside_host : bool
        Whether regions of only copies, additions, comparisons and the like are formed beside calls that stay
        with TVM, which would fuse them.
    exclude : sequence of str
        Calls that are not offloaded: operators (``"relax.nn.softmax"``), names of variables that hold results, or names
        of patterns (``"vendor.pattern"``); ``*`` and ``?`` match as in a shell.
    force : sequence of str
        Calls, named in the same way, whose region is offloaded whatever it is worth. A compiler must still accept them.
    max_regions : int, optional
        At most so many regions in the module: those with the most operations. In a namespace's own policy, at most so
        many of its own.
    on_top : bool
        Whether the namespaces' own policies hold too, as ``RegionPolicy(exclude=[...], on_top=True)`` excludes and
        changes nothing else; otherwise this policy stands in their place.
    """

    min_flops: int = 0
    min_intensity: float = 0.0
    cheap_beside_host: bool = True
    exclude: Sequence[str] = ()
    force: Sequence[str] = ()
    max_regions: int | None = None
    on_top: bool = False

    def __post_init__(self) -> None:
        for name in ("exclude", "force"):
            names_of(name, getattr(self, name))
        if self.max_regions is not None and (not isinstance(self.max_regions, int) or self.max_regions < 0):
            raise InputError(f"max_regions is {self.max_regions!r}; expected a number of regions, or None for any")

    def excluded_by(self, names: Sequence[str]) -> str:
        """The entry of ``exclude`` that one of a call's names matches, ``""`` for none."""
        return next((e for e in self.exclude if any(fnmatchcase(n, e) for n in names)), "")

    def forces(self, names: Sequence[str]) -> bool:
        """Whether an entry of ``force`` matches one of a call's names."""
        return any(fnmatchcase(n, f) for n in names for f in self.force)

    def why_not(self, work: Work) -> str:
        """The reason why a region is not worth a call, ``""`` when it is."""
        reason = self._too_little(work)
        return f"{', '.join(work.ops)}: {reason}" if reason else ""

    def _too_little(self, work: Work) -> str:
        if not self.cheap_beside_host and work.is_beside_host and work.is_cheap:
            return "nothing but cheap calls beside calls that stay with TVM, which fuses them"
        if self.min_flops and work.flops < self.min_flops:
            return f"{work.flops} operations, fewer than min_flops={self.min_flops}"
        if self.min_intensity and work.flops < self.min_intensity * work.bytes:
            return (
                f"{work.flops} operations on {work.bytes} bytes that cross the region's border, fewer than "
                f"min_intensity={self.min_intensity:g} per byte"
            )
        return ""


def with_names(
    policy: RegionPolicy | None, exclude: Sequence[str] = (), force: Sequence[str] = ()
) -> RegionPolicy | None:
    """The policy, or those of the namespaces, and calls that are excluded and forced besides."""
    if not exclude and not force:
        return policy
    named = RegionPolicy(exclude=exclude, force=force, on_top=True)
    if policy is None:
        return named
    return replace(policy, exclude=[*policy.exclude, *exclude], force=[*policy.force, *force])
