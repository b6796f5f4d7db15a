// SPDX-License-Identifier: Apache-2.0
// Regions of a vendor's own bytes, run by a library of the vendor's (tvm_byoc_runner.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "native/tvm_byoc_runner.h"

namespace tvm_byoc_dnnl {

/// The library of a namespace's runner where nobody has named one, for dlopen. Throws
/// Error(kArtifact) for a name that is read from a file and could name another place.
std::string RunnerLibrary(const std::string& compiler);

/// Loads such a library, for good. Throws Error(kLibrary).
const tvm_byoc_runner& LoadRunner(const std::string& library);

/// What a runner says of bytes, and in `reason` why.
tvm_byoc_fit CheckBlob(const tvm_byoc_runner& runner, const std::string& compatibility,
                       std::string* reason);

/// A region that a runner has opened; any number of threads may run it.
class OpenedBlob {
 public:
  /// Throws std::runtime_error with the runner's message.
  OpenedBlob(const tvm_byoc_runner& runner, std::string_view bytes, const std::string& options);

  /// Throws std::runtime_error with the runner's message.
  void Run(const std::vector<tvm_byoc_tensor>& tensors) const;

 private:
  const tvm_byoc_runner& runner_;
  std::shared_ptr<void> region_;
};

}  // namespace tvm_byoc_dnnl
