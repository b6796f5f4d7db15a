// SPDX-License-Identifier: Apache-2.0
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
  json::Object object;
  object.emplace_back("node", step.node);
  bool of_node = !step.conversion && step.node < static_cast<int>(graph.nodes.size());
  object.emplace_back("kind", step.conversion         ? "reorder"
                              : step.kernel == &kFill ? "fill"
                              : of_node               ? Name(graph.nodes[step.node].kind)
                                                      : "copy");
  object.emplace_back("impl", step.impl);
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

json::Object DescribePlan(const Graph& graph, const DnnlPlan& plan) {
  const Program& program = plan.program();
  json::Array steps;
  for (const Step& step : program.steps) steps.emplace_back(DescribeStep(graph, step));
  json::Array init;
  for (const Step& step : program.init) init.emplace_back(DescribeStep(graph, step));
  json::Object object;
  object.emplace_back("name", graph.name);
  object.emplace_back("steps", std::move(steps));
  object.emplace_back("init", std::move(init));
  object.emplace_back("reorders", CountReorders(program.steps));
  object.emplace_back("arena_bytes", program.arena_bytes);
  object.emplace_back("packed_bytes", plan.packed_bytes());
  return object;
}

json::Object DescribeProfile(const Graph& graph, const DnnlPlan& plan,
                             const std::vector<double>& seconds) {
  json::Array steps;
  for (size_t i = 0; i < seconds.size(); ++i) {
    json::Object step = DescribeStep(graph, plan.program().steps[i]);
    step.emplace_back("seconds", seconds[i]);
    steps.emplace_back(std::move(step));
  }
  json::Object object;
  object.emplace_back("name", graph.name);
  object.emplace_back("steps", std::move(steps));
  return object;
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
    Lowering lowering(graph, shapes, CpuEngine(), cost);
    const Program program = lowering.Run();
    seconds = program.expected.least;
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
      json::Object node;
      node.emplace_back("kind", Name(graph.nodes[i].kind));
      node.emplace_back("impl", impls[i]);
      node.emplace_back("post_ops", static_cast<int64_t>(post_ops[i]));  // in one primitive
      nodes.emplace_back(std::move(node));
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    reason = error.what();
  }
  json::Object result;
  result.emplace_back("ok", reason.empty());
  result.emplace_back("reason", reason);
  result.emplace_back("nodes", std::move(nodes));
  result.emplace_back("reorders", reorders);
  result.emplace_back("seconds", seconds);  // that it is expected to take, in any layouts
  return result;
}

}  // namespace tvm_byoc_dnnl
