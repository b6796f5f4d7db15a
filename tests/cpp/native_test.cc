// SPDX-License-Identifier: Apache-2.0
// Programs of calls, and the C interface, with models of two regions in files that are made here.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "check.h"
#include "common/data_object.h"
#include "common/support/bytes.h"
#include "native/model.h"
#include "native/program.h"
#include "native/tvm_byoc_runtime.h"
#include "reference_engine.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one layer

/// x [n, 3] -> a: t = x + c, of which y and z are the absolute values and t itself;
/// b: y and the shape (n, 3) -> w = abs(y + y).
std::string GraphOf(const std::string& name) {
  const bool first = name == "a";
  return std::string(R"({"format": "tvm_byoc_dnnl.graph", "version": 2, "name": ")") + name +
         R"(", "tensors": [{"name": "x", "dtype": "float32", "shape": ["n", 3]},)" +
         (first ? R"({"name": "c", "dtype": "float32", "shape": [2, 3]},)" : "") +
         R"({"name": "t", "dtype": "float32", "shape": ["n", 3]},
             {"name": "y", "dtype": "float32", "shape": ["n", 3]}],
  "inputs": [{"tensor": 0})" +
         (first ? "" : R"(, {"shape": ["n", 3]})") + R"(], "constants": [)" +
         (first ? R"({"tensor": 1, "name": "c"})" : "") +
         R"(], "nodes": [{"kind": "binary", "inputs": [0, )" + (first ? "1" : "0") +
         R"(], "outputs": [)" + (first ? "2" : "1") +
         R"(], "attrs": {"alg": "add"}}, {"kind": "eltwise", "inputs": [)" + (first ? "2" : "1") +
         R"(], "outputs": [)" + (first ? "3" : "2") +
         R"(], "attrs": {"alg": "abs", "alpha": 0, "beta": 0}}], "outputs": [)" +
         (first ? "3, 2" : "2") + "]}";
}

/// y, z = a(x); v = y as [n, 1, 3]; w = b(y); -> (w, v, x, w, z)
constexpr const char* kProgram = R"({"format": "tvm_byoc_dnnl.program", "version": 2,
  "name": "main",
  "tensors": [{"name": "x", "dtype": "float32", "shape": ["n", 3]},
              {"name": "y", "dtype": "float32", "shape": ["n", 3]},
              {"name": "z", "dtype": "float32", "shape": ["n", 3]},
              {"name": "v", "dtype": "float32", "shape": ["n", 1, 3]},
              {"name": "w", "dtype": "float32", "shape": ["n", 3]}],
  "inputs": [{"tensor": 0}], "constants": [],
  "calls": [{"region": "a", "inputs": [0], "outputs": [1, 2]}, {"inputs": [1], "outputs": [3]},
            {"region": "b", "inputs": [1, {"shape": ["n", 3]}], "outputs": [4]}],
  "outputs": [4, 3, 0, 4, 2], "signature": {"note": "mine"}})";

std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) check::Failed(__FILE__, __LINE__, "no \"" + from + "\" in it");
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// What export_library would write, around such a program.
std::string FileOf(const std::string& program) {
  const float c[] = {1, 2, 3, 4, 5, 6};
  const std::string data(reinterpret_cast<const char*>(c), sizeof(c));
  WeightsTable table;
  table.total_bytes = data.size();
  table.entries.push_back({"c", 2, 32, {2, 3}, 0, data.size(), Xxh64(data)});
  table.regions.push_back({"a", {0}});
  std::string file =
      "\x7f"
      "ELF";
  for (const char* name : {"b", "a"}) {
    std::vector<std::string> constants;
    if (*name == 'a') constants.push_back("c");
    file += Save(Artifact{name, GraphOf(name), constants, "any", "reference"}, "a test") + "---";
  }
  file += Save(table, "a test") + SaveProgram(program, "a test");
  file.resize((file.size() + 63) / 64 * 64, '-');
  const uint64_t begin = file.size(), end = begin + data.size();
  file += data + "the rest";
  std::string numbers;
  for (uint64_t place : {uint64_t{0}, begin, end, uint64_t{file.size()}}) Append(place, &numbers);
  Append<uint64_t>(Xxh64(file.substr(0, begin)), &numbers);
  Append<uint64_t>(Xxh64("the rest"), &numbers);
  const std::string record =
      Cat("{\"key\": \"k\", \"bytes\": ", file.size(), ", \"skip\": [[", begin, ", ", end,
          "]], \"checksum\": ", Xxh64(numbers), ", \"weights\": 0}");
  file += record;
  Append<uint32_t>(static_cast<uint32_t>(record.size()), &file);
  return file + "tvm_byoc_dnnl checksum 1";
}

/// Loads a file with this content; the model, or NULL with the status.
tvm_byoc_model* Loaded(const std::string& content, int32_t* status) {
  CHECK_EQUAL(Reference().Version(), "reference 1");
  const std::string path = Cat("native_test.", getpid(), ".so");
  std::ofstream(path, std::ios::binary) << content;
  tvm_byoc_model* model = nullptr;
  *status = tvm_byoc_load(path.c_str(), 0, &model);
  std::remove(path.c_str());
  return model;
}

/// The five outputs for x [2, 3], and their memory.
struct Results {
  float data[5][6] = {};
  int64_t flat[2] = {2, 3}, deep[3] = {2, 1, 3};
  tvm_byoc_tensor tensors[5];
  Results() {
    for (int i = 0; i < 5; ++i) tensors[i] = {data[i], TVM_BYOC_FLOAT32, 2, flat};
    tensors[1] = {data[1], TVM_BYOC_FLOAT32, 3, deep};
  }
};

bool IsRight(const Results& results, const float* x) {
  bool right = true;
  for (int i = 0; i < 6; ++i) {
    const float t = x[i] + static_cast<float>(i + 1), y = std::fabs(t);
    const float expected[] = {std::fabs(y + y), y, x[i], std::fabs(y + y), t};
    for (int k = 0; k < 5; ++k) right &= results.data[k][i] == expected[k];
  }
  return right;
}

}  // namespace

TEST(AProgramOfTwoRegionsRuns) {
  int32_t status = -1;
  tvm_byoc_model* model = Loaded(FileOf(kProgram), &status);
  CHECK_EQUAL(status, int32_t{TVM_BYOC_OK});
  if (model == nullptr) return check::Failed(__FILE__, __LINE__, tvm_byoc_last_error());
  CHECK_EQUAL(std::string(tvm_byoc_describe(model)), R"({"note":"mine"})");
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([model, number] {
      for (int round = 0; round < 50; ++round) {
        float x[6];
        for (int i = 0; i < 6; ++i) x[i] = static_cast<float>(i - number * 3 - round);
        int64_t shape[] = {2, 3};
        const tvm_byoc_tensor input = {x, TVM_BYOC_FLOAT32, 2, shape};
        Results results;
        CHECK_EQUAL(tvm_byoc_run(model, &input, 1, results.tensors, 5), int32_t{TVM_BYOC_OK});
        CHECK(IsRight(results, x));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  tvm_byoc_free(model);
  tvm_byoc_free(nullptr);
}

TEST(ShapesAreToldAndPlansMadeBefore) {
  int32_t status = -1;
  tvm_byoc_model* model = Loaded(FileOf(kProgram), &status);
  int64_t shape[] = {2, 3}, room[5][3];
  const tvm_byoc_tensor input = {nullptr, TVM_BYOC_FLOAT32, 2, shape};
  tvm_byoc_tensor outputs[5];
  for (int i = 0; i < 5; ++i) outputs[i] = {nullptr, TVM_BYOC_FLOAT32, 3, room[i]};
  CHECK_EQUAL(tvm_byoc_shapes(model, &input, 1, outputs, 5), int32_t{TVM_BYOC_OK});
  CHECK_EQUAL(outputs[0].rank, 2);
  CHECK_EQUAL(outputs[1].rank, 3);
  CHECK_EQUAL(Join(Dims(room[1], room[1] + 3)), "[2, 1, 3]");
  CHECK_EQUAL(tvm_byoc_prepare(model, &input, 1), int32_t{TVM_BYOC_OK});
  outputs[1].rank = 2;
  CHECK_EQUAL(tvm_byoc_shapes(model, &input, 1, outputs, 5), int32_t{TVM_BYOC_INPUT});
  tvm_byoc_free(model);
}

TEST(WrongCallsAreRefusedWithTheReason) {
  int32_t status = -1;
  tvm_byoc_model* model = Loaded(FileOf(kProgram), &status);
  float x[6] = {};
  int64_t shape[] = {2, 3}, wide[] = {2, 4}, negative[] = {-2, 3};
  const tvm_byoc_tensor good = {x, TVM_BYOC_FLOAT32, 2, shape};
  Results results;
  struct Row {
    const char* part;
    std::function<void(tvm_byoc_tensor*, tvm_byoc_tensor*)> change;
  };
  for (const Row& row : {
           Row{"has dtype 8, expected 0 (float32)", [](auto* in, auto*) { in->dtype = 8; }},
           Row{"has no data", [](auto* in, auto*) { in->data = nullptr; }},
           Row{"has rank 1, expected 2", [](auto* in, auto*) { in->rank = 1; }},
           Row{"has rank -1", [](auto* in, auto*) { in->rank = -1; }},
           Row{"and no shape", [](auto* in, auto*) { in->shape = nullptr; }},
           Row{"has shape [2, 4]", [&](auto* in, auto*) { in->shape = wide; }},
           Row{"has shape [-2, 3]", [&](auto* in, auto*) { in->shape = negative; }},
           Row{"output \"w\" has shape [2, 4], expected [2, 3]",
               [&](auto*, auto* out) { out->shape = wide; }},
           Row{"output \"w\" has no data", [](auto*, auto* out) { out->data = nullptr; }},
       }) {
    const check::Scope scope(row.part);
    tvm_byoc_tensor input = good;
    Results fresh;
    row.change(&input, fresh.tensors);
    CHECK_EQUAL(tvm_byoc_run(model, &input, 1, fresh.tensors, 5), int32_t{TVM_BYOC_INPUT});
    CHECK(std::strstr(tvm_byoc_last_error(), row.part) != nullptr);
  }
  CHECK_EQUAL(tvm_byoc_run(model, &good, 2, results.tensors, 5), int32_t{TVM_BYOC_INPUT});
  CHECK_EQUAL(tvm_byoc_run(model, &good, 1, results.tensors, 4), int32_t{TVM_BYOC_INPUT});
  CHECK_EQUAL(tvm_byoc_run(nullptr, &good, 1, results.tensors, 5), int32_t{TVM_BYOC_INPUT});
  CHECK_EQUAL(tvm_byoc_run(model, nullptr, 1, results.tensors, 5), int32_t{TVM_BYOC_INPUT});
  CHECK_EQUAL(tvm_byoc_load(nullptr, 0, &model), int32_t{TVM_BYOC_INPUT});
  CHECK(model == nullptr);
}

TEST(FilesThatDoNotFitAreRefused) {
  struct Row {
    const char* part;
    int32_t status;
    std::string from, to;
  };
  for (const Row& row : {
           Row{"no region q", TVM_BYOC_ARTIFACT, R"("region": "b")", R"("region": "q")"},
           Row{"does not fit it", TVM_BYOC_ARTIFACT, R"("region": "b")", R"("region": "a")"},
           Row{"used before it is defined", TVM_BYOC_ARTIFACT, R"("inputs": [1,)",
               R"("inputs": [4,)"},
           Row{"defined a second time", TVM_BYOC_ARTIFACT, R"("outputs": [3]})",
               R"("outputs": [2]})"},
           Row{"a symbol that no input has", TVM_BYOC_ARTIFACT, R"({"shape": ["n", 3]}])",
               R"({"shape": ["k", 3]}])"},
           Row{"one tensor in another shape", TVM_BYOC_ARTIFACT, R"({"inputs": [1])",
               R"({"inputs": [1, 2])"},
           Row{"unknown operator \"q\"", TVM_BYOC_ARTIFACT, R"({"inputs": [1])",
               R"({"operator": "q", "inputs": [1])"},
           Row{"logical_not of other tensors", TVM_BYOC_ARTIFACT, R"({"inputs": [1])",
               R"({"operator": "logical_not", "inputs": [1])"},
           Row{"got 1 integers for float32[", TVM_BYOC_ARTIFACT, R"("constants": [])",
               R"("constants": [{"tensor": 1, "numbers": [1]}])"},
           Row{"without an alias", TVM_BYOC_ARTIFACT, R"([{"tensor": 0}])",
               R"([{"tensor": 0, "alias": 1}])"},
           Row{"version 7", TVM_BYOC_ARTIFACT, R"("version": 2)", R"("version": 7)"},
           Row{"without TVM: because", TVM_BYOC_UNSUPPORTED, R"("name": "main")",
               R"("reason": "because")"},
       }) {
    const check::Scope scope(row.part);
    int32_t status = -1;
    CHECK(Loaded(FileOf(With(kProgram, row.from, row.to)), &status) == nullptr);
    CHECK_EQUAL(status, row.status);
    CHECK(std::strstr(tvm_byoc_last_error(), row.part) != nullptr);
  }
}

TEST(IndexArithmeticWrapsAndBroadcasts) {
  const Dims row = {3}, column = {2, 1}, both = {2, 3}, one = {};
  int32_t a[] = {2147483647, -5, 0}, b[] = {1, -1}, sum[6];
  const HostOperator* add = FindHostOperator("add");
  CHECK(add != nullptr && FindHostOperator("power") == nullptr);
  CHECK(Takes(*add, {DType::kInt32, DType::kInt32}, DType::kInt32));
  CHECK(!Takes(*add, {DType::kInt32, DType::kFloat32}, DType::kInt32));
  CHECK(!Takes(*add, {DType::kInt32}, DType::kInt32));
  CHECK(Fits(*add, {row, column}, both) && !Fits(*add, {row, both}, row));
  Run(*add, {{a, DType::kInt32, row}, {b, DType::kInt32, column}}, {sum, DType::kInt32, both});
  CHECK_EQUAL(Join(Dims(sum, sum + 6)), "[-2147483648, -4, 1, 2147483646, -6, -1]");

  bool chosen[] = {true, false, true};
  int64_t x[] = {7}, y[] = {-9007199254740993}, picked[3];
  Run(*FindHostOperator("where"),
      {{chosen, DType::kBool, row}, {x, DType::kInt64, one}, {y, DType::kInt64, one}},
      {picked, DType::kInt64, row});
  CHECK_EQUAL(Join(Dims(picked, picked + 3)), "[7, -9007199254740993, 7]");
  float rounded[3];
  Run(*FindHostOperator("astype"), {{picked, DType::kInt64, row}}, {rounded, DType::kFloat32, row});
  CHECK(rounded[0] == 7 && rounded[1] == -9007199254740992.0F);

  float table[] = {1, 2, 3, 4, 5, 6}, slices[2];
  int64_t places[] = {1, 2, 0, 0};
  const HostOperator* gather = FindHostOperator("gather_nd");
  const Dims pairs = {2, 2}, two = {2};
  CHECK(Fits(*gather, {both, pairs}, two) && !Fits(*gather, {row, pairs}, two));
  Run(*gather, {{table, DType::kFloat32, both}, {places, DType::kInt64, pairs}},
      {slices, DType::kFloat32, two});
  CHECK(slices[0] == 6 && slices[1] == 1);
  places[3] = 3;
  bool refused = false;
  try {
    Run(*gather, {{table, DType::kFloat32, both}, {places, DType::kInt64, pairs}},
        {slices, DType::kFloat32, two});
  } catch (const std::out_of_range&) {
    refused = true;
  }
  CHECK(refused);
}

TEST(FloatsBetweenRegionsKeepNaNAndReduceRowsAndColumns) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Dims row = {3}, both = {2, 3}, columns = {1, 3}, rows = {2, 1}, one = {}, empty = {0, 3};
  float x[] = {1, nan, 3, 4, 5, -6}, made[6];
  auto run = [&](const char* name, const Dims& from, const Dims& to) {
    const HostOperator* op = FindHostOperator(name);
    CHECK(Takes(*op, {DType::kFloat32}, DType::kFloat32) && Fits(*op, {from}, to));
    Run(*op, {{x, DType::kFloat32, from}}, {made, DType::kFloat32, to});
  };
  run("max", both, columns);
  CHECK(made[0] == 4 && std::isnan(made[1]) && made[2] == 3);
  run("sum", both, rows);
  CHECK(std::isnan(made[0]) && made[1] == 3);
  run("min", empty, columns);
  CHECK(std::isinf(made[0]) && made[2] > 0);
  const HostOperator* maximum = FindHostOperator("maximum");
  Run(*maximum, {{x, DType::kFloat32, row}, {x + 3, DType::kFloat32, row}},
      {made, DType::kFloat32, row});
  CHECK(made[0] == 4 && std::isnan(made[1]) && made[2] == 3);
  bool equal[6];
  Run(*FindHostOperator("equal"), {{x, DType::kFloat32, both}, {x, DType::kFloat32, both}},
      {equal, DType::kBool, both});
  CHECK(equal[0] && !equal[1] && equal[5]);
  CHECK(!Takes(*FindHostOperator("sum"), {DType::kInt32}, DType::kInt32));
  CHECK(!Takes(*FindHostOperator("add"), {DType::kFloat32, DType::kFloat32}, DType::kInt32));
  int64_t start[] = {5}, step[] = {-2};
  int32_t counted[3];
  Run(*FindHostOperator("arange"), {{start, DType::kInt64, one}, {step, DType::kInt64, one}},
      {counted, DType::kInt32, row});
  CHECK(counted[0] == 5 && counted[2] == 1);
}

TEST(SizesThatTheRegionsContradictAreRefused) {
  int32_t status = -1;
  const std::string other = With(kProgram, R"("w", "dtype": "float32", "shape": ["n", 3])",
                                 R"("w", "dtype": "float32", "shape": [2, 4])");
  tvm_byoc_model* model = Loaded(FileOf(other), &status);
  CHECK_EQUAL(status, int32_t{TVM_BYOC_OK});
  int64_t shape[] = {2, 3};
  const tvm_byoc_tensor input = {nullptr, TVM_BYOC_FLOAT32, 2, shape};
  CHECK_EQUAL(tvm_byoc_prepare(model, &input, 1), int32_t{TVM_BYOC_INPUT});
  CHECK(std::strstr(tvm_byoc_last_error(), "the model expects [2, 4]") != nullptr);
  tvm_byoc_free(model);
}

TEST(NoFlippedBitGivesWrongNumbers) {
  const std::string whole = FileOf(kProgram);
  float x[] = {-9, 9, -9, 9, -9, 9};
  int64_t shape[] = {2, 3};
  const tvm_byoc_tensor input = {x, TVM_BYOC_FLOAT32, 2, shape};
  for (size_t place = 0; place < whole.size(); place += 7) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ (1 << place % 8));
    int32_t status = -1;
    tvm_byoc_model* model = Loaded(damaged, &status);
    CHECK_EQUAL(model == nullptr, status != TVM_BYOC_OK);
    if (model == nullptr) continue;
    Results results;
    CHECK_EQUAL(tvm_byoc_run(model, &input, 1, results.tensors, 5), int32_t{TVM_BYOC_OK});
    CHECK(IsRight(results, x));
    tvm_byoc_free(model);
  }
  for (size_t length : {size_t{0}, size_t{3}, size_t{40}, whole.size() / 2, whole.size() - 1}) {
    int32_t status = -1;
    CHECK(Loaded(whole.substr(0, length), &status) == nullptr);
    CHECK_EQUAL(status, int32_t{TVM_BYOC_ARTIFACT});
  }
}
