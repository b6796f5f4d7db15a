// SPDX-License-Identifier: Apache-2.0
// Programs and probes as JSON, for people and for the partitioner.
#ifndef TVM_BYOC_DNNL_DNNL_REPORT_H_
#define TVM_BYOC_DNNL_DNNL_REPORT_H_

#include <vector>

#include "common/graph.h"
#include "common/support/json.h"
#include "dnnl/execute.h"

namespace tvm_byoc_dnnl {

/// The steps of a plan with their implementations and layouts, and the memory that it takes.
json::Object DescribePlan(const Graph& graph, const DnnlPlan& plan);

/// The steps of a plan with the seconds that each took.
json::Object DescribeProfile(const Graph& graph, const DnnlPlan& plan,
                             const std::vector<double>& seconds);

/// Whether every node has a real implementation on this machine; plans without constant values.
json::Object ProbeGraph(const Graph& graph, const CostModel& cost);

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_DNNL_REPORT_H_
