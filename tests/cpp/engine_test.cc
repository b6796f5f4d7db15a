// SPDX-License-Identifier: Apache-2.0
// Another library behind the seam, run by the common code.
#include "common/engine.h"

#include "check.h"
#include "common/region.h"
#include "common/support/error.h"
#include "reference_engine.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

/// abs(x + c), with x [n, 3].
std::string GraphOf(const std::string& alg) {
  return R"({
  "format": "tvm_byoc_dnnl.graph", "version": 1, "name": "g",
  "tensors": [{"name": "x", "dtype": "float32", "shape": ["n", 3]},
              {"name": "c", "dtype": "float32", "shape": [2, 3]},
              {"name": "t", "dtype": "float32", "shape": ["n", 3]},
              {"name": "y", "dtype": "float32", "shape": ["n", 3]}],
  "inputs": [{"tensor": 0}], "constants": [{"tensor": 1, "name": "c"}],
  "nodes": [{"kind": "binary", "inputs": [0, 1], "outputs": [2], "attrs": {"alg": "add"}},
            {"kind": "eltwise", "inputs": [2], "outputs": [3],
             "attrs": {"alg": ")" +
         alg + R"(", "alpha": 0, "beta": 0}}], "outputs": [3]})";
}

}  // namespace

TEST(AnotherEngineRunsThroughTheCommonCode) {
  Region region(Reference(), GraphOf("abs"));
  CHECK(region.PlanFor({{2, 3}}) == nullptr);  // no constants yet
  auto c = std::make_shared<std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  region.Initialise({{c->data(), c}});
  std::vector<float> x = {-5, -5, -5, 1, 1, 1}, y(6);
  region.PlanFor({{2, 3}})->Run({x.data()}, {y.data()});
  CHECK(y == std::vector<float>({4, 3, 2, 5, 6, 7}));
}

TEST(WhatAnEngineCannotRunIsNamed) {
  Region region(Reference(), GraphOf("exp"));
  auto c = std::make_shared<std::vector<float>>(6, 1.0f);
  region.Initialise({{c->data(), c}});
  CHECK_THROWS(kUnsupported, "eltwise", region.PlanFor({{2, 3}}));
}

TEST(AnEngineThatIsNotThereIsNamedWithItsPath) {
  CHECK_THROWS(kLibrary, "libtvm_byoc_engine_npu.so", FindEngine("npu"));
  SetEngineHelp([](const std::string& name, const std::string&) { return "install " + name; });
  CHECK_THROWS(kLibrary, "install npu", FindEngine("npu"));
  SetEngineHelp(nullptr);
}

TEST(AnEnginesNameLeadsToNoOtherFolder) {
  CHECK_THROWS(kArtifact, "engine's name", FindEngine("../../evil"));
}
