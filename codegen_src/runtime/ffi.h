// SPDX-License-Identifier: Apache-2.0
// What the door to TVM uses of tvm-ffi.
#pragma once

#include <tvm/ffi/cast.h>
// cast.h stands first: the headers below need it.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

namespace tvm_byoc_dnnl {

namespace ffi = tvm::ffi;

}  // namespace tvm_byoc_dnnl
