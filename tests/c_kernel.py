"""A C kernel for vendors that tests make up: one loop over tensors of float32 and of one shape."""

from __future__ import annotations

from typing import Any

import tvm

__all__ = ["c_kernel", "c_module"]

_SOURCE = """
#include <math.h>
#include <tvm/ffi/c_api.h>
extern "C" int __tvm_ffi_{name}(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  float* a[16]; int64_t size = 1; DLTensor* t = 0;
  for (int k = 0; k < n; ++k) {{
    t = args[k].type_index == kTVMFFIDLTensorPtr ? (DLTensor*)args[k].v_ptr : TVMFFITensorGetDLTensorPtr(args[k].v_obj);
    a[k] = (float*)((char*)t->data + t->byte_offset);
  }}
  for (int d = 0; d < t->ndim; ++d) size *= t->shape[d];
  for (int64_t i = 0; i < size; ++i) {{ {body} }}
  return 0;
}}
"""


def c_kernel(name: str, body: str) -> str:
    """A function of inputs and results ``a[0][i]``, ``a[1][i]`` …, with ``body`` done for every ``i``."""
    return _SOURCE.format(name=name, body=body)


def c_module(name: str, source: str) -> Any:
    """The source as a runtime module that exports ``name``."""
    return tvm.get_global_func("runtime.CSourceModuleCreate")(source, "cc", [name], [])
