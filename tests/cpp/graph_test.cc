// SPDX-License-Identifier: Apache-2.0
#include "common/graph.h"

#include "check.h"

namespace {

using tvm_byoc_dnnl::BindSymbols;
using tvm_byoc_dnnl::Dims;
using tvm_byoc_dnnl::Graph;
using tvm_byoc_dnnl::Join;
using tvm_byoc_dnnl::ParseGraph;
using tvm_byoc_dnnl::Shapes;
using tvm_byoc_dnnl::Specialise;

/// A graph of one node on inputs of these shapes: "[1, 2] [2, 3]" -> tensors 0 and 1.
std::string OneNode(const std::vector<std::string>& shapes, const std::string& out,
                    const std::string& kind, const std::string& attrs = "{}",
                    const std::string& post_ops = "[]") {
  std::string tensors, inputs, ids;
  for (size_t i = 0; i <= shapes.size(); ++i) {
    const std::string& shape = i < shapes.size() ? shapes[i] : out;
    if (i > 0) tensors += ",";
    tensors += R"({"name":"t","dtype":"float32","shape":)" + shape + "}";
    if (i == shapes.size()) break;
    const char* separator = i > 0 ? "," : "";
    inputs += separator + (R"({"tensor":)" + std::to_string(i) + "}");
    ids += separator + std::to_string(i);
  }
  return R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[)" + tensors +
         R"(],"inputs":[)" + inputs + R"(],"constants":[],"nodes":[{"kind":")" + kind +
         R"(","inputs":[)" + ids + R"(],"outputs":[)" + std::to_string(shapes.size()) +
         R"(],"attrs":)" + attrs + R"(,"post_ops":)" + post_ops + R"(}],"outputs":[)" +
         std::to_string(shapes.size()) + "]}";
}

constexpr const char* kWindow =
    R"({"strides":[2,1],"dilations":[1,2],"pad_begin":[1,0],"pad_end":[0,2]})";

}  // namespace

TEST(AcceptsEveryKind) {
  const std::string pool =
      R"({"alg":"max","kernel":[3,3],"strides":[2,1],"dilations":[1,2],"pad_begin":[1,0],"pad_end":[0,2]})";
  for (const std::string& json : {
           OneNode({"[1,4,9,9]", "[8,4,3,3]", "[8]"}, "[1,8,4,7]", "convolution", kWindow),
           OneNode({"[1,4,9,9]", "[2,3,2,3,3]"}, "[1,6,4,7]", "convolution", kWindow),
           OneNode({"[1,4,4,4]", "[8,4,3,3]"}, "[1,8,8,6]", "deconvolution", kWindow),
           OneNode({"[2,1,5,7]", "[1,3,7,4]", "[1,1,1,4]"}, "[2,3,5,4]", "matmul"),
           OneNode({"[1,4,9,9]"}, "[1,4,4,7]", "pooling", pool),
           OneNode({"[]"}, "[]", "eltwise", R"({"alg":"elu","alpha":"inf","beta":1})"),
           OneNode({"[2,1]", "[1,3]"}, "[2,3]", "binary", R"({"alg":"ge"})"),
           OneNode({"[2,3,4]", "[1,3,1]"}, "[2,3,4]", "prelu"),
           OneNode({"[2,3]"}, "[2,3]", "softmax", R"({"alg":"log","axis":0})"),
           OneNode({"[2,3,4]", "[3]", "[3]", "[3]", "[3]"}, "[2,3,4]", "batch_normalization",
                   R"({"epsilon":0.1})"),
           OneNode({"[2,3]", "[3]", "[3]"}, "[2,3]", "layer_normalization", R"({"epsilon":0.1})"),
           OneNode({"[1,4,9,9]"}, "[1,4,9,9]", "lrn",
                   R"({"alg":"across_channels","local_size":5,"alpha":1,"beta":1,"k":1})"),
           OneNode({"[2,3]"}, "[1,3]", "reduction", R"({"alg":"max","p":1,"epsilon":0})"),
           OneNode({"[1,4,9]"}, "[1,4,5]", "resampling", R"({"alg":"linear"})"),
           OneNode({"[2,3]", "[2,1]"}, "[2,4]", "concat", R"({"axis":1})"),
           OneNode({"[2,6]"}, "[2,6]", "shuffle", R"({"axis":1,"group_size":3})"),
           OneNode({"[2,6]"}, "[2,6]", "reorder"),
           OneNode({"[2,6]"}, "[3,4]", "reshape"),
           OneNode({"[2,6,1]"}, "[6,1,2]", "permute", R"({"axes":[1,2,0]})"),
           OneNode({"[5,6]"}, "[2,6]", "slice", R"({"begin":[1,0],"steps":[3,1]})"),
           OneNode({"[1,6]"}, "[5,6]", "expand"),
           OneNode({"[2,6]"}, "[3,8]", "pad", R"({"pad_begin":[1,0],"pad_end":[0,2],"value":0})"),
       }) {
    CHECK_EQUAL(ParseGraph(json).nodes.size(), 1u);
  }
}

TEST(RefusesWhatContradictsTheKind) {
  struct Row {
    std::string json;
    const char* message;
  };
  const Row rows[] = {
      {OneNode({"[1,4,9,9]", "[8,3,3,3]"}, "[1,8,4,7]", "convolution", kWindow), "4 channels"},
      {OneNode({"[1,4,9,9]", "[8,4,3]"}, "[1,8,4,7]", "convolution", kWindow), "weights"},
      {OneNode({"[1,4,9,9]", "[8,4,3,3]", "[7]"}, "[1,8,4,7]", "convolution", kWindow), "bias"},
      {OneNode({"[1,4,1,1]", "[8,4,9,9]"}, "[1,8,1,1]", "convolution", kWindow), "larger than"},
      {OneNode({"[4,9]", "[8,4,3]"}, "[1,8,4]", "convolution", kWindow), "rank 3, 4 or 5"},
      {OneNode({"[1,4,9]", "[8,4,3]"}, "[1,8,4]", "convolution", kWindow), "`strides` has 2"},
      {OneNode({"[2,5,7]", "[3,7,4]"}, "[2,5,4]", "matmul"), "axis 0 is 2 and 3"},
      {OneNode({"[5,7]", "[7,4]", "[5,4]"}, "[5,4]", "matmul"), "1,N"},
      {OneNode({"[2]", "[3]"}, "[3]", "binary", R"({"alg":"add"})"), "axis 0 is 2 and 3"},
      {OneNode({"[2,3]", "[3]"}, "[2,3]", "binary", R"({"alg":"add"})"), "equal rank"},
      {OneNode({"[2,3]"}, "[2,3]", "softmax", R"({"alg":"log","axis":2})"), "axis 2"},
      {OneNode({"[2,3]"}, "[2,3]", "softmax", R"({"alg":"log","axis":-1})"), "axis -1"},
      {OneNode({"[2,3]"}, "[2,2]", "reduction", R"({"alg":"max","p":1,"epsilon":0})"), "axis 1"},
      {OneNode({"[2,3]", "[3,1]"}, "[2,4]", "concat", R"({"axis":1})"), "apart from the axis"},
      {OneNode({"[2,6]"}, "[2,6]", "shuffle", R"({"axis":1,"group_size":4})"), "divides"},
      {OneNode({"[2,6]"}, "[3,5]", "reshape"), "got 12 elements, expected 15"},
      {OneNode({"[2,6]"}, "[2,2]", "permute", R"({"axes":[0,0]})"), "not a permutation"},
      {OneNode({"[5,6]"}, "[3,6]", "slice", R"({"begin":[0,0],"steps":[3,1]})"), "has no 3"},
      {OneNode({"[5]"}, "[1]", "slice", R"({"begin":[0],"steps":[0]})"), "out of [1"},
      {OneNode({"[2,6]"}, "[5,6]", "expand"), "does not broadcast"},
      {OneNode({"[2]"}, "[3]", "pad", R"({"pad_begin":[-1],"pad_end":[2],"value":0})"),
       "out of [0"},
      {OneNode({"[2]"}, "[3]", "pad", R"({"pad_begin":[4294967296],"pad_end":[2],"value":0})"),
       "out of [0"},
      // sizes that are allowed, while what follows from them does not fit 64 bits
      {OneNode({"[1,1,4611686018427387]", "[1,1,4611686018427387]"}, "[1,1,1]", "deconvolution",
               R"({"strides":[2147483647],"dilations":[1],"pad_begin":[0],"pad_end":[0]})"),
       "overflow"},
      {OneNode({"[1,1,1]", "[1,1,4611686018427387]"}, "[1,1,1]", "convolution",
               R"({"strides":[1],"dilations":[2147483647],"pad_begin":[0],"pad_end":[0]})"),
       "overflow"},
      {OneNode({"[1048576000000000000]", "[1048576000000000000]", "[1048576000000000000]",
                "[1048576000000000000]", "[1048576000000000000]", "[1048576000000000000]",
                "[1048576000000000000]", "[1048576000000000000]", "[1048576000000000000]"},
               "[1]", "concat", R"({"axis":0})"),
       "overflow"},
      {OneNode({"[2,3]", "[2,2]"}, "[2,3]", "eltwise", R"({"alg":"relu","alpha":0,"beta":0})",
               R"([{"kind":"binary","alg":"add","input":1}])"),
       "does not broadcast"},
  };
  for (const Row& row : rows) CHECK_THROWS(kGraph, row.message, ParseGraph(row.json));
}

namespace {

/// src [2,3] and indices [2,5] of this dtype, gathered to a result of this shape.
std::string Gather(const char* dtype, const char* out, const char* axis,
                   const char* src = "[2,3]") {
  return std::string(R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[
         {"name":"x","dtype":"uint8","shape":)") +
         src + R"(},{"name":"i","dtype":")" + dtype +
         R"(","shape":[2,5]},{"name":"y","dtype":"uint8","shape":)" + out +
         R"(}],"inputs":[{"tensor":0},{"tensor":1}],"constants":[],"nodes":[{"kind":"gather",
         "inputs":[0,1],"outputs":[2],"attrs":{"alg":"from_end","axis":)" +
         axis + R"(}}],"outputs":[2]})";
}

}  // namespace

TEST(GatherReplacesAnAxis) {
  CHECK_EQUAL(ParseGraph(Gather("int32", "[2,5,3]", "0")).nodes.size(), 1u);
  CHECK_EQUAL(ParseGraph(Gather("int64", "[2,2,5]", "1")).nodes.size(), 1u);
  CHECK_THROWS(kGraph, "expected [2, 5, 3]", ParseGraph(Gather("int32", "[2,2,5]", "0")));
  CHECK_THROWS(kGraph, "indices int32 or int64", ParseGraph(Gather("uint8", "[2,5,3]", "0")));
  CHECK_THROWS(kGraph, "axis 2", ParseGraph(Gather("int32", "[2,5,3]", "2")));
  CHECK_THROWS(kGraph, "no elements", ParseGraph(Gather("int32", "[2,5,3]", "0", "[0,3]")));
}

TEST(ScalesAreReadWithTheInputs) {
  const Graph graph =
      ParseGraph(R"({"format":"tvm_byoc_dnnl.graph","version":2,"name":"g","tensors":[
      {"name":"x","dtype":"int8","shape":[2,3]},{"name":"s","dtype":"float32","shape":[3]},
      {"name":"z","dtype":"int32","shape":[1]},{"name":"y","dtype":"uint8","shape":[2,3]}],
      "inputs":[{"tensor":0},{"tensor":1},{"tensor":2}],"constants":[],"nodes":[{"kind":"reorder",
      "inputs":[{"tensor":0,"scale":1,"axis":1}],"outputs":[{"tensor":3,"zero_point":2}]}],
      "outputs":[3]})");
  const auto& node = graph.nodes[0];
  CHECK_EQUAL(node.scalings[0].scale, 1);
  CHECK_EQUAL(node.scalings[0].zero_point, -1);
  CHECK_EQUAL(node.scalings[0].axis, 1);
  CHECK_EQUAL(node.output_scaling.zero_point, 2);
  CHECK(node.Reads() == std::vector<int>({0, 1, 2}));
}

TEST(PostOpOperandsFollowTheOwnInputs) {
  const char* add = R"([{"kind":"binary","alg":"add","input":2}])";
  const Graph graph =
      ParseGraph(OneNode({"[5,7]", "[7,4]", "[5,4]"}, "[5,4]", "matmul", "{}", add));
  CHECK_EQUAL(graph.nodes[0].own_inputs, 2);
  CHECK_THROWS(kGraph, "2 to 3",
               ParseGraph(OneNode({"[5,7]", "[7,4]", "[5,4]", "[5,4]", "[5,4]"}, "[5,4]",
                                  "convolution", kWindow)));
  CHECK_THROWS(
      kGraph, "got 2 inputs of its own and 2",
      ParseGraph(OneNode({"[5,7]", "[7,4]", "[5,4]", "[1,4]"}, "[5,4]", "matmul", "{}", add)));
}

TEST(SymbolsBindAndSpecialise) {
  const Graph graph =
      ParseGraph(OneNode({R"(["n",4])", R"([4,["*","n",2]])"}, R"(["n",["*","n",2]])", "matmul"));
  CHECK(!graph.IsStatic());
  CHECK_EQUAL(Join(BindSymbols(graph, {{3, 4}, {4, 6}})), "[3]");
  CHECK_THROWS(kInput, "expected [4, 6] with n = 3", BindSymbols(graph, {{3, 4}, {4, 7}}));
  CHECK_THROWS(kInput, "rank 1", BindSymbols(graph, {{3}, {4, 6}}));
  CHECK_EQUAL(Join(Specialise(graph, {3})[2]), "[3, 6]");
}

TEST(SymbolsWithWhichANodeDoesNotFit) {
  const Graph graph = ParseGraph(OneNode({R"(["n",4])", R"(["m",5])"}, R"(["n",5])", "matmul"));
  CHECK_THROWS(kInput, "n = 3, m = 2", Specialise(graph, {3, 2}));
  CHECK_EQUAL(Specialise(graph, {3, 4}).size(), 3u);
}

TEST(SymbolValuesThatOverflow) {
  const Graph graph = ParseGraph(OneNode({R"(["n",4])"}, R"([["*","n",4]])", "reshape"));
  CHECK_THROWS(kInput, "2^62", Specialise(graph, {int64_t{1} << 61}));
}
