// SPDX-License-Identifier: Apache-2.0
// Measures every candidate of convolutions 3x3: candidates ROUNDS C,SIZE,OUTPUTS ... prints one
// line of CSV for each candidate: what it is, its work, the seconds of the cost model, and of the
// clock.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "common/support/error.h"
#include "dnnl/constants.h"
#include "dnnl/execute.h"
#include "dnnl/kernel_call.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a program of one file

constexpr const char* kGraph =
    R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)"
    R"({"name":"x","dtype":"float32","shape":[1,%1$d,%2$d,%2$d]},)"
    R"({"name":"w","dtype":"float32","shape":[%3$d,%1$d,3,3]},)"
    R"({"name":"y","dtype":"float32","shape":[1,%3$d,%2$d,%2$d]},)"
    R"({"name":"z","dtype":"float32","shape":[1,%3$d,%2$d,%2$d]}],)"
    R"("inputs":[{"tensor":0}],"constants":[{"tensor":1,"name":"c"}],"nodes":[)"
    R"({"kind":"convolution","inputs":[0,1],"outputs":[2],"attrs":{"strides":[1,1],)"
    R"("dilations":[1,1],"pad_begin":[1,1],"pad_end":[1,1]},"post_ops":)"
    R"([{"kind":"eltwise","alg":"relu","alpha":0,"beta":0}]},)"
    // a reader that leaves the layout to the convolution, as in a network
    R"({"kind":"pooling","inputs":[2],"outputs":[3],"attrs":{"alg":"max","kernel":[1,1],)"
    R"("strides":[1,1],"dilations":[1,1],"pad_begin":[0,0],"pad_end":[0,0]}}],"outputs":[3]})";

struct Measured {
  Candidate candidate;
  double model = 0;
  std::unique_ptr<DnnlPlan> plan;
  std::vector<double> seconds;
};

double ConvolutionSeconds(const json::Object& profile) {
  for (const json::Value& value : *json::Find(profile, "steps")->As<json::Array>()) {
    const auto& step = *value.As<json::Object>();
    if (*json::Find(step, "kind")->As<std::string>() != "convolution") continue;
    return *json::Find(step, "seconds")->As<double>();
  }
  Fail(ErrorKind::kGraph, "the plan has no convolution");
}

void Measure(int rounds, int channels, int size, int outputs) {
  std::vector<char> text(4096);
  std::snprintf(text.data(), text.size(), kGraph, channels, size, outputs);
  const Graph graph = ParseGraph(text.data());
  const Shapes shapes = Specialise(graph, {});
  auto is_ours = [](const Candidate& c) {
    return c.op.kind == dnnl::primitive::kind::convolution && !c.op.post_ops.empty();
  };

  std::map<std::string, Measured> all;
  Lowering(graph, shapes, CpuEngine(), [&](const Candidate& candidate, const Isa& isa) {
    const double model = DefaultCost(candidate, isa);
    if (is_ours(candidate)) {
      Measured& measured = all[candidate.impl];
      measured.candidate = candidate;
      measured.model = model;
    }
    return model;
  }).Run();

  std::vector<float> x(static_cast<size_t>(channels) * size * size);
  std::vector<float> w(static_cast<size_t>(outputs) * channels * 9);
  std::vector<float> z(static_cast<size_t>(outputs) * size * size);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) / 97 - 0.5f;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 89) / 89 - 0.5f;
  const std::vector<const void*> constants = {w.data()};
  PackedStore store;
  for (auto& [name, measured] : all) {
    const std::string& wanted = name;
    auto cost = [&](const Candidate& c, const Isa& isa) {
      return !is_ours(c) ? DefaultCost(c, isa) : c.impl == wanted ? 0.0 : 1.0;
    };
    measured.plan = std::make_unique<DnnlPlan>(Lowering(graph, shapes, CpuEngine(), cost).Run(),
                                               shapes, constants, &store);
  }
  for (int round = 0; round <= rounds; ++round) {  // they take turns; the first round warms up
    for (auto& [name, measured] : all) {
      const double seconds =
          ConvolutionSeconds(measured.plan->Profile(graph, {x.data()}, {z.data()}));
      if (round > 0) measured.seconds.push_back(seconds);
    }
  }
  for (auto& [name, measured] : all) {
    std::sort(measured.seconds.begin(), measured.seconds.end());
    const Work& work = measured.candidate.work;
    std::printf("%s,%d,%d,%d,%s,%.0f,%.0f,%.0f,%.0f,%.3e,%.3e\n",
                Isa().Vectors() == BYOC_AVX512 ? "avx512" : "avx2", channels, size, outputs,
                name.c_str(), work.products, work.vectors, work.weights, work.bytes, measured.model,
                measured.seconds[measured.seconds.size() / 2]);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    int channels = 0, size = 0, outputs = 0;
    if (std::sscanf(argv[i], "%d,%d,%d", &channels, &size, &outputs) != 3) {
      std::fprintf(stderr, "got %s, expected C,SIZE,OUTPUTS\n", argv[i]);
      return 1;
    }
    Measure(std::atoi(argv[1]), channels, size, outputs);
  }
  return 0;
}
