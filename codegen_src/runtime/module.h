// SPDX-License-Identifier: Apache-2.0
// A region as a module of TVM's runtime.
#pragma once

#include <string>

#include "common/artifact.h"
#include "runtime/ffi.h"

namespace tvm_byoc_dnnl {

ffi::Module NewRegionModule(Artifact artifact);

/// Whether calls of this thread make the plan of each new size, as Runner.warm_up demands. Returns
/// the value that it had.
bool MakePlans(bool make);

/// This library, as saved modules name it.
std::string WriterName();

}  // namespace tvm_byoc_dnnl
