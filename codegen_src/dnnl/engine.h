// SPDX-License-Identifier: Apache-2.0
// oneDNN behind the interface that the common code knows.
#pragma once

#include <memory>

#include "common/engine.h"

namespace tvm_byoc_dnnl {

/// Throws Error(kLibrary) if the oneDNN of this process is of a version that we do not know.
std::unique_ptr<const Engine> NewDnnlEngine();

}  // namespace tvm_byoc_dnnl
