"""Notes the regions that have been tried: a pass that runs after partitioning may change them."""

from __future__ import annotations

import tvm_ffi
from tvm import relax

from ..compilation import current

__all__ = ["mark_as_tried", "was_tried"]

#: attribute of a region: the hash of the function that was tried
_TRIED_ATTR = "byoc.tried"


def _hash(func: relax.Function) -> str:
    plain = relax.Function(func.params, func.body, func.ret_ty, func.is_pure)
    return str(tvm_ffi.structural_hash(plain, skip_tensor_content=True))


def mark_as_tried(func: relax.Function) -> relax.Function:
    """``func``, noted as tried: in an attribute, or in a compilation that builds it in memory, which is quicker."""
    bodies = current().tried
    if bodies is None:
        return func.with_attr(_TRIED_ATTR, _hash(func))
    bodies[func.body] = None
    return func


def was_tried(func: relax.Function) -> bool:
    """Whether ``func`` has been tried, and not been changed since then."""
    bodies = current().tried
    if bodies is not None and func.body in bodies:
        return True
    return bool(func.attrs) and _TRIED_ATTR in func.attrs and str(func.attrs[_TRIED_ATTR]) == _hash(func)
