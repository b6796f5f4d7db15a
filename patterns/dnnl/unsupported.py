"""Operators for which oneDNN 3.2 has no primitive and no exact combination of primitives: the reasons in reports."""

from __future__ import annotations

from ...vendor import register_unsupported

__all__: list[str] = []

_NO_UNARY = "oneDNN has no such function of one tensor"
_NO_BINARY = "oneDNN has no such function of two tensors"
_INTEGERS = "oneDNN computes in floating point"
_BY_INDEX = "oneDNN has no gather of single elements, and no scatter"
_BY_VALUE = "oneDNN has no search and no sort"
_SCAN = "oneDNN has no scan"
_SAMPLING = "oneDNN samples only at points that are evenly apart"

#: reason → operators, without ``relax.``, several to a string
_UNSUPPORTED = {
    _NO_UNARY: "acos acosh asin asinh atan atanh ceil cos cosh floor sign sin sinh tan trunc isfinite isinf isnan",
    "oneDNN has no erf; what importers make of gelu is taken as a whole": "erf",
    _NO_BINARY: "atan2 floor_divide floor_mod log_add_exp mod",
    _INTEGERS: "bitwise_and bitwise_not bitwise_or bitwise_xor left_shift right_shift",
    _BY_INDEX: "gather_elements gather_nd index_put scatter_elements scatter_nd slice_scatter one_hot",
    _BY_VALUE: "argmax argmin argsort sort topk median unique nonzero bucketize",
    _SCAN: "cumprod cumsum",
    _SAMPLING: "image.affine_grid image.grid_sample vision.roi_align vision.roi_pool",
    "oneDNN's attention would be one primitive per sequence": "nn.attention_var_len",
}

for _why, _ops in _UNSUPPORTED.items():
    register_unsupported("dnnl", {f"relax.{op}": _why for op in _ops.split()})
