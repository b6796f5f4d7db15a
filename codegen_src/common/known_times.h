// SPDX-License-Identifier: Apache-2.0
// Measured times of what an engine can choose from. A graph carries those of its own workloads.
#ifndef TVM_BYOC_DNNL_COMMON_KNOWN_TIMES_H_
#define TVM_BYOC_DNNL_COMMON_KNOWN_TIMES_H_

#include <map>
#include <string>

#include "common/support/json.h"

namespace tvm_byoc_dnnl {

struct KnownTimes {
  struct Time {
    double seconds = 0;
    double model = 0;  // that the engine expects without a measurement
  };
  std::string setting;  // of the engine: other ones ignore these times
  /// The engine's own name of an operation with its shapes, and the names of its candidates.
  std::map<std::string, std::map<std::string, Time>> workloads;
};

/// {"setting": text, "workloads": {name: {candidate: [seconds, model]}}}. Throws Error(kGraph).
KnownTimes ReadKnownTimes(const json::Value& document);

json::Object WriteKnownTimes(const KnownTimes& times);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_COMMON_KNOWN_TIMES_H_
