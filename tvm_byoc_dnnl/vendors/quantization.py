"""What a backend can do with quantised models: patterns that are ready, and the same written for those who quantise.

Small graphs that a pattern matches, quantised groups among them: a vendor registers them with it, and the conformance
kit tests it with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, is_tuple, wildcard

from ..core.errors import InputError
from ..core.verdict import Reject, as_reject
from ..ir.relax_utils import RESHAPES, make_constant, module_of
from .quantised_groups import QuantizedGroup, QuantizedTensor, quantized
from .registry import register_pattern


def pattern_example(
    function: Callable[..., Any], *shapes: Sequence[int], dtype: str | Sequence[str] = "float32"
) -> Callable[[], tvm.IRModule]:
    """Make the argument ``example`` of `register_pattern` from an expression.

    Parameters
    ----------
    function : callable
        ``function(*operands)`` returns a Relax expression, or a tuple of them.
    shapes : sequence of sequence of int
        One per operand.
    dtype : str or sequence of str
        Of all operands, or one per operand.

    Returns
    -------
    callable
        Makes an IRModule of which ``main`` computes the expression.

    Examples
    --------
    >>> pattern_example(lambda a, b, c: R.add(R.multiply(a, b), c), (3, 5), (3, 5), (5,))
    """

    def example() -> tvm.IRModule:
        dtypes = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
        types = [relax.TensorType(list(shape), own) for shape, own in zip(shapes, dtypes, strict=True)]
        operands = [relax.Var(f"x{i}", own) for i, own in enumerate(types)]
        return module_of(operands, lambda _builder: function(*operands))

    return example


_STEP = 0.25  # scales are powers of two: no result lies near a half


def examples(spec: Any) -> dict[str, Callable[[], tvm.IRModule]]:
    """Name of a pattern → what makes its example, for a `Quantization`."""
    dtype, zero = spec.activations[0], 0 if spec.symmetric_activations else 3

    def dq(x: Any, scale: float = _STEP) -> Any:
        return R.dequantize(x, relax.const(np.float32(scale)), _zero(dtype, zero), axis=0, out_dtype="float32")

    def q(x: Any, scale: float = _STEP) -> Any:
        return R.quantize(x, relax.const(np.float32(scale)), _zero(dtype, zero), axis=0, out_dtype=dtype)

    def weights(*shape: int) -> Any:
        return _weights(spec.weights[0], shape, spec.per_channel)

    def group(function: Callable[..., Any], *shapes: Sequence[int]) -> Callable[[], tvm.IRModule]:
        return pattern_example(lambda *given: q(function(*map(dq, given))), *shapes, dtype=dtype)

    bias = make_constant(np.arange(8, dtype="float32").reshape(1, 8, 1, 1))
    found = {
        "conv": group(
            lambda x: R.nn.relu(R.add(R.nn.conv2d(x, weights(8, 6, 3, 3), padding=(1, 1)), bias)), (1, 6, 5, 5)
        ),
        "matmul": group(lambda x: R.matmul(x, R.permute_dims(weights(5, 16))), (1, 16)),
        "add": group(R.add, (1, 6, 5, 5), (1, 6, 5, 5)),
        "pool": group(lambda x: R.nn.max_pool2d(x, (2, 2), (2, 2)), (1, 6, 6, 6)),
        "relu": group(R.nn.relu, (1, 6, 5, 5)),
        "resize": group(lambda x: R.image.resize2d(x, (8, 8), method="nearest_neighbor"), (1, 6, 4, 4)),
        "reshape": group(lambda x: R.reshape(x, (1, 24)), (1, 6, 2, 2)),
    }
    for count in range(2, 9):
        found[f"concat_{count}"] = group(lambda *parts: R.concat(list(parts), axis=1), *[(1, 2, 3, 3)] * count)
    return found


def _zero(dtype: str, value: int) -> Any:
    return make_constant(np.array(value, dtype))


def _weights(dtype: str, shape: Sequence[int], per_channel: bool) -> Any:
    random = np.random.default_rng(0)
    info = np.iinfo(dtype)
    numbers = random.integers(max(info.min + 1, -127), min(info.max, 127) + 1, shape).astype(dtype)
    count = shape[0] if per_channel else 1
    scales = (2.0 ** random.integers(-9, -6, count)).astype("float32")
    zeros = np.zeros(count, dtype)
    given = [make_constant(part if per_channel else part.reshape(())) for part in (scales, zeros)]
    return R.dequantize(make_constant(numbers), *given, axis=0, out_dtype="float32")


#: a concat has at most so many parts
_MOST_PARTS = 8
#: kind of group → operators of ONNX, and of PyTorch (``aten``), that become one
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "conv": (("Conv",), ("conv1d.default", "conv2d.default", "conv3d.default")),
    "matmul": (("MatMul", "Gemm"), ("linear.default", "matmul.default", "bmm.default")),
    "add": (("Add",), ("add.Tensor", "add_.Tensor")),
    "pool": (
        ("MaxPool", "AveragePool", "GlobalAveragePool"),
        ("max_pool2d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default", "mean.dim"),
    ),
    "relu": (("Relu", "Clip"), ("relu.default", "hardtanh.default", "clamp.default")),
    "concat": (("Concat",), ("cat.default",)),
    "resize": (("Resize",), ("upsample_nearest2d.vec", "upsample_bilinear2d.vec")),
    "reshape": (
        ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"),
        ("reshape.default", "view.default", "flatten.using_ints", "permute.default", "transpose.int"),
    ),
}
#: kinds whose second operand is weights
WITH_WEIGHTS = ("conv", "matmul")
_DTYPES = ("int8", "uint8", "int16", "uint16")
_POOLS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d", "relax.mean")
#: what only moves numbers, besides a reshape
_MOVES = ("relax.permute_dims", *(name for name in RESHAPES if name != "relax.reshape"))


@dataclass(frozen=True)
class Quantization:
    """What a backend can take of quantised models; made by `register_quantization`, whose parameters these are."""

    compiler: str
    kinds: tuple[str, ...]
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    symmetric_activations: bool
    symmetric_weights: bool
    per_channel: bool
    shared_scales: tuple[str, ...]
    check: Callable[[QuantizedGroup], bool | Reject] | None = field(default=None, repr=False)

    def why_not(self, kind: str, group: QuantizedGroup) -> Reject | None:
        """What is against a group that a pattern of a kind has matched."""
        output = group.output
        assert output is not None
        data = [t for t in group.inputs if t is not None and t is not group.weights]
        if kind in WITH_WEIGHTS and (group.weights is None and kind == "conv"):
            return Reject("weights are not constant")
        reason = next(filter(None, map(self._why_not_activation, [*data, output])), "") or _why_not_bias(group)
        if not reason and group.weights is not None:
            reason = self._why_not_weights(group, group.weights)
        if not reason and kind in self.shared_scales and not all(output.same_scale(t) for t in data):
            reason = f"the scales of the inputs of a {kind} and of its output differ; {self.compiler} needs one"
        if reason:
            return Reject(reason)
        return None if self.check is None else as_reject(self.check(group), f"the check of {self.compiler!r}")

    def _why_not_activation(self, tensor: QuantizedTensor) -> str:
        if tensor.dtype not in self.activations:
            return f"activations of dtype {tensor.dtype}; {self.compiler} has {', '.join(self.activations)}"
        if tensor.scales is None or tensor.zero_points is None:
            return "a scale or zero point that is not constant"
        if tensor.axis is not None:
            return f"scales along axis {tensor.axis} of activations; {self.compiler} has one for each tensor"
        if self.symmetric_activations and not tensor.is_symmetric:
            return f"zero point {tensor.zero_points} of activations; {self.compiler} has 0"
        return ""

    def _why_not_weights(self, group: QuantizedGroup, weights: QuantizedTensor) -> str:
        if weights.dtype not in self.weights:
            return f"weights of dtype {weights.dtype}; {self.compiler} has {', '.join(self.weights)}"
        if weights.scales is None or weights.zero_points is None:
            return "a scale or zero point of weights that is not constant"
        if self.symmetric_weights and not weights.is_symmetric:
            return f"a zero point of weights that is {weights.zero_points.flat[0]}; {self.compiler} has 0"
        if weights.axis is None:
            return ""
        rank = len(weights.tensor.ty.shape)
        outputs = str(group.call.attrs.kernel_layout).index("O") if "conv" in group.op else rank - 1
        outputs = rank - 2 if group.is_transposed else outputs
        if not self.per_channel:
            return f"scales along axis {weights.axis} of weights; {self.compiler} has one for all"
        return f"scales along axis {weights.axis} of weights; {self.compiler} has {outputs}" * (weights.axis != outputs)

    def onnxruntime(self) -> dict[str, Any]:
        """Arguments for ``onnxruntime.quantization.quantize_static``: ``quantize_static(src, dst, reader, **these)``.

        Raises
        ------
        ModuleNotFoundError
            Without onnxruntime.
        """
        from onnxruntime.quantization import QuantFormat, QuantType

        of_dtype = {name: getattr(QuantType, f"Q{name.replace('i', 'I').replace('u', 'U')}") for name in _DTYPES}
        return {
            "quant_format": QuantFormat.QDQ,
            "activation_type": of_dtype[self.activations[0]],
            "weight_type": of_dtype[self.weights[0]],
            "per_channel": self.per_channel,
            "op_types_to_quantize": sorted({"Relu", "Clip", *(op for kind in self.kinds for op in KINDS[kind][0])}),
            "extra_options": {
                "ActivationSymmetric": self.symmetric_activations,
                "WeightSymmetric": self.symmetric_weights,
                "QuantizeBias": True,
            },
        }

    def torchao(self) -> Any:
        """A quantiser for ``torchao.quantization.pt2e.quantize_pt2e.prepare_pt2e(exported, this)``.

        Raises
        ------
        ModuleNotFoundError
            Without torchao.
        """
        from .torchao_quantiser import BackendQuantiser

        kinds = {name: kind for kind in self.kinds for name in KINDS[kind][1]}
        return BackendQuantiser(self, kinds, WITH_WEIGHTS)


def register_quantization(
    compiler: str,
    kinds: Sequence[str] = tuple(KINDS),
    *,
    activations: str | Sequence[str] = "int8",
    weights: str | Sequence[str] = "int8",
    symmetric_activations: bool = False,
    symmetric_weights: bool = True,
    per_channel: bool = True,
    shared_scales: Sequence[str] = (),
    check: Callable[[QuantizedGroup], bool | Reject] | None = None,
    override: bool = False,
    extend: bool = False,
) -> Quantization:
    """Say which quantised groups a backend takes: registers a pattern ``quantized_<kind>`` for each of them.

    A group is a call between a ``dequantize`` of each operand and a ``quantize`` of its result, with a bias, a relu or
    a clip in between, as QDQ models of ONNX and pt2e models of PyTorch have them.

    Parameters
    ----------
    compiler : str
        The namespace.
    kinds : sequence of str
        Of ``"conv"``, ``"matmul"``, ``"add"``, ``"pool"``, ``"relu"`` (or a clip), ``"concat"`` (up to 8 parts),
        ``"resize"`` and ``"reshape"`` (what only moves numbers); all by default.
    activations, weights : str or sequence of str
        Their dtypes: ``"int8"``, ``"uint8"``, ``"int16"``, ``"uint16"``. The first is the one to quantise for.
    symmetric_activations, symmetric_weights : bool
        Whether their zero points must be 0.
    per_channel : bool
        Whether weights may have one scale for each output channel.
    shared_scales : sequence of str
        Kinds whose inputs and output must have the same scale and zero point.
    check : callable, optional
        ``check(group) -> True | False | Reject``: what else must hold of a `QuantizedGroup`, such as strides.
    override, extend : bool
        As for `register_pattern`.

    Returns
    -------
    Quantization
        ``onnxruntime()`` and ``torchao()`` write the same for those who quantise a model.

    Raises
    ------
    InputError
        If a kind or a dtype is unknown.
    """
    spec = Quantization(
        compiler,
        _names(compiler, "kinds", kinds, KINDS),
        _names(compiler, "activations", activations, _DTYPES),
        _names(compiler, "weights", weights, _DTYPES),
        symmetric_activations,
        symmetric_weights,
        per_channel,
        _names(compiler, "shared_scales", shared_scales, KINDS, may_be_empty=True),
        check,
    )
    for kind in spec.kinds:
        for name, pattern, parts in _patterns(kind):
            register_pattern(
                compiler,
                f"quantized_{name}",
                pattern,
                annotations=parts,
                check=_checked(spec, kind),
                example=examples(spec).get(name),
                override=override,
                extend=extend,
            )
    return spec


def _why_not_bias(group: QuantizedGroup) -> str:
    """Whether there is one number of a bias for each output, or one for all."""
    if group.real_bias is None or group.real_bias.size == 1:
        return ""
    attrs, rank = group.call.attrs, len(group.call.ty.shape)
    outputs = str(attrs.out_layout or attrs.data_layout).index("C") if "conv" in group.op else rank - 1
    along = [axis + rank - group.real_bias.ndim for axis, size in enumerate(group.real_bias.shape) if size != 1]
    return f"a bias of shape {group.real_bias.shape}, which is not one for each output" * (along != [outputs])


def _names(
    compiler: str, what: str, given: str | Sequence[str], known: Iterable[str], *, may_be_empty: bool = False
) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    wrong = [name for name in names if name not in known]
    if wrong or not (names or may_be_empty):
        got = repr(wrong[0]) if wrong else "none"
        raise InputError(f"register_quantization({compiler!r}): {what} has {got}; expected some of {', '.join(known)}")
    return names


def _checked(spec: Quantization, kind: str) -> Callable[[Mapping[str, Any]], bool | Reject]:
    def check(match: Mapping[str, Any]) -> bool | Reject:
        group = quantized(match)
        assert isinstance(group, QuantizedGroup)
        refusal = spec.why_not(kind, group)
        return True if refusal is None else refusal

    return check


def _dq(data: Any = None) -> Any:
    return is_op("relax.dequantize")(wildcard() if data is None else data, wildcard(), wildcard())


def _q(real: Any) -> Any:
    """The end of a group: a relu or a clip may stand before it."""
    bounded = is_op("relax.nn.relu")(real) | is_op("relax.clip")(real, wildcard(), wildcard())
    return is_op("relax.quantize")(real | bounded, wildcard(), wildcard())


def _any_of(ops: Sequence[str], operand: Any, *others: Any) -> Any:
    return reduce(or_, (is_op(op)(operand, *others) for op in ops))


def _patterns(kind: str) -> list[tuple[str, Any, dict[str, Any]]]:
    if kind == "concat":
        return [_concat(count) for count in range(2, _MOST_PARTS + 1)]
    x, y = _dq(), _dq()
    calls: dict[str, Callable[[], Any]] = {
        "conv": lambda: _any_of([f"relax.nn.conv{n}d" for n in (1, 2, 3)], x, _dq(is_const())),
        "matmul": lambda: is_op("relax.matmul")(x, y | is_op("relax.permute_dims")(y)),
        "add": lambda: is_op("relax.add")(x, y),
        "pool": lambda: _any_of(_POOLS, x),
        "relu": lambda: is_op("relax.nn.relu")(x) | is_op("relax.clip")(x, wildcard(), wildcard()),
        "resize": lambda: is_op("relax.image.resize2d")(x, wildcard()),
        "reshape": lambda: is_op("relax.reshape")(x, wildcard()) | _any_of(_MOVES, x),
    }
    call = calls[kind]()
    real = call | is_op("relax.add")(call, is_const()) if kind in WITH_WEIGHTS else call
    end = is_op("relax.quantize")(call, wildcard(), wildcard()) if kind == "relu" else _q(real)
    return [(kind, end, {"x": x, "call": call, **({"y": y} if kind == "add" else {})})]


def _concat(count: int) -> tuple[str, Any, dict[str, Any]]:
    parts = [_dq() for _ in range(count)]
    call = is_op("relax.concat")(is_tuple(parts))
    return f"concat_{count}", _q(call), {"call": call, **{f"x{i}": p for i, p in enumerate(parts)}}
