"""Host code for operators that TVM lowers wrong.

* What the values of a call may not be is checked: `guards`.
* Sums of float16 are made in float16; here in float32.
* TVM's padding by elements of the tensor itself reads memory of others where there are too few of them.
* LLVM has no float16 form of some functions; they are computed in float32 between casts.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx, topi

from .._compat import dtype_of
from ..errors import UnsupportedError
from ..te.padding import least_sizes
from .guards import GUARDED, Legalization, default_of, dims_of

__all__ = ["LEGALIZATIONS"]

_SUMS = ("matmul", "sum", "mean", "variance", "std", *(f"nn.conv{d}d" for d in (1, 2, 3)))
#: functions that LLVM does not have in float16, and those of which TVM rounds every step to float16
_NOT_IN_FLOAT16 = (
    *("acos", "acosh", "asin", "asinh", "atan", "cosh", "sinh"),
    *("atanh", "rsqrt", "sigmoid", "tan", "tanh"),
)


def _by_float32(name: str) -> Legalization:
    function = getattr(topi, name)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        if dtype_of(call.args[0].ty) != "float16":
            return bb.call_te(function, call.args[0], primfunc_name_hint=name)
        return bb.call_te(
            lambda x: topi.cast(function(topi.cast(x, "float32")), "float16"), call.args[0], primfunc_name_hint=name
        )

    return legalize


def _summed_in_float32(op: str) -> Legalization:
    """In float16, the sum of 4,096 ones is 2,048."""
    default = default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        if any(dtype_of(e.ty) != "float16" for e in (call, *call.args)) or "float16" in str(
            getattr(call.attrs, "out_dtype", "")
        ):
            return default(bb, call)
        wide = [bb.emit(bb.call_te(topi.cast, arg, "float32")) for arg in call.args]
        out = bb.emit(default(bb, bb.normalize(relax.Call(call.op, wide, call.attrs))))
        return bb.call_te(topi.cast, out, "float16")

    return legalize


# ---- padding ----------------------------------------------------------------------------------------


def _pad(bb: relax.BlockBuilder, call: Any) -> Any:
    default, least = default_of("relax.nn.pad"), least_sizes(call.attrs)
    if not least:
        return default(bb, call)
    data, widths = call.args[0], [int(w) for w in call.attrs.pad_width]
    dims = dims_of(data)
    for size, needed in zip(dims, least, strict=True):
        if isinstance(size, int) and size < needed:
            raise UnsupportedError(
                f"a padding of mode {call.attrs.pad_mode} by {widths} of a tensor of shape {dims}: an axis has {size} "
                f"elements, expected {needed} or more"
            )
    wanted = [d if isinstance(d, int) or n == 0 else tirx.max(d, n) for d, n in zip(dims, least, strict=True)]
    if any(w is not d for w, d in zip(wanted, dims, strict=True)):
        # Nothing reads it: it is there to fail.
        sizes = relax.ShapeExpr([tirx.IntImm("int64", w) if isinstance(w, int) else w for w in wanted])
        bb.match_cast(data, relax.TensorType(sizes, dtype_of(data.ty)))
    return default(bb, call)


#: Relax op → what ``LegalizeOps`` makes of it instead
LEGALIZATIONS: dict[str, Legalization] = {
    **{f"relax.{name}": _by_float32(name) for name in _NOT_IN_FLOAT16},
    **{f"relax.{name}": _summed_in_float32(f"relax.{name}") for name in _SUMS},
    "relax.nn.pad": _pad,
    **GUARDED,
}
