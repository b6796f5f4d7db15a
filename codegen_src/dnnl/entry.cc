// SPDX-License-Identifier: Apache-2.0
// The function that the shared library of this engine exports.
#include "dnnl/engine.h"

extern "C" const tvm_byoc_dnnl::Engine* TvmByocEngine() {
  return tvm_byoc_dnnl::NewDnnlEngine().release();
}
