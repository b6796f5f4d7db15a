// SPDX-License-Identifier: Apache-2.0
// Questions to an engine: whether it runs a graph.
#ifndef TVM_BYOC_DNNL_RUNTIME_PROBE_H_
#define TVM_BYOC_DNNL_RUNTIME_PROBE_H_

#include <string>
#include <string_view>
#include <vector>

#include "common/engine.h"

namespace tvm_byoc_dnnl {

/// The engine's answer about a graph, both as JSON; see Engine::Probe.
std::string ProbeText(const Engine& engine, std::string_view graph, bool delivers);

/// The answers about each of several graphs by itself, without delivery, on all threads. Empty
/// where the engine throws: whoever asks about that graph alone gets the error.
std::vector<std::string> ProbeEach(const Engine& engine, const std::vector<std::string>& graphs);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_RUNTIME_PROBE_H_
