// SPDX-License-Identifier: Apache-2.0
#include "runtime/probe.h"

#include <atomic>
#include <cstddef>
#include <system_error>
#include <thread>

#include "common/graph.h"
#include "common/support/json.h"
#include "runtime/threads.h"

namespace tvm_byoc_dnnl {

std::string ProbeText(const Engine& engine, std::string_view graph, bool delivers) {
  return json::Value(engine.Probe(ParseGraph(graph), delivers)).Dump();
}

std::vector<std::string> ProbeEach(const Engine& engine, const std::vector<std::string>& graphs) {
  std::vector<std::string> answers(graphs.size());
  const size_t threads = MaxThreads();  // which are part of each question
  std::atomic<size_t> next{0};
  const auto work = [&] {
    const ScopedThreads scope(static_cast<int>(threads));
    for (size_t i = next++; i < graphs.size(); i = next++) {
      try {
        answers[i] = ProbeText(engine, graphs[i], /*delivers=*/false);
      } catch (...) {  // the answer stays empty
      }
    }
  };
  std::vector<std::thread> helpers;
  try {
    while (helpers.size() + 1 < threads && helpers.size() + 1 < graphs.size()) {
      helpers.emplace_back(work);
    }
  } catch (const std::system_error&) {  // no thread to be had
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  return answers;
}

}  // namespace tvm_byoc_dnnl
