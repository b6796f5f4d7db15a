// SPDX-License-Identifier: Apache-2.0
// Programs and probes as JSON, for people and for the partitioner.
#include <algorithm>

#include "common/support/error.h"
#include "dnnl/execute.h"

namespace tvm_byoc_dnnl {
namespace {

using PrimitiveKind = dnnl::primitive::kind;

/// The layout of an argument; of weights that a kernel has packed, the dtype and the dims of
/// before.
std::string LayoutOf(const Step& step, const StepArg& arg) {
  const OpArg* weights = step.op.Find(arg.arg);
  const std::string present = ToString(arg.place.md);
  if (step.kernel == nullptr || arg.arg != DNNL_ARG_WEIGHTS || weights == nullptr ||
      weights->md.get_dims().size() == arg.place.md.get_dims().size()) {
    return present;
  }
  const std::string before = ToString(weights->md);  // dtype : order : shape
  return before.substr(0, before.find(':')) + ":packed" + before.substr(before.rfind(':'));
}

json::Object DescribeStep(const Graph& graph, const Step& step) {
  const bool of_node = !step.conversion && step.node < static_cast<int>(graph.nodes.size());
  const char* kind = step.conversion         ? "reorder"
                     : step.kernel == &kFill ? "fill"
                     : of_node               ? Name(graph.nodes[step.node].kind)
                                             : "copy";
  json::Object object = {{"node", step.node}, {"kind", kind}, {"impl", step.impl}};
  if (of_node) {
    json::Array source, calls;
    for (const Node* node : NodesOf(graph, step)) {
      source.insert(source.end(), node->source.begin(), node->source.end());
      calls.insert(calls.end(), node->calls.begin(), node->calls.end());
    }
    object.emplace_back("source", std::move(source));
    object.emplace_back("calls", std::move(calls));
  }
  json::Array layouts;
  for (const StepArg& arg : step.args) {
    if (arg.arg != DNNL_ARG_SCRATCHPAD) layouts.push_back(LayoutOf(step, arg));
  }
  object.emplace_back("layouts", std::move(layouts));
  return object;
}

int64_t CountReorders(const std::vector<Step>& steps) {
  int64_t count = 0;
  for (const Step& step : steps) count += step.conversion;
  return count;
}

/// Reference implementations matter where a node computes; oneDNN's reference concat is made of
/// real reorders, and steps that run once at initialisation may be slow.
bool IsSlow(const Step& step) {
  return !step.conversion && step.kernel == nullptr && IsReference(step.op.kind, step.impl) &&
         step.op.kind != PrimitiveKind::concat;
}

}  // namespace

json::Object DnnlPlan::Describe(const Graph& graph) const {
  const auto describe = [&](const std::vector<Step>& steps) {
    json::Array all;
    for (const Step& step : steps) all.emplace_back(DescribeStep(graph, step));
    return all;
  };
  return {{"name", graph.name},
          {"steps", describe(program_.steps)},
          {"init", describe(program_.init)},
          {"reorders", CountReorders(program_.steps)},
          {"arena_bytes", program_.arena_bytes},
          {"packed_bytes", packed_bytes()}};
}

json::Object DnnlPlan::Profile(const Graph& graph, const std::vector<void*>& inputs,
                               const std::vector<void*>& outputs) const {
  std::vector<double> seconds(program_.steps.size());
  Execute(inputs, outputs, seconds.data());
  json::Array steps;
  for (size_t i = 0; i < seconds.size(); ++i) {
    json::Object step = DescribeStep(graph, program_.steps[i]);
    step.emplace_back("seconds", seconds[i]);
    steps.emplace_back(std::move(step));
  }
  return {{"name", graph.name}, {"steps", std::move(steps)}};
}

json::Object ProbeGraph(const Graph& graph, const CostModel& cost) {
  const Shapes shapes = Specialise(graph, {});
  std::string reason;
  json::Array nodes;
  int64_t reorders = 0;
  double seconds = 0;
  try {
    std::vector<std::string> impls(graph.nodes.size(), "view");
    std::vector<size_t> post_ops(graph.nodes.size(), 0);
    Lowering lowering(graph, shapes, cost);
    const Program program = lowering.Run();
    seconds = program.known_seconds;
    reorders = CountReorders(program.steps);
    for (const auto* steps : {&program.init, &program.steps}) {
      for (const Step& step : *steps) {
        if (step.node >= static_cast<int>(impls.size())) continue;
        std::string& impl = impls[step.node];
        if (!step.conversion || impl == "view") impl = step.impl;
        post_ops[step.node] = std::max(post_ops[step.node], step.op.post_ops.size());
        if (steps == &program.steps && IsSlow(step) && reason.empty()) {
          reason =
              Cat("node ", step.node, ", ", DescribeNode(graph, graph.nodes[step.node], shapes),
                  ": oneDNN has only its reference implementation (", step.impl, ") here",
                  step.fault.empty() ? "" : "; ", step.fault);
        }
      }
    }
    for (size_t i = 0; i < impls.size(); ++i) {
      nodes.emplace_back(json::Object{{"kind", Name(graph.nodes[i].kind)},
                                      {"impl", impls[i]},
                                      {"post_ops", post_ops[i]}});  // in one primitive
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    reason = error.what();
  }
  return {{"ok", reason.empty()},
          {"reason", reason},
          {"nodes", std::move(nodes)},
          {"reorders", reorders},
          {"seconds", seconds}};  // that it is expected to take, in any layouts
}

}  // namespace tvm_byoc_dnnl
