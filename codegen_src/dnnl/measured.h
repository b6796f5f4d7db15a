// SPDX-License-Identifier: Apache-2.0
// Measured times in the place of the model of costs.
#ifndef TVM_BYOC_DNNL_DNNL_MEASURED_H_
#define TVM_BYOC_DNNL_DNNL_MEASURED_H_

#include <string>

#include "common/graph.h"
#include "common/known_times.h"
#include "dnnl/candidate.h"

namespace tvm_byoc_dnnl {

/// The times of a graph if they hold in this setting, and the model for all else.
CostModel CostByTimes(const KnownTimes& times, const std::string& setting);

/// See Engine::MeasureCandidates. Products compete: convolutions and products of matrices.
KnownTimes MeasureProducts(const Graph& graph, int rounds);

/// See Engine::DescribeCosts: the "family" of a candidate and the "dtype" that it multiplies, its
/// "amounts" of work and the "seconds_of_each", and those of the changes of layout
/// ("reorder").
json::Object CostsOfProducts(const Graph& graph);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_MEASURED_H_
