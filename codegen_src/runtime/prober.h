// SPDX-License-Identifier: Apache-2.0
// Questions to an engine that another thread answers before they are asked.
#ifndef TVM_BYOC_DNNL_RUNTIME_PROBER_H_
#define TVM_BYOC_DNNL_RUNTIME_PROBER_H_

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/engine.h"

namespace tvm_byoc_dnnl {

/// The engine's answer about a graph, both as JSON; see Engine::Probe.
std::string ProbeText(const Engine& engine, std::string_view graph, bool delivers);

/// Probes the graphs that will be asked about in a second thread, in the order in which they came.
/// Python needs as long to write a question down as the engine to answer it.
class Prober {
 public:
  explicit Prober(const Engine& engine);
  /// What has not begun is left out.
  ~Prober();
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  /// A graph that will be asked about.
  void Expect(const std::string& graph);

  /// The answer about a graph, of expected ones and of others. Throws what the engine throws. While
  /// the second thread answers it, this one answers others.
  std::string Answer(const std::string& graph);

 private:
  struct Question {
    enum class State { kWaiting, kBegun, kAnswered } state = State::kWaiting;
    std::string answer;
    std::exception_ptr error;
  };
  using Entry = std::pair<const std::string, Question>;

  void Work();
  /// Answers a question that waits; without the lock meanwhile.
  void Reply(Entry& entry, std::unique_lock<std::mutex>& lock);

  const Engine& engine_;
  const int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::string, Question> questions_;  // under the lock, as the two below
  std::deque<Entry*> queue_;                             // elements of `questions_`
  bool complete_ = false;
  std::thread helper_;
};

}  // namespace tvm_byoc_dnnl

#endif  // TVM_BYOC_DNNL_RUNTIME_PROBER_H_
