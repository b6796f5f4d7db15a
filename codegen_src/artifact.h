// SPDX-License-Identifier: Apache-2.0
// The bytes of a saved module: magic, format version, length, payload, CRC-32.
#ifndef TVM_BYOC_DNNL_ARTIFACT_H_
#define TVM_BYOC_DNNL_ARTIFACT_H_

#include <string>
#include <string_view>
#include <vector>

namespace tvm_byoc_dnnl {

struct Artifact {
  std::string symbol;
  std::string graph_json;
  std::vector<std::string> const_names;
};

std::string Save(const Artifact& artifact);

/// Throws Error(kArtifact) for anything that Save did not write, whichever bit is wrong.
Artifact Load(std::string_view bytes);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_ARTIFACT_H_
