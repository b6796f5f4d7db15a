"""The operators that the C backend takes: by family, and only calls that it can really turn into C."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...vendor import (
    RegionPolicy,
    Reject,
    Work,
    constant_numpy,
    describe,
    dtype_of,
    generate_c,
    is_constant,
    least_sizes,
    lower_tir,
    register_annotate_compiler,
    require,
    shape_dims,
    static_shape,
    translate_to_te,
)
from .lower import TARGET, find_compiler, scheduled


def check_bounds(call: Any) -> None:
    """Refuse a call of which it is not known that it reads only what is there."""
    name = call.op.name.removeprefix("relax.")
    if name == "nn.pad":
        _check_padding(call)
    elif name == "take" and str(call.attrs.mode) == "fast":
        dims, axis = shape_dims(call.args[0].ty) or [], call.attrs.axis
        _check_indices(call, dims if axis is None else [dims[int(axis)]], as_one=True)
    elif name == "gather_elements":
        _check_indices(call, [(shape_dims(call.args[0].ty) or [])[int(call.attrs.axis)]], as_one=True)
    elif name == "gather_nd":
        batched = int(call.attrs.batch_dims)
        count = (shape_dims(call.args[1].ty) or [0])[-1]
        _check_indices(call, (shape_dims(call.args[0].ty) or [])[batched:][:count], as_one=False)


def _check_padding(call: Any) -> None:
    dims = shape_dims(call.args[0].ty) or []
    for size, needed in zip(dims, least_sizes(call.attrs), strict=False):
        require(
            not needed or (isinstance(size, int) and size >= needed),
            f"a padding of mode {call.attrs.pad_mode} by {[int(w) for w in call.attrs.pad_width]} of an axis of {size} "
            f"elements: it reads {needed}, and C code does not compare",
        )


def _check_indices(call: Any, extents: list[Any], *, as_one: bool) -> None:
    """Indices into axes of these sizes: of all axes as one, or one for each along the indices' last axis."""
    indices = call.args[1]
    require(is_constant(indices), "indices that are known only at run time: C code does not compare them with the size")
    require(
        all(isinstance(e, int) for e in extents), f"indices into an axis of {extents} elements: C code does not compare"
    )
    found, sizes = constant_numpy(indices), np.asarray([math.prod(extents)] if as_one else extents)
    require(bool(((found >= 0) & (found < sizes)).all()), f"an index is out of range of {sizes.tolist()} elements")


#: dtypes that TVM's C generator can write; C has no half precision
_DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split())
#: Multiply-adds: beyond, a library or LLVM's vectoriser gains more than leaving the region costs.
_LARGEST_PRODUCT = 64**3

#: family → operators, without ``relax.``
FAMILIES: dict[str, str] = {
    "unary": "abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor isfinite isinf "
    "isnan log logical_not negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu nn.silu nn.softplus "
    "round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc",
    "binary": "add atan2 bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal "
    "left_shift less less_equal log_add_exp logical_and logical_or logical_xor maximum minimum mod multiply not_equal "
    "power right_shift subtract",
    "choice": "where",
    "reduction": "argmax argmin cumprod cumsum max mean min prod std sum variance",
    "normalisation": "nn.batch_norm nn.group_norm nn.instance_norm nn.layer_norm nn.log_softmax nn.rms_norm nn.softmax",
    "product": "matmul",
    "quantisation": "dequantize quantize",
    "shape": "broadcast_to collapse_sum_to concat expand_dims flatten flip nn.batch_flatten nn.pad nn.pixel_shuffle "
    "permute_dims repeat reshape split squeeze stack strided_slice tile tril triu",
    "lookup": "gather_elements gather_nd one_hot take",
    "creation": "arange eye eye_like full full_like ones ones_like zeros zeros_like",
}

_VIEWS = frozenset(f"relax.{name}" for name in "expand_dims flatten nn.batch_flatten reshape squeeze".split())


class ViewsStay(RegionPolicy):
    """A region of views alone would copy data that TVM only sees in another shape, except for a model's result."""

    def why_not(self, work: Work) -> str:
        if _VIEWS.issuperset(work.ops):
            return f"{', '.join(work.ops)}: nothing but views, which TVM does without copying"
        return super().why_not(work)


def register(compiler: str) -> None:
    for names in FAMILIES.values():
        for name in names.split():
            register_annotate_compiler(compiler, f"relax.{name}", _predicate(f"relax.{name}"))


def _predicate(op: str) -> Callable[[Any, Sequence[Any]], bool]:
    def can_compile(attrs: Any, args: Sequence[Any]) -> bool:
        find_compiler()
        call = relax.BlockBuilder().normalize(relax.Call(tvm.ir.Op.get(op), list(args), attrs))
        for ty in [*(a.ty for a in args), call.ty]:
            _check_type(ty)
        if op == "relax.matmul":
            _check_product(call)
        check_bounds(call)
        _check_translation(call)
        return True

    return can_compile


def _check_type(ty: Any) -> None:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            _check_type(field)
    elif isinstance(ty, relax.TensorType):
        require(dtype_of(ty) in _DTYPES, f"dtype {dtype_of(ty)}, which C cannot compute with")
        require(ty.shape is not None, f"a tensor of unknown shape, {ty}")


def _check_product(call: Any) -> None:
    a, out = static_shape(call.args[0].ty), static_shape(call.ty)
    if a is None or out is None:
        raise Reject("a matrix product of symbolic size")
    work = a[-1] * math.prod(out)
    require(work <= _LARGEST_PRODUCT, f"a matrix product of {work} multiply-adds; taken are up to {_LARGEST_PRODUCT}")


#: description of a call → the reason why it cannot be compiled, "" when it can
_VERDICTS: dict[str, str] = {}
_LOCK = threading.Lock()


def _check_translation(call: Any) -> None:
    """Generate C for the call, without compiling it; similar calls are tried once."""
    args = [str(a.ty) if isinstance(a.ty, (relax.TensorType, relax.TupleType)) else str(a) for a in call.args]
    key = f"{call.op.name} {call.attrs} {args}"
    if key not in _VERDICTS:
        with _LOCK:
            _VERDICTS[key] = _why_not(call)
    require(not _VERDICTS[key], _VERDICTS[key])


def _why_not(call: Any) -> str:
    try:
        graph = translate_to_te(_function_of(call), TARGET)
        target = tvm.target.Target(TARGET, host=TARGET)
        kernel = scheduled(graph).with_attr("global_symbol", "trial")
        generate_c(lower_tir(tvm.IRModule({"trial": kernel}), target), target)
    except Exception as error:
        return describe(error)
    return ""


def _function_of(call: Any) -> relax.Function:
    """A function of just this call; symbols that no tensor has for a dimension arrive in a shape argument."""
    params = list(relax.analysis.free_vars(call))
    known = {d for p in params if isinstance(p.ty, relax.TensorType) for d in shape_dims(p.ty) or ()}
    symbols = [s for s in relax.analysis.free_symbolic_vars(call) if s not in known]
    if symbols:
        params.append(relax.Var("symbols", relax.ShapeType(symbols)))
    result = relax.Var("result", call.ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, call)])], result)
    return relax.BlockBuilder().normalize(relax.Function(params, body, call.ty))
