// SPDX-License-Identifier: Apache-2.0
// Measures every candidate of convolutions: candidates ROUNDS LAYER ... prints one line of CSV for
// each candidate: what it is, its work, the seconds of the cost model, and of the clock. A layer is
// CHANNELS,SIZE,OUTPUTS of a convolution 3x3, and what differs from that behind it (Layer).
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

/// A convolution of images, by the numbers of a layer in this order; what is left out is as here.
struct Layer {
  int channels = 0, height = 0, outputs = 0;
  int groups = 1, kernel_height = 3, kernel_width = 3, stride = 1, dilation = 1, images = 1;
  int width = 0;  // 0: as high

  static int Pad(int kernel, int hole) { return (kernel - 1) * hole / 2; }
  int Results(int size, int kernel) const {
    return (size + 2 * Pad(kernel, dilation) - (kernel - 1) * dilation - 1) / stride + 1;
  }
};

std::string Shape(std::initializer_list<int> dims) { return Join(Dims(dims.begin(), dims.end())); }

std::string Tensor(const std::string& name, const std::string& shape) {
  return R"({"name":")" + name + R"(","dtype":"float32","shape":)" + shape + "}";
}

/// The layer with a relu, and a reader that leaves the layout to it, as in a network.
std::string GraphOf(const Layer& l) {
  const int pad_y = Layer::Pad(l.kernel_height, l.dilation);
  const int pad_x = Layer::Pad(l.kernel_width, l.dilation);
  const std::string results = Shape({l.images, l.outputs, l.Results(l.height, l.kernel_height),
                                     l.Results(l.width, l.kernel_width)});
  const int per_group = l.channels / l.groups;
  const std::string weights =
      l.groups == 1
          ? Shape({l.outputs, per_group, l.kernel_height, l.kernel_width})
          : Shape({l.groups, l.outputs / l.groups, per_group, l.kernel_height, l.kernel_width});
  return R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)" +
         Tensor("x", Shape({l.images, l.channels, l.height, l.width})) + "," +
         Tensor("w", weights) + "," + Tensor("y", results) + "," + Tensor("z", results) +
         R"(],"inputs":[{"tensor":0}],"constants":[{"tensor":1,"name":"c"}],"nodes":[)"
         R"({"kind":"convolution","inputs":[0,1],"outputs":[2],"attrs":{"strides":)" +
         Shape({l.stride, l.stride}) + R"(,"dilations":)" + Shape({l.dilation, l.dilation}) +
         R"(,"pad_begin":)" + Shape({pad_y, pad_x}) + R"(,"pad_end":)" + Shape({pad_y, pad_x}) +
         R"(},"post_ops":[{"kind":"eltwise","alg":"relu","alpha":0,"beta":0}]},)"
         R"({"kind":"pooling","inputs":[2],"outputs":[3],"attrs":{"alg":"max","kernel":[1,1],)"
         R"("strides":[1,1],"dilations":[1,1],"pad_begin":[0,0],"pad_end":[0,0]}}],)"
         R"("outputs":[3]})";
}

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

void Measure(int rounds, const std::string& name_of_layer, const Layer& layer) {
  const Graph graph = ParseGraph(GraphOf(layer));
  const Shapes shapes = Specialise(graph, {});
  auto is_ours = [](const Candidate& c) {
    return c.op.kind == dnnl::primitive::kind::convolution && !c.op.post_ops.empty();
  };

  std::map<std::string, Measured> all;
  Lowering(graph, shapes, CpuEngine(), [&](const Candidate& candidate, const Machine& machine) {
    const double model = DefaultCost(candidate, machine);
    if (is_ours(candidate)) {
      Measured& measured = all[candidate.impl];
      measured.candidate = candidate;
      measured.model = model;
    }
    return model;
  }).Run();

  const auto floats = [&](int tensor) {
    return std::vector<float>(static_cast<size_t>(ElementCount(shapes[tensor])));
  };
  std::vector<float> x = floats(0), w = floats(1), z = floats(3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) / 97 - 0.5f;
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 89) / 89 - 0.5f;
  const std::vector<const void*> constants = {w.data()};
  PackedStore store;
  for (auto& [name, measured] : all) {
    const std::string& wanted = name;
    auto cost = [&](const Candidate& c, const Machine& machine) {
      return !is_ours(c) ? DefaultCost(c, machine) : c.impl == wanted ? 0.0 : 1.0;
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
    std::printf("%s,\"%s\",%s,%.0f,%.0f,%.0f,%.0f,%.3e,%.3e\n",
                Isa().Vectors() == BYOC_AVX512 ? "avx512" : "avx2", name_of_layer.c_str(),
                name.c_str(), work.products, work.vectors, work.weights, work.bytes, measured.model,
                measured.seconds[measured.seconds.size() / 2]);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    Layer l;
    const int read = std::sscanf(argv[i], "%d,%d,%d,%d,%d,%d,%d,%d,%d,%d", &l.channels, &l.height,
                                 &l.outputs, &l.groups, &l.kernel_height, &l.kernel_width,
                                 &l.stride, &l.dilation, &l.images, &l.width);
    if (read < 3) {
      std::fprintf(stderr, "got %s, expected numbers of a layer\n", argv[i]);
      return 1;
    }
    if (l.width == 0) l.width = l.height;
    Measure(std::atoi(argv[1]), argv[i], l);
  }
  return 0;
}
