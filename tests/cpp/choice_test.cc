// SPDX-License-Identifier: Apache-2.0
// Which kernels of ours are offered, and which candidate is taken, on each instruction set: on
// every machine alike, because nothing is run.
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "check.h"
#include "dnnl/execute.h"
#include "dnnl/lowering.h"
#include "machines.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

std::string Tensor(const std::string& dtype, const std::string& shape) {
  return R"({"name":"t","dtype":")" + dtype + R"(","shape":[)" + shape + "]}";
}

/// The tensors are the inputs, then the constants, then what the nodes make; the last is the
/// output.
std::string GraphOf(const std::vector<std::string>& inputs,
                    const std::vector<std::string>& constants, const std::vector<std::string>& made,
                    const std::string& nodes) {
  std::string tensors, given, known;
  size_t id = 0;
  const auto add = [&](const std::string& tensor) {
    tensors += (id == 0 ? "" : ",") + tensor;
    return std::to_string(id++);
  };
  for (const std::string& tensor : inputs)
    given += (given.empty() ? "" : ",") + (R"({"tensor":)" + add(tensor) + "}");
  for (const std::string& tensor : constants) {
    const std::string number = add(tensor);
    known +=
        (known.empty() ? "" : ",") + (R"({"tensor":)" + number + R"(,"name":"c)" + number + "\"}");
  }
  for (const std::string& tensor : made) add(tensor);
  return R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)" + tensors +
         R"(],"inputs":[)" + given + R"(],"constants":[)" + known + R"(],"nodes":[)" + nodes +
         R"(],"outputs":[)" + std::to_string(id - 1) + "]}";
}

/// An image and its weights; `attrs` are the window's stride and padding.
std::string Convolution(const std::string& src, const std::string& weights, const std::string& dst,
                        int stride, int pad, const std::string& alg = "auto",
                        const std::string& dtype = "float32", const std::string& of_weights = "") {
  const std::string s = std::to_string(stride), p = std::to_string(pad);
  return GraphOf({Tensor(dtype, src)}, {Tensor(of_weights.empty() ? dtype : of_weights, weights)},
                 {Tensor(dtype.find("int") == std::string::npos ? dtype : "int32", dst)},
                 R"({"kind":"convolution","inputs":[0,1],"outputs":[2],"attrs":{"strides":[)" + s +
                     "," + s + R"(],"dilations":[1,1],"pad_begin":[)" + p + "," + p +
                     R"(],"pad_end":[)" + p + "," + p + R"(],"alg":")" + alg + "\"}}");
}

std::string Matmul(const std::string& src, const std::string& weights, const std::string& dst,
                   const std::string& alg = "auto", const std::string& dtype = "float32",
                   const std::string& of_weights = "float32") {
  return GraphOf(
      {Tensor(dtype, src)}, {Tensor(of_weights, weights)},
      {Tensor(dtype == "float32" ? dtype : "int32", dst)},
      R"({"kind":"matmul","inputs":[0,1],"outputs":[2],"attrs":{"alg":")" + alg + "\"}}");
}

std::string Attention(const std::string& query, const std::string& key) {
  return GraphOf({Tensor("float32", query), Tensor("float32", key), Tensor("float32", key)}, {},
                 {Tensor("float32", query)},
                 R"({"kind":"attention","inputs":[0,1,2],"outputs":[3],)"
                 R"("attrs":{"scale":0.125,"alg":"accurate"}})");
}

std::string Softmax(const std::string& shape) {
  return GraphOf({Tensor("int8", shape)}, {Tensor("float32", "1"), Tensor("float32", "1")},
                 {Tensor("uint8", shape)},
                 R"({"kind":"softmax","inputs":[{"tensor":0,"scale":1}],)"
                 R"("outputs":[{"tensor":3,"scale":2}],"attrs":{"axis":1,"alg":"accurate"}})");
}

/// A convolution 1x1 of what a batch normalisation makes of a result with its channels last.
std::string BatchNorm() {
  const std::string conv =
      R"("attrs":{"strides":[1,1],"dilations":[1,1],"pad_begin":[0,0],"pad_end":[0,0]}})";
  const std::string image = Tensor("float32", "1,64,28,28"), numbers = Tensor("float32", "64");
  const std::string weights = Tensor("float32", "64,64,1,1");
  return GraphOf({image}, {weights, numbers, numbers, numbers, numbers, weights},
                 {image, image, image},
                 R"({"kind":"convolution","inputs":[0,1],"outputs":[7],)" + conv +
                     R"(,{"kind":"batch_normalization","inputs":[7,2,3,4,5],"outputs":[8],)"
                     R"("attrs":{"epsilon":0.00001}},)"
                     R"({"kind":"convolution","inputs":[8,6],"outputs":[9],)" +
                     conv);
}

std::string Compressed(const std::string& alg) {
  return GraphOf({Tensor("float32", "3,64")}, {Tensor("int8", "40,64"), Tensor("float32", "40,2")},
                 {Tensor("float32", "3,40")},
                 R"({"kind":"compressed_matmul","inputs":[0,1,2],"outputs":[3],)"
                 R"("attrs":{"group_size":32,"alg":")" +
                     alg + "\"}}");
}

using Set = dnnl::cpu_isa;

/// "the kernels that are offered > what the steps run", without the vectors in the names.
std::string ChoiceOn(const Machine& machine, const Graph& graph) {
  std::set<std::string> offered;
  const auto bare = [](const std::string& impl) { return impl.substr(0, impl.find(':')); };
  const auto cost = [&](const Candidate& candidate, const Machine& on) {
    if (candidate.call) offered.insert(bare(candidate.impl) + " ");
    const Family* family = on.rates->Find(FamilyOf(candidate, on), on.threads);
    CHECK_EQUAL(family == nullptr ? "unknown" : family->why_none, "");
    return DefaultCost(candidate, on);
  };
  std::string taken;
  try {
    const Program program = Lowering(graph, Specialise(graph, {}), cost, machine).Run();
    for (const Step& step : program.steps) {
      if (!step.conversion) taken += " " + bare(step.impl);
    }
  } catch (const Error& error) {
    taken = std::string(" ") + Name(error.kind());
  }
  return std::accumulate(offered.begin(), offered.end(), std::string()) + ">" + taken;
}

/// What is chosen from an instruction set of machines::kAll on, up to the next one that is listed.
struct Row {
  const char* what;
  std::string graph;
  std::map<Set, const char*> choices;
};

const Row kRows[] = {
    {"3x3, a small image",
     Convolution("1,64,8,8", "64,64,3,3", "1,64,8,8", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_2x2 winograd_4x4 winograd_4x4_late > winograd_4x4"},
      {Set::avx512_core, "winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core_amx, "bf16x3 winograd_4x4 winograd_4x4_bf16x3 winograd_4x4_late > jit"}}},
    {"3x3, a large image",
     Convolution("1,64,56,56", "64,64,3,3", "1,64,56,56", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_2x2 winograd_4x4 winograd_4x4_late > winograd_4x4"},
      {Set::avx512_core_amx,
       "bf16x3 winograd_4x4 winograd_4x4_bf16x3 winograd_4x4_late > winograd_4x4_bf16x3"}}},
    {"3x3, many weights",
     Convolution("1,512,7,7", "512,512,3,3", "1,512,7,7", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_2x2 winograd_4x4 winograd_4x4_late > winograd_2x2"},
      {Set::avx512_core, "winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core_amx,
       "bf16x3 winograd_4x4 winograd_4x4_bf16x3 winograd_4x4_late > bf16x3"}}},
    {"3x3, direct",
     Convolution("1,64,8,8", "64,64,3,3", "1,64,8,8", 1, 1, "direct"),
     {{Set::sse41, "> jit"}}},
    {"3x3, float32",
     Convolution("1,64,8,8", "64,64,3,3", "1,64,8,8", 1, 1, "float32"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_2x2 winograd_4x4 winograd_4x4_late > winograd_4x4"},
      {Set::avx512_core, "winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core_amx, "winograd_4x4 winograd_4x4_late > jit"}}},
    {"3x3, small tiles",
     Convolution("1,64,8,8", "64,64,3,3", "1,64,8,8", 1, 1, "winograd_2x2"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_2x2 > winograd_2x2"},
      {Set::avx512_core, "winograd_2x2 > jit"}}},
    {"3x3, stride 2",
     Convolution("1,64,56,56", "64,64,3,3", "1,64,28,28", 2, 1),
     {{Set::sse41, "> jit"}, {Set::avx512_core_amx, "bf16x3 > bf16x3"}}},
    {"5x5",
     Convolution("1,64,28,28", "64,64,5,5", "1,64,28,28", 1, 2),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_2x2_5x5 > winograd_2x2_5x5"},
      {Set::avx512_core_amx, "bf16x3 winograd_2x2_5x5 > bf16x3"}}},
    {"5x5, stride 2",
     Convolution("1,64,28,28", "64,64,5,5", "1,64,14,14", 2, 2),
     {{Set::sse41, "> jit"},
      {Set::avx2, "winograd_4x4_5x5 > winograd_4x4_5x5"},
      {Set::avx512_core, "winograd_4x4_5x5 > jit"},
      {Set::avx512_core_amx, "bf16x3 winograd_4x4_5x5 > bf16x3"}}},
    {"1x1",
     Convolution("1,64,28,28", "64,64,1,1", "1,64,28,28", 1, 0),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > jit"},
      {Set::avx512_core, "product > product"},
      {Set::avx512_core_amx, "bf16x3 product > product"}}},
    {"1x1, many channels",
     Convolution("1,1024,14,14", "256,1024,1,1", "1,256,14,14", 1, 0),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > product"},
      {Set::avx512_core_amx, "bf16x3 product > bf16x3"}}},
    {"1x1 behind a normalisation",
     BatchNorm(),
     {{Set::sse41, "> jit jit jit"},
      {Set::avx2, "batch_norm_product product > jit batch_norm_product"},
      {Set::avx512_core, "batch_norm_product product > product batch_norm_product"},
      {Set::avx512_core_amx, "batch_norm_product bf16x3 product > product batch_norm_product"}}},
    {"depthwise 5x5",
     Convolution("1,96,28,28", "96,1,1,5,5", "1,96,28,28", 1, 2),
     {{Set::sse41, "> jit"}, {Set::avx2, "depthwise > depthwise"}}},
    {"depthwise 3x3",
     Convolution("1,96,28,28", "96,1,1,3,3", "1,96,28,28", 1, 1),
     {{Set::sse41, "> jit"}}},
    {"groups of 6 channels",
     Convolution("1,24,16,16", "4,28,6,1,1", "1,112,16,16", 1, 0),
     {{Set::sse41, "> gemm"}, {Set::avx2, "direct > direct"}, {Set::avx512_core, "> jit"}}},
    {"groups of 2 channels",
     Convolution("1,128,28,28", "64,2,2,3,3", "1,128,28,28", 1, 1),
     {{Set::sse41, "> gemm"},
      {Set::avx2, "direct groups > groups"},
      {Set::avx512_core, "groups > groups"}}},
    {"groups of 8 channels",
     Convolution("1,256,28,28", "32,8,8,3,3", "1,256,28,28", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "direct groups winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core, "groups > groups"}}},
    {"groups of 12 channels",
     Convolution("1,144,28,28", "12,12,12,3,3", "1,144,28,28", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "direct winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core, "groups > jit"}}},
    {"groups of 16 channels",
     Convolution("1,256,28,28", "16,16,16,3,3", "1,256,28,28", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "direct winograd_2x2 winograd_4x4 winograd_4x4_late > direct"},
      {Set::avx512_core, "groups winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core_amx, "groups winograd_4x4 winograd_4x4_late > jit"}}},
    {"three outputs of each channel",
     Convolution("1,32,28,28", "32,3,1,3,3", "1,96,28,28", 1, 1),
     {{Set::sse41, "> gemm"},
      {Set::avx2, "direct groups > groups"},
      {Set::avx512_core, "groups > groups"}}},
    {"groups of 32 channels",
     Convolution("1,128,16,16", "4,32,32,3,3", "1,128,16,16", 1, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "direct winograd_2x2 winograd_4x4 winograd_4x4_late > winograd_4x4"},
      {Set::avx512_core, "winograd_2x2 winograd_4x4 winograd_4x4_late > jit"},
      {Set::avx512_core_amx, "winograd_4x4 winograd_4x4_late > jit"}}},
    {"3x3 of a picture",
     Convolution("1,3,64,64", "32,3,3,3", "1,32,32,32", 2, 1),
     {{Set::sse41, "> jit"},
      {Set::avx2, "direct > direct"},
      {Set::avx512_core, "> jit"},
      {Set::avx512_core_amx, "bf16x3 > jit"}}},
    {"7x7 of a picture",
     Convolution("1,3,64,64", "64,3,7,7", "1,64,32,32", 2, 3),
     {{Set::sse41, "> jit"},
      {Set::avx2, "direct > jit"},
      {Set::avx512_core, "> jit"},
      {Set::avx512_core_amx, "bf16x3 > jit"}}},
    {"product of a row",
     Matmul("1,256", "256,512", "1,512"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > product"},
      {Set::avx512_core_amx, "bf16x3 product > product"}}},
    {"product of rows",
     Matmul("128,768", "768,768", "128,768"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > product"},
      {Set::avx512_core, "product > jit"},
      {Set::avx512_core_amx, "bf16x3 product > bf16x3"}}},
    {"product, float32",
     Matmul("128,768", "768,768", "128,768", "float32"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > product"},
      {Set::avx512_core, "product > jit"}}},
    {"product, two parts",
     Matmul("128,768", "768,768", "128,768", "bf16x2"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > product"},
      {Set::avx512_core, "product > jit"},
      {Set::avx512_core_amx, "bf16x2 product > bf16x2"}}},
    {"large product",
     Matmul("512,768", "768,3072", "512,3072"),
     {{Set::sse41, "> jit"},
      {Set::avx2, "product > product"},
      {Set::avx512_core, "product > jit"},
      {Set::avx512_core_amx, "bf16x3 product > bf16x3"}}},
    {"product of bytes",
     Matmul("37,64", "64,48", "37,48", "auto", "uint8", "int8"),
     {{Set::sse41, "> ByocUnsupportedError"},
      {Set::avx2, "integer > integer"},
      {Set::avx2_vnni, "integer > jit"},
      {Set::avx512_core, "integer > integer"},
      {Set::avx512_core_vnni, "integer > jit"}}},
    {"product of bytes, saturating",
     Matmul("37,64", "64,48", "37,48", "saturating", "uint8", "int8"),
     {{Set::sse41, "> jit"}, {Set::avx2, "integer > jit"}}},
    {"3x3 of bytes",
     Convolution("1,64,8,8", "64,64,3,3", "1,64,8,8", 1, 1, "auto", "uint8", "int8"),
     {{Set::sse41, "> ByocUnsupportedError"},
      {Set::avx2, "integer integer_winograd > integer_winograd"},
      {Set::avx512_core_vnni, "integer integer_winograd > jit"}}},
    {"attention of a query",
     Attention("1,4,1,64", "1,4,100,64"),
     {{Set::sse41, "> jit jit jit"}, {Set::avx2, "> attention"}}},
    {"attention of 128 queries",
     Attention("1,12,128,64", "1,12,128,64"),
     {{Set::sse41, "> jit jit jit"}}},
    {"softmax of bytes",
     Softmax("7,33"),
     {{Set::sse41, "> jit jit jit"}, {Set::avx2, "normalize > normalize"}}},
    {"compressed weights", Compressed("float32"), {{Set::sse41, "> compressed"}}},
    {"compressed weights, rounded", Compressed("int8"), {{Set::sse41, "> compressed_integer"}}},
};

}  // namespace

namespace {

Dims Numbers(const std::string& text) {
  std::istringstream in(text);
  Dims numbers;
  for (std::string number; std::getline(in, number, ',');) numbers.push_back(std::stoll(number));
  return numbers;
}

/// A line of layers.txt: kind, dtype, source, weights; of a convolution stride, padding, dilation.
Graph LayerOf(const std::string& line) {
  std::istringstream in(line);
  std::string kind, dtype, source, weights, stride, pad, dilation;
  in >> kind >> dtype >> source >> weights >> stride >> pad >> dilation;
  Dims result = Numbers(source), w = Numbers(weights);
  if (kind == "matmul") {
    return ParseGraph(Matmul(source, weights, Cat(result[0], ",", w[1]), "auto", dtype, "float32"));
  }
  const Dims pads = Numbers(pad);
  const size_t first = w.size() - 4;
  result[1] = first == 0 ? w[0] : w[0] * w[1];
  for (size_t axis : {0, 1}) {
    const int64_t size = (w[first + 2 + axis] - 1) * std::stoll(dilation) + 1;
    result[2 + axis] = (result[2 + axis] + 2 * pads[axis] - size) / std::stoll(stride) + 1;
  }
  return ParseGraph(
      GraphOf({Tensor(dtype, source)}, {Tensor(dtype, weights)},
              {Tensor(dtype, Cat(result[0], ",", result[1], ",", result[2], ",", result[3]))},
              Cat(R"({"kind":"convolution","inputs":[0,1],"outputs":[2],"attrs":{"strides":[)",
                  stride, ",", stride, R"(],"dilations":[)", dilation, ",", dilation,
                  R"(],"pad_begin":[)", pad, R"(],"pad_end":[)", pad, R"(],"alg":"auto"}})")));
}

/// What a layer runs on each instruction set that differs in kernels, with 1, 2 and 8 threads;
/// those that run what the ones before them run are left out.
std::string ChoicesOf(const Graph& layer) {
  std::string choices, before;
  for (Set set : {Set::avx2, Set::avx512_core, Set::avx512_core_bf16, Set::avx512_core_amx}) {
    for (int threads : {1, 2, 8}) {
      Machine machine = machines::WithIsa(set);
      machine.threads = threads;
      const std::string choice = ChoiceOn(machine, layer),
                        taken = choice.substr(choice.find('>') + 1);
      if (taken != before) choices += Cat("; ", machine.isa.Name(), "/", threads, taken);
      before = taken;
    }
  }
  return choices.substr(2);
}

}  // namespace

// CPUs that are not measured keep their choices, wherever the numbers stand that lead to them.
// After a deliberate change, BYOC_GOLDEN=1 writes the table again.
TEST(TheChoicesForManyLayersStay) {
  if (!machines::WithIsa(Set::avx512_core_amx).isa.HasTiles()) return;  // an old compiler
  std::ifstream layers(TESTED_LAYERS);
  std::map<std::string, std::string> known;
  std::ifstream golden(TESTED_CHOICES);
  for (std::string line; std::getline(golden, line);)
    known.emplace(line.substr(0, line.find(": ")), line.substr(line.find(": ") + 2));
  std::ofstream written;
  if (std::getenv("BYOC_GOLDEN") != nullptr) written.open(TESTED_CHOICES);
  size_t count = 0;
  for (std::string line; std::getline(layers, line);) {
    if (line.find(" float32 ") == std::string::npos) continue;
    const check::Scope scope(line);
    const std::string choices = ChoicesOf(LayerOf(line));
    ++count;
    if (written.is_open()) {
      written << line << ": " << choices << "\n";
    } else {
      CHECK_EQUAL(choices, known[line]);
    }
  }
  CHECK(written.is_open() || (count == known.size() && count > 0));
}

TEST(WhatIsChosenOnEachInstructionSet) {
  for (const Row& row : kRows) {
    const Graph graph = ParseGraph(row.graph);
    const char* expected = nullptr;
    for (Set set : machines::kAll) {
      const Machine machine = machines::WithIsa(set);
      const check::Scope scope(Cat(machine.isa.Name(), ", ", row.what));
      const auto listed = row.choices.find(set);
      if (listed != row.choices.end()) expected = listed->second;
      if (!machine.isa.HasTiles() && set >= Set::avx512_core_amx) continue;  // an old compiler
      CHECK_EQUAL(ChoiceOn(machine, graph), expected);
    }
  }
}

TEST(ManyWeightsOfFewTilesAreTransformedByEachCallBesideALargeCache) {
  const Graph graph =
      ParseGraph(Convolution("1,512,16,16", "500,512,3,3", "1,500,16,16", 1, 1, "float32"));
  for (Set set : machines::kAll) {
    Machine machine = machines::WithIsa(set);
    if (!machine.isa.Vectors()) continue;
    const check::Scope scope(machine.isa.Name());
    const auto is_late = [&](int64_t cache_bytes) {
      machine.cache_bytes = cache_bytes;
      return ChoiceOn(machine, graph).find("> winograd_4x4_late") != std::string::npos;
    };
    CHECK(is_late(2 << 20));
    // Beside a small one so few tiles are computed at once that they are transformed too often.
    CHECK_EQUAL(is_late(256 << 10), machine.isa.HasTiles());
  }
}
